"""What an experiment's directory has recorded of its trials, for a forecast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.forecast.recorded_trial import RecordedTrial
from dasktune.results.journal_trials import load_trials
from dasktune.storage.experiment.tuner_json import SETUP_FILE, TunerFile
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.trial.status import PublicStatus

#: Searchers whose suggestions depend on no result, by name and by class.
_LEARN_NOTHING: Final = frozenset(
    {None, "random", "variant_generator", "quasi_random", "BasicVariantGenerator", "QuasiRandomSearch"}
)


def recorded_trials(storage: Storage) -> list[RecordedTrial]:
    """Return the trials of an experiment, in the order of their creation.

    Nothing is unpickled. The experiment may still be running.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Raises
    ------
    ConfigError
        If trials are clones of population based training.
    StorageError
        If the journal is damaged, or missing although the experiment had trials.
    """
    trials = load_trials(storage)
    clones = sum(bool(trial.ancestry) for trial in trials)
    rule = "without clones of population based training"
    check(not clones, "experiment", rule, f"{clones} clones", "A clone has no learning curve of its own.")
    stays = stays_of(JournalReader(storage))
    return [
        RecordedTrial(
            rows=trial.history,
            config=trial.config,
            status=trial.public_status,
            reason=trial.reason,
            stopped_early=trial.stopped_early,
            stays=stays.get(trial.trial_id, ()),
        )
        for trial in trials
    ]


def stays_of(records: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return for each trial when it began and ended to run, in seconds on the driver's clock.

    A trial that runs at the last record has no end yet: this stay is left out.

    Parameters
    ----------
    records : iterable of mapping
        The records of a journal, in order.

    Examples
    --------
    >>> def record(time, status):
    ...     return {"event": "TrialPaused", "trial_id": "a", "time": time, "status": status}
    >>> stays_of([record(1.0, "RUNNING"), record(2.0, "RUNNING"), record(4.0, "PAUSED")])
    {'a': [(1.0, 4.0)]}
    """
    found: dict[str, list[tuple[float, float]]] = {}
    running: dict[str, float] = {}
    last = 0.0
    for record in records:
        now, status = float(record["time"]), record.get("status")
        if record["event"] == "SessionBegan":
            # The driver before has died: what ran then has run at least until its last record.
            for name, began in running.items():
                found.setdefault(name, []).append((began, last))
            running.clear()
        last = now
        if status is None:
            continue
        name = record["trial_id"]
        if status == PublicStatus.RUNNING:
            running.setdefault(name, now)
        elif name in running:
            found.setdefault(name, []).append((running.pop(name), now))
    return found


def check_searcher(storage: Storage) -> None:
    """Refuse configurations that depend on the results, and so on the scheduler.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Raises
    ------
    ConfigError
        If the searcher of the experiment learns from results, or may do so.
    StorageError
        If ``tuner.json``, which names the searcher, cannot be read.
    """
    with reading(SETUP_FILE, storage):
        if not storage.exists(SETUP_FILE):
            return  # Some experiments have no such file, such as simulated ones.
    entry = TunerFile.read(storage).entries.get("tune_config.search_alg", {})
    searcher = entry.get("limits") or entry.get("type") or entry.get("value")
    if searcher not in _LEARN_NOTHING:
        raise ConfigError(
            f"experiment must have random, quasi-random or grid search, got {searcher!r}, which learns "
            "from results: under another scheduler it would have suggested other configurations. "
            "Replay an experiment with random search, or give ignore_searcher=True (--ignore-searcher) to "
            "replay these configurations as if they had been drawn at random."
        )
