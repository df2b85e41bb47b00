"""Earlier experiments that a searcher learns from, read from their directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dasktune.results.journal_trials import load_last_results, retention_of
from dasktune.results.result import Result
from dasktune.search import Searcher, SearchGenerator
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.trial.metrics import Metric, Modes


@dataclass(frozen=True, slots=True)
class EarlierExperiment:
    """An experiment as :meth:`dasktune.search.Searcher.read_past` gets it.

    Parameters
    ----------
    trials : sequence of Result
        The results of its trials. A ``history`` has the last result only, and there are no
        checkpoints: the journal may be much larger than the memory.
    default_metric, default_mode : optional
        What it optimised.
    """

    trials: Sequence[Result]
    default_metric: Metric
    default_mode: Modes


def read_earlier_experiments(search_alg: object) -> None:
    """Let a searcher read the experiments that it was given by their paths.

    Call it before the searcher is stored, because a restored search must learn from the same data
    even if those experiments have changed or are gone.

    Parameters
    ----------
    search_alg : object
        The value of ``TuneConfig(search_alg=...)``.

    Raises
    ------
    StorageError
        If there is no experiment at a path, or its journal is damaged.
    """
    searcher = search_alg.searcher if isinstance(search_alg, SearchGenerator) else search_alg
    if isinstance(searcher, Searcher):
        searcher.read_past(_read)


def _read(path: str) -> EarlierExperiment:
    return read_experiment_in(Storage(path, {}))


def read_experiment_in(storage: Storage) -> EarlierExperiment:
    """Read an experiment, which may be running, without unpickling anything.

    Parameters
    ----------
    storage : Storage
        Its directory.

    Raises
    ------
    StorageError
        If there is no experiment, or it is damaged.
    """
    store = ExperimentStore(storage)
    spec = store.spec()
    kept, base = retention_of(storage), storage.url.rstrip("/")
    results = [
        Result.from_trial(trial, f"{base}/trials/{trial.folder}", store.checkpoints.load, kept, storage)
        for trial in load_last_results(storage)
    ]
    return EarlierExperiment(results, spec.get("metric"), spec.get("mode"))
