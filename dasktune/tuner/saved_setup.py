"""The configuration of an experiment as ``tuner.json`` stores it for a later driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.config.found_past import FoundPast
from dasktune.errors import StorageError, without_passwords
from dasktune.experiment import ExperimentMachine
from dasktune.runner.build import build_experiment
from dasktune.schedulers import TrialScheduler
from dasktune.search import ConcurrencyLimiter
from dasktune.storage.experiment.tuner_json import TunerFile, entries_of

logger = logging.getLogger(__name__)

#: Fields that are not stored, because the experiment's directory may be moved.
_LOCATION_FIELDS: Final = frozenset({"if_exists", "name", "storage_path", "storage_options"})

#: All fields that are not stored. Each driver chooses how to show progress.
_UNSTORED_FIELDS: Final = _LOCATION_FIELDS | {"progress_reporter"}

#: The fields of RunConfig whose values are configurations themselves.
_NESTED_CONFIGS: Final = {"checkpoint_config": CheckpointConfig, "failure_config": FailureConfig}


def setup_of(tune_config: TuneConfig, run_config: RunConfig, param_space: Mapping[str, Any]) -> TunerFile:
    """Return the entries of ``tuner.json``: the whole configuration, without the trainable.

    Call it before the searcher and the scheduler are used: they are pickled in their present state,
    and a later driver must get them in their initial one.

    Parameters
    ----------
    tune_config, run_config : TuneConfig, RunConfig
        The configuration.
    param_space : mapping
        The search space.
    """
    values: dict[str, Any] = {"param_space": dict(param_space)}
    for prefix, config in (("tune_config", tune_config), ("run_config", run_config)):
        values.update(_flat(prefix, config))
    entries = entries_of(values)
    scheduler = tune_config.scheduler
    if isinstance(scheduler, TrialScheduler):
        # What reads the file for people unpickles nothing.
        entries["tune_config.scheduler"]["text"] = repr(scheduler)
    if isinstance(tune_config.learn_from, FoundPast):
        entries["tune_config.learn_from"]["text"] = tune_config.learn_from.text
    if isinstance(tune_config.search_alg, ConcurrencyLimiter):
        entries["tune_config.search_alg"]["limits"] = type(tune_config.search_alg.searcher).__qualname__
    return TunerFile(entries)


def _flat(prefix: str, config: Any) -> Iterator[tuple[str, Any]]:
    for one in fields(config):
        value = getattr(config, one.name)
        if one.name in _NESTED_CONFIGS:
            yield from _flat(f"{prefix}.{one.name}", value)
        elif one.name == "callbacks":
            yield f"{prefix}.callbacks", len(value or ())
            # An entry for each: if one cannot be unpickled, the others still can.
            yield from ((f"{prefix}.callbacks.{n}", x) for n, x in enumerate(value or ()))
        elif one.name == "restore" and value is not None:
            # The path alone, because a Checkpoint may hold credentials. A later driver reads the
            # copy in the experiment's directory anyway.
            yield f"{prefix}.restore", without_passwords(str(getattr(value, "path", value)))
        elif one.name not in _UNSTORED_FIELDS:
            yield f"{prefix}.{one.name}", value


class SavedSetup:
    """The stored configuration, with replacements for stored objects that cannot be unpickled.

    Parameters
    ----------
    file : TunerFile
        The stored configuration.
    tune_config, run_config : TuneConfig, RunConfig, optional
        The user's new configurations. Their fields replace stored objects that cannot be
        unpickled, and a new `run_config` replaces all stored callbacks.
    param_space : mapping, optional
        A new search space; by default the stored one.
    """

    def __init__(
        self,
        file: TunerFile,
        tune_config: TuneConfig | None,
        run_config: RunConfig | None,
        param_space: Mapping[str, Any] | None,
    ) -> None:
        self._file = file
        self._given = {"tune_config": tune_config, "run_config": run_config}
        self._param_space = param_space

    def configs(self) -> tuple[TuneConfig, RunConfig, Mapping[str, Any]]:
        """Return the configuration, with freshly unpickled objects."""
        tune = TuneConfig(**self._fields(TuneConfig, "tune_config"))
        run = RunConfig(**self._fields(RunConfig, "run_config"))
        space = self._param_space
        if space is None:
            space = self._load("param_space", None, "param_space=")
        return tune, run, space

    def build(self) -> ExperimentMachine:
        """Return the experiment in its initial state."""
        return build_experiment(*self.configs())

    def _fields(self, kind: Any, prefix: str) -> dict[str, Any]:
        given = self._given[prefix.partition(".")[0]]
        values = {}
        for one in fields(kind):
            if one.name in _LOCATION_FIELDS:
                continue
            name = f"{prefix}.{one.name}"
            if one.name in _NESTED_CONFIGS:
                nested = _NESTED_CONFIGS[one.name]
                values[one.name] = nested(**self._fields(nested, name))
            elif one.name == "progress_reporter":
                values[one.name] = getattr(given, one.name, None)
            elif one.name == "callbacks":
                values[one.name] = [] if given is not None else list(self._callbacks(name))
            elif name in self._file.entries:  # else an older version wrote it: the default applies
                values[one.name] = self._load(name, given, f"{prefix.partition('.')[0]}=")
        return values

    def _callbacks(self, name: str) -> Iterator[Any]:
        """Yield the callbacks that can be unpickled. An experiment resumes without the others."""
        for number in range(self._load(name, None, "run_config=")):
            try:
                yield self._file.load(f"{name}.{number}")
            except StorageError as error:
                logger.warning("%s; give run_config= to resume with this callback", error)

    def _load(self, name: str, given: Any, argument: str) -> Any:
        try:
            return self._file.load(name)
        except StorageError as error:
            if given is None:
                raise StorageError(f"{error}. Give {argument} to Tuner.restore().") from error
            logger.warning("%s; using the value in %s instead", error, argument)
        for part in name.split(".")[1:]:
            given = getattr(given, part)
        return given
