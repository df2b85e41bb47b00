"""A checker of histories: what an experiment that has ended must have left, whatever happened.

It reads the results, the journal and the storage of the experiment, and compares them with each
other and with a run that nothing disturbs. Each function returns violations instead of raising at
the first one, because the kinds of violations that come together show the cause.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dasktune.config.resume_config import ResumeConfig
from dasktune.errors import StorageError
from dasktune.experiment import ExperimentMachine
from dasktune.runner.replay import event_of
from dasktune.storage.checkpoints.checkpoint_store import MANIFEST_FILE, CheckpointStore
from dasktune.storage.checkpoints.manifest import Manifest
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.probe import STALE, remove_stale_files
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import Suggested
from dasktune.trial.journal_codec import journal_record
from dasktune.trial.trial import Trial
from dasktune.tuner.restore import restore_experiment
from dasktune.tuner.saved_setup import SavedSetup

Row = Mapping[str, Any]
Record = Mapping[str, Any]

#: Files that an experiment may have besides the checkpoints that its trials refer to.
_KNOWN_FILES: Final = re.compile(
    r"experiment\.json|tuner\.json|journal/[0-9]+-[0-9]+\.jsonl|snapshots/[0-9]+-[0-9]+\.jsonl"
    r"|driver/[^./][^/]*|trials/[^./][^/]*/(params\.json|params\.pkl|error\.txt|\.incarnation(-[0-9]+)?)"
)
#: Files of a checkpoint that its manifest does not name.
_UNLISTED: Final = frozenset({MANIFEST_FILE, ".dasktune-writer", ".metadata.json"})


@dataclass(frozen=True)
class Violation:
    """Something that must not be.

    Parameters
    ----------
    kind : str
        The rule that is broken.
    where : str
        A trial, a file or a record.
    what : str
        What was found.
    """

    kind: str
    where: str
    what: str


def check_iterations(trial_id: str, rows: Sequence[Row]) -> Iterator[Violation]:
    """Each ``training_iteration`` from 1 to the last is there exactly once, in order."""
    found = [row.get("training_iteration") for row in rows]
    if found != list(range(1, len(rows) + 1)):
        yield Violation("iterations", trial_id, f"{found}")


def check_rows(
    trial_id: str, rows: Sequence[Row], undisturbed: Sequence[Row], complete: bool = True
) -> Iterator[Violation]:
    """The rows have the values of a run that nothing disturbs.

    Parameters
    ----------
    trial_id : str
        The trial.
    rows : sequence of mapping
        Its results.
    undisturbed : sequence of mapping
        The metrics that its trainable reports if nothing happens. Other metrics are not compared.
    complete : bool, default=True
        Whether all rows must be there; if not, the last ones may be missing.
    """
    if len(rows) > len(undisturbed) or (complete and len(rows) < len(undisturbed)):
        yield Violation("rows", trial_id, f"{len(rows)} rows instead of {len(undisturbed)}")
    for number, (row, wanted) in enumerate(zip(rows, undisturbed, strict=False), 1):
        found = {name: row.get(name) for name in wanted}
        if found != dict(wanted):
            yield Violation("rows", trial_id, f"row {number} is {found} instead of {dict(wanted)}")


def check_journal(records: Iterable[Record], compared: Callable[[Row], Any]) -> Iterator[Violation]:
    """A trial ends once and resumes from its newest checkpoint; repeated results are equal.

    The newest checkpoint is the newest one that is kept, and that no start has found damaged.

    Parameters
    ----------
    records : iterable of mapping
        The journal.
    compared : callable
        Returns the part of a result's metrics that does not depend on time and place.
    """
    kept = _Kept()
    ends: Counter[str] = Counter()
    values: dict[tuple[str, int], Any] = {}
    for number, record in enumerate(records, 1):
        trial_id, where = record.get("trial_id", ""), f"record {number}"
        if record["event"] == "ResultReported":
            iteration = record["metrics"]["training_iteration"]
            first = values.setdefault((trial_id, iteration), compared(record["metrics"]))
            if first != compared(record["metrics"]):
                text = f"{trial_id} at {iteration}: {first} and {compared(record['metrics'])}"
                yield Violation("repeated result", where, text)
            if (saved := record.get("checkpoint")) and saved["iteration"] != iteration:
                text = f"{saved['path']} of iteration {saved['iteration']} came with result {iteration}"
                yield Violation("checkpoint", where, text)
        if record["event"] == "TrialEnded":
            ends[trial_id] += 1
            if ends[trial_id] > 1:
                yield Violation("second end", where, trial_id)
        kept.note_event(record)
        for action in record.get("actions", ()):
            if text := kept.note_action(action):
                yield Violation("step back", where, text)


class _Kept:
    """The checkpoints of each trial that are kept, and that no start has found damaged."""

    def __init__(self) -> None:
        #: ``{trial: {path: iteration}}``
        self._iterations: defaultdict[str, dict[str, int]] = defaultdict(dict)
        #: The last start of each trial. What an earlier one reports does not count.
        self._starts: Counter[str] = Counter()

    def note_event(self, record: Record) -> None:
        trial_id = record.get("trial_id", "")
        if record.get("incarnation", 0) != self._starts[trial_id]:
            return
        if saved := record.get("checkpoint"):
            self._iterations[trial_id][saved["path"]] = saved["iteration"]
        if record["event"] == "RestoreFailed":
            self._iterations[trial_id].pop(record["path"], None)

    def note_action(self, action: Mapping[str, Any]) -> str:
        """Return what is wrong with a start; empty if nothing is."""
        trial_id = action.get("trial_id", "")
        if action["do"] == "DeleteCheckpoint":
            self._iterations[trial_id].pop(action["checkpoint"]["path"], None)
        if action["do"] not in ("StartTrial", "RestoreTrial"):
            return ""
        self._starts[trial_id] = action["incarnation"]
        start = action.get("checkpoint") or {} if action["do"] == "RestoreTrial" else {}
        begins, newest = start.get("iteration", 0), max(self._iterations[trial_id].values(), default=0)
        return "" if begins == newest else f"{trial_id} resumes at {begins} and has a checkpoint at {newest}"


def check_replay(records: Iterable[Record], experiment: ExperimentMachine) -> Iterator[Violation]:
    """The events lead to the recorded actions again, from the start and without a snapshot.

    Parameters
    ----------
    records : iterable of mapping
        The journal.
    experiment : ExperimentMachine
        The experiment in its initial state. It decides by itself: recorded decisions do not count.
    """
    for number, record in enumerate(records, 1):
        event = event_of(record)
        if isinstance(event, Suggested) and experiment.search.answers_at_once:
            answer = experiment.search.next_trial(event.trial_id)
            event = replace(event, config=answer.config)
        actions = experiment.handle(event).actions
        trial = experiment.trials.get(getattr(event, "trial_id", ""))
        again = decode(encode(journal_record(event, actions, trial)))
        # As text, because NaN is not equal to itself.
        if repr(again) != repr(dict(record)):
            yield Violation("replay", f"record {number}", f"{again} instead of {dict(record)}")
            return  # all that follows differs, too


def check_files(storage: Storage, trials: Iterable[Trial]) -> Iterator[Violation]:
    """The storage holds the checkpoints that trials refer to, whole, and no unknown file."""
    found = set(storage.find())
    known: set[str] = set()
    for trial in trials:
        for record in trial.kept_checkpoints:
            if f"{record.path}/{MANIFEST_FILE}" not in found:
                yield Violation("missing checkpoint", trial.trial_id, record.path)
                continue
            known |= {name for name in found if name.startswith(f"{record.path}/")}
            yield from _check_checkpoint(storage, trial.trial_id, record, found)
    for name in sorted(found - known):
        if _KNOWN_FILES.fullmatch(name) is None:
            yield Violation("stray file", name, "")


def _check_checkpoint(
    storage: Storage, trial_id: str, record: CheckpointRecord, found: set[str]
) -> Iterator[Violation]:
    try:
        content = storage.read_bytes(f"{record.path}/{MANIFEST_FILE}")
        manifest = Manifest.decode(content, record.path)
        CheckpointStore(storage).load(record)
    except StorageError as error:
        yield Violation("damaged checkpoint", trial_id, f"{record.path}: {error}")
        return
    if manifest.iteration != record.iteration:
        text = f"{record.path} is of iteration {manifest.iteration} instead of {record.iteration}"
        yield Violation("checkpoint", trial_id, text)
    listed = {f"{record.path}/{name}" for name in {*manifest.files, *_UNLISTED}}
    for name in sorted(found - listed):
        if name.startswith(f"{record.path}/"):
            yield Violation("stray file", name, "the manifest does not name it")


def check_contents(
    storage: Storage, trials: Iterable[Trial], iteration_in: Callable[[Any], int]
) -> Iterator[Violation]:
    """What a checkpoint holds is of the iteration that its record names.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    trials : iterable of Trial
        The trials.
    iteration_in : callable
        Returns the iteration that the content of a checkpoint, a dict, belongs to.
    """
    for trial in trials:
        for record in trial.checkpoints:
            try:
                content = CheckpointStore(storage).load(record).to_dict()
            except StorageError:
                continue  # `check_files` reports it
            if iteration_in(content) != record.iteration:
                text = f"{record.path} of iteration {record.iteration} holds {content}"
                yield Violation("checkpoint", trial.trial_id, text)


def check_experiment(
    storage: Storage,
    trials: Iterable[Trial],
    undisturbed: Callable[[dict[str, Any]], Sequence[Row]],
    iteration_in: Callable[[Any], int],
) -> list[Violation]:
    """Return all violations of an experiment that has ended.

    Parameters
    ----------
    storage : Storage
        The experiment's directory, reached by a line without faults.
    trials : iterable of Trial
        The trials as they were restored, after the last driver.
    undisturbed : callable
        Returns for a configuration the metrics that a run without faults reports.
    iteration_in : callable
        As for :func:`check_contents`.
    """
    trials = list(trials)
    names = {name for trial in trials for row in undisturbed(trial.config) for name in row}
    records = list(read_journal(storage))
    violations: list[Violation] = []
    for trial in trials:
        rows = undisturbed(trial.config)
        if trial.public_status.value != "TERMINATED":
            told = f"{trial.public_status.value}: {trial.reason} {trial.error}"
            violations.append(Violation("status", trial.trial_id, told))
        violations += check_iterations(trial.trial_id, trial.history)
        violations += check_rows(trial.trial_id, trial.history, rows, not trial.stopped_early)
    violations += check_journal(records, lambda metrics: {name: metrics.get(name) for name in names})
    violations += check_replay(records, SavedSetup(TunerFile.read(storage), None, None, None).build())
    violations += check_contents(storage, trials, iteration_in)
    violations += check_files(storage, trials)
    return violations


def check_ended(
    storage: Storage,
    undisturbed: Callable[[dict[str, Any]], Sequence[Row]],
    iteration_in: Callable[[Any], int],
) -> list[Violation]:
    """Return all violations of an experiment that the next driver would find.

    Parameters
    ----------
    storage : Storage
        The experiment's directory, reached by a line without faults.
    undisturbed, iteration_in
        As for :func:`check_experiment`.
    """
    # A driver deletes what killed processes left when it is old enough.
    remove_stale_files(storage, clock=lambda: time.time() + 2 * STALE)
    given = {"tune_config": None, "run_config": None, "param_space": None}
    restored = restore_experiment(storage, resume=ResumeConfig(), **given)
    return check_experiment(storage, restored.experiment.trials.values(), undisturbed, iteration_in)
