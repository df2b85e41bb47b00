"""The experiments that a search learns from, read from their directories."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import inf
from typing import Any, Final

from dasktune.config import RunConfig, TuneConfig
from dasktune.config.found_past import FoundPast, is_unread, places_of
from dasktune.errors import ConfigError, StorageError, TuneError, check
from dasktune.results.journal_trials import load_last_results, retention_of
from dasktune.results.result import Result
from dasktune.search import Searcher, SearchGenerator, WarmStart
from dasktune.search.warm.copula_prior import require_sklearn
from dasktune.search.warm.past_experiments import PastExperiment
from dasktune.search.warm.past_selection import FoundExperiment, WantedPast, select_past
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.experiment.experiments_below import experiments_below
from dasktune.storage.fs.storage import Storage, protocol_of
from dasktune.trial.metrics import Metric, Modes

logger = logging.getLogger(__name__)

#: The number of levels of directories below a place that are searched, as by ``dasktune ls``.
_DEPTH: Final = 2


def with_past(
    tune_config: TuneConfig,
    run_config: RunConfig,
    param_space: Mapping[str, Any],
    *,
    trainable: str,
    code: str | None,
) -> TuneConfig:
    """Return a configuration whose searcher has learned from the experiments that were found.

    Without ``learn_from``, and if its places were read before, the configuration is returned as it
    is. Call it before the configuration is stored, because a restored search must learn from the
    same data even if those experiments have changed or are gone.

    Parameters
    ----------
    tune_config, run_config : TuneConfig, RunConfig
        The configuration. The storage options apply to places of the protocol of ``storage_path``.
    param_space : mapping
        The search space.
    trainable : str
        The name of the trainable.
    code : str or None
        Where the trainable is defined, if that is known.

    Raises
    ------
    ConfigError
        If the trainable has no name, the space cannot be searched, scikit-learn is missing, or a
        place is no path or URL.
    StorageError
        If a place cannot be read.
    """
    given = tune_config.learn_from
    if not is_unread(given):
        return tune_config
    hint = "Later experiments find it by its name: define the function with `def`."
    check(trainable != "lambda", "trainable", "a function with a name for learn_from", "<lambda>", hint)
    require_sklearn()
    metric, mode = tune_config.single_goal
    # The configuration has checked that there is one metric.
    assert metric is not None
    assert mode is not None
    wanted = WantedPast.of(param_space, trainable=trainable, code=code, metric=metric, mode=mode)
    storages, found = {}, []
    for place in given if isinstance(given, list | tuple) else [given]:
        for storage in experiments_below(_storage(place, run_config), _DEPTH):
            # An experiment may be below several places.
            if storage.url not in storages:
                storages[storage.url] = storage
                found.append(_found(storage))

    def read(one: FoundExperiment) -> PastExperiment:
        try:
            return PastExperiment.of(read_experiment_in(storages[one.url]), one.name)
        except TuneError as error:
            _log_unreadable(storages[one.url], error)
            raise

    selection, places = select_past(found, wanted, read), places_of(given)
    text = selection.text(places)
    logger.info("%s", text)
    searcher = WarmStart(list(selection.past.values())) if selection.past else None
    return replace(tune_config, learn_from=FoundPast(places, text), search_alg=searcher)


def _storage(place: str | os.PathLike[str], run_config: RunConfig) -> Storage:
    same = protocol_of(os.fspath(place)) == protocol_of(run_config.storage_url)
    try:
        return Storage(place, (run_config.storage_options or {}) if same else {})  # type: ignore[arg-type]
    except ConfigError as error:
        # The user has given it by another name.
        raise ConfigError(str(error).replace("storage_path", "learn_from", 1)) from None


def _found(storage: Storage) -> FoundExperiment:
    spec = None
    try:
        spec = ExperimentStore(storage).spec()
    except StorageError as error:
        _log_unreadable(storage, error)
    # Of a URL without a path this is the host, before which there may be a password.
    name = str(storage).rstrip("/").rpartition("/")[2]
    return FoundExperiment(name, storage.url, spec, _created(spec))


def _created(spec: Mapping[str, Any] | None) -> float:
    """Return when an experiment began, in seconds since 1970; minus infinity if that is unknown."""
    with suppress(LookupError, TypeError, ValueError, OverflowError):
        created = datetime.fromisoformat((spec or {})["created"])
        # dasktune writes a time zone; without one, the result must not depend on this machine's.
        return (created if created.tzinfo else created.replace(tzinfo=timezone.utc)).timestamp()
    return -inf


def _log_unreadable(storage: Storage, error: TuneError) -> None:
    logger.info("nothing is learned from %s, which cannot be read: %s", storage, error)


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
