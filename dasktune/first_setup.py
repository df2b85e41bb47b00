"""What an experiment was set up with: kept for a later driver, and read by it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import StorageError, without_passwords
from dasktune.experiment import Experiment
from dasktune.runner.build import build_experiment
from dasktune.storage.setup_file import SetupFile, packed

__all__ = ["FirstSetup", "setup_of"]

logger = logging.getLogger(__name__)

#: Where an experiment is kept may change, and is not written into it.
_PLACE: Final = frozenset({"name", "storage_path", "storage_options"})

#: How it is shown is no part of it either.
_UNWRITTEN: Final = _PLACE | {"progress_reporter"}

_PARTS: Final = {"checkpoint_config": CheckpointConfig, "failure_config": FailureConfig}


def setup_of(
    tune_config: TuneConfig, run_config: RunConfig, param_space: Mapping[str, Any]
) -> SetupFile:
    """Return what a later driver needs to go on, but for the trainable.

    To be called before anything was asked of the user's objects, as they are written as they are.

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
    return SetupFile(packed(values))


def _flat(prefix: str, config: Any) -> Iterator[tuple[str, Any]]:
    for one in fields(config):
        value = getattr(config, one.name)
        if is_dataclass(value):
            yield from _flat(f"{prefix}.{one.name}", value)
        elif one.name == "callbacks":
            yield f"{prefix}.callbacks", len(value or ())
            # One that no longer loads must not take the others along.
            yield from ((f"{prefix}.callbacks.{n}", x) for n, x in enumerate(value or ()))
        elif one.name == "restore" and value is not None:
            # It has been copied when this is read. A Checkpoint may hold credentials.
            yield f"{prefix}.restore", without_passwords(str(getattr(value, "path", value)))
        elif one.name not in _UNWRITTEN:
            yield f"{prefix}.{one.name}", value


class FirstSetup:
    """What an experiment was set up with, the user's new objects in the place of lost ones.

    Parameters
    ----------
    file : SetupFile
        What was kept.
    tune_config, run_config : TuneConfig, RunConfig, optional
        What it is to go on with; by default as it was begun.
    param_space : mapping, optional
        Likewise.
    """

    def __init__(
        self,
        file: SetupFile,
        tune_config: TuneConfig | None,
        run_config: RunConfig | None,
        param_space: Mapping[str, Any] | None,
    ) -> None:
        self._file = file
        self._given = {"tune_config": tune_config, "run_config": run_config}
        self._param_space = param_space

    def configs(self) -> tuple[TuneConfig, RunConfig, Mapping[str, Any]]:
        """Return the configuration, of objects that nobody has used yet."""
        tune = TuneConfig(**self._fields(TuneConfig, "tune_config"))
        run = RunConfig(**self._fields(RunConfig, "run_config"))
        space = self._param_space
        if space is None:
            space = self._load("param_space", None, "param_space=")
        return tune, run, space

    def build(self) -> Experiment:
        """Return the experiment as it was at its beginning."""
        return build_experiment(*self.configs())

    def _fields(self, kind: Any, prefix: str) -> dict[str, Any]:
        given = self._given[prefix.partition(".")[0]]
        values = {}
        for one in fields(kind):
            if one.name in _PLACE:
                continue
            name = f"{prefix}.{one.name}"
            if one.name in _PARTS:
                values[one.name] = _PARTS[one.name](**self._fields(_PARTS[one.name], name))
            elif one.name == "progress_reporter":
                values[one.name] = getattr(given, one.name, None)
            elif one.name == "callbacks":
                values[one.name] = [] if given is not None else list(self._callbacks(name))
            elif name in self._file.entries:  # else younger than the experiment: as by default
                values[one.name] = self._load(name, given, f"{prefix.partition('.')[0]}=")
        return values

    def _callbacks(self, name: str) -> Iterator[Any]:
        """Yield those that still load: an experiment can go on without any of them."""
        for number in range(self._load(name, None, "run_config=")):
            try:
                yield self._file.load(f"{name}.{number}")
            except StorageError as error:
                logger.warning("%s; give run_config= to go on with it", error)

    def _load(self, name: str, given: Any, argument: str) -> Any:
        try:
            return self._file.load(name)
        except StorageError as error:
            if given is None:
                raise StorageError(f"{error}. Give {argument} to Tuner.restore().") from error
            logger.warning("%s; that of %s is taken instead", error, argument)
        for part in name.split(".")[1:]:
            given = getattr(given, part)
        return given
