"""The class API: `Trainable`, the base class of the users' own trainables."""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

from dasktune.errors import ConfigError
from dasktune.storage.checkpoints.checkpoint import DICT_FILE, Checkpoint, dict_files
from dasktune.storage.fs.unpickling import loads
from dasktune.trainable.api.session import TrialInfo, current_context
from dasktune.trainable.reporting.auto_metrics import AutoMetrics
from dasktune.trainable.reporting.plain_metrics import plain_metrics
from dasktune.trial.resources import PlacementGroupFactory

#: Key of the counters in the metadata of a checkpoint.
_METADATA_KEY = "dasktune"


class Trainable(ABC):
    """A model that is trained step by step; derive from it and override the hooks.

    Only :meth:`step` is required; override :meth:`save_checkpoint` and :meth:`load_checkpoint`
    together. It also works without a tuning run: build it and call :meth:`train`, :meth:`save`,
    :meth:`restore` and :meth:`stop`.

    Parameters
    ----------
    config : dict, optional
        The configuration; also available as ``self.config``.

    Examples
    --------
    >>> class Halving(Trainable):
    ...     def setup(self, config):
    ...         self.loss = config["loss"]
    ...
    ...     def step(self):
    ...         self.loss /= 2
    ...         return {"loss": self.loss}
    >>> model = Halving({"loss": 8.0})
    >>> result = model.train()
    >>> result["loss"], result["training_iteration"]
    (4.0, 1)
    """

    #: The resources that :func:`~dasktune.trainable.api.binding.with_resources` attached.
    attached_resources: ClassVar[Any] = None
    #: The objects that :func:`~dasktune.trainable.api.binding.with_parameters` bound to this class.
    bound_parameters: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config: dict[str, Any] = {} if config is None else config
        self._context = current_context()
        self._autofill = AutoMetrics(self.trial_id or "default")
        self._last_result: dict[str, Any] = {}
        #: Returns whether the trial waits for a decision at a result; None if it may wait at each.
        self._awaits: Callable[[Mapping[str, Any]], bool] | None = None
        self.setup(self.config)

    # Hooks, in the order in which they are called.

    def setup(self, config: dict[str, Any]) -> None:  # noqa: B027 - an optional hook
        """Build the model. Called once, before anything else."""

    @abstractmethod
    def step(self) -> dict[str, Any]:
        """Train for one iteration and return its metrics.

        ``done=True`` in them ends the trial; ``should_checkpoint=True`` saves a checkpoint now.
        """

    def log_result(self, result: dict[str, Any]) -> None:  # noqa: B027 - an optional hook
        """Log a result on the worker, with the auto-filled fields, before it is sent."""

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Save the state that :meth:`load_checkpoint` loads.

        Parameters
        ----------
        checkpoint_dir : str
            An empty local directory.

        Returns
        -------
        dict, None or str
            A dict to be pickled, or None (or `checkpoint_dir`) if you wrote files there.
        """
        raise NotImplementedError(_missing(self, "save_checkpoint"))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load the state that :meth:`save_checkpoint` saved.

        Parameters
        ----------
        checkpoint : dict or str
            The dict that :meth:`save_checkpoint` returned, or a local directory with the files that
            it wrote; do not change them.
        """
        raise NotImplementedError(_missing(self, "load_checkpoint"))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Reset this object for a trial with another configuration, if possible.

        Override it to use one object for several trials, if its setup is expensive. It is called
        instead of :meth:`setup`, after a trial that ended without a failure. A checkpoint is loaded
        afterwards. It must undo all changes of the last trial.

        Returns
        -------
        bool
            True if this object is ready for another trial. With False, the default, this
            object is cleaned up and a new one is built.
        """
        return False

    def cleanup(self) -> None:  # noqa: B027 - an optional hook
        """Release what :meth:`setup` acquired. Called once, also after a failure or a stop."""

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Write the model in these formats; return ``{format: path}``."""
        return {}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | None:
        """Return the resources of a trial with this configuration; None if the user decides."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """Return a hint for the message that the cluster's resources do not suffice.

        Parameters
        ----------
        config : dict
            The search space, with its domains.
        """
        return ""

    # Methods that dasktune calls; you may call them without a tuning run.

    def train(self) -> dict[str, Any]:
        """Do one step and return its result with the auto-filled fields.

        Raises
        ------
        ConfigError
            If :meth:`step` returned anything but a dict of plain data.
        """
        started = time.monotonic()
        metrics = self.step()
        elapsed = time.monotonic() - started
        result = self._autofill(plain_metrics(metrics, "what step() returns"), elapsed)
        self._last_result = result
        self.log_result(result)
        return result

    def train_buffered(self, buffer_time_s: float, max_buffer_length: int = 1000) -> list[dict[str, Any]]:
        """Do several steps, without a tuning run; on a cluster results are streamed anyway.

        Parameters
        ----------
        buffer_time_s : float
            Seconds after which no further step is started.
        max_buffer_length : int, default=1000
            Largest number of steps.

        Returns
        -------
        list of dict
            At least one result. A result with ``done`` or ``should_checkpoint`` is the last one.
        """
        end = time.monotonic() + buffer_time_s
        results = [self.train()]
        while len(results) < max_buffer_length and time.monotonic() < end:
            if results[-1].get("done") or results[-1].get("should_checkpoint"):
                break
            results.append(self.train())
        return results

    def get_auto_filled_metrics(self) -> dict[str, Any]:
        """Return the auto-filled fields that a result would get now, without counting a result."""
        filled = copy(self._autofill)({}, 0.0)
        since = filled["iterations_since_restore"] - 1
        own = {"training_iteration": self.iteration, "iterations_since_restore": since}
        return {**filled, **own}

    def save(self, checkpoint_dir: str | None = None) -> Checkpoint:
        """Save a checkpoint in a local directory.

        Parameters
        ----------
        checkpoint_dir : str, optional
            The directory; by default a new temporary one, which the caller deletes.

        Raises
        ------
        ConfigError
            If :meth:`save_checkpoint` returned another path.
        """
        directory = checkpoint_dir or tempfile.mkdtemp(prefix="dasktune-checkpoint-")
        os.makedirs(directory, exist_ok=True)
        returned = self.save_checkpoint(directory)
        if isinstance(returned, Mapping):
            for name, content in dict_files(returned).items():
                Path(directory, name).write_bytes(content)
        elif returned is not None and not _is_same(returned, directory):
            raise ConfigError(
                f"what save_checkpoint() returns must be a dict, None or the directory that it was "
                f"given, got {returned!r}. Write the files into that directory."
            )
        checkpoint = Checkpoint.from_directory(directory)
        checkpoint.update_metadata({_METADATA_KEY: self._autofill.state()})
        return checkpoint

    def restore(
        self, checkpoint: Checkpoint | str | os.PathLike[str], metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Load a checkpoint, and continue the counters from it.

        Parameters
        ----------
        checkpoint : Checkpoint, str or path-like
            The checkpoint of :meth:`save`, or its directory.
        metrics : mapping, optional
            The checkpoint's result, from which the counters continue; by default the counters that
            :meth:`save` stored.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        noted = checkpoint.get_metadata().get(_METADATA_KEY, {}) if metrics is None else metrics
        with checkpoint.as_directory() as directory:
            pickled = Path(directory, DICT_FILE)
            if pickled.is_file():
                self.load_checkpoint(loads(pickled.read_bytes()))
            else:
                self.load_checkpoint(directory)
        self._autofill.restore(noted)

    def reset(self, new_config: dict[str, Any]) -> bool:
        """Prepare for another trial; False if :meth:`reset_config` returns False."""
        before = self._context, self._autofill, self._last_result
        # In `reset_config` the user's code already sees the new trial.
        self._context = current_context()
        self._autofill = AutoMetrics(self.trial_id or "default")
        self._last_result = {}
        if not self.reset_config(new_config):
            self._context, self._autofill, self._last_result = before
            return False
        self.config = new_config
        return True

    def stop(self) -> None:
        """Release what the object has acquired: calls :meth:`cleanup`."""
        self.cleanup()

    def export_model(self, export_formats: str | list[str], export_dir: str) -> dict[str, str]:
        """Write the model to a local directory in these formats; return ``{format: path}``."""
        formats = [export_formats] if isinstance(export_formats, str) else export_formats
        os.makedirs(export_dir, exist_ok=True)
        return self._export_model(formats, export_dir)

    @property
    def can_save(self) -> bool:
        """Whether :meth:`save_checkpoint` has been overridden."""
        return type(self).save_checkpoint is not Trainable.save_checkpoint

    @property
    def can_reset(self) -> bool:
        """Whether :meth:`reset_config` has been overridden."""
        return type(self).reset_config is not Trainable.reset_config

    @property
    def iteration(self) -> int:
        """``training_iteration`` of the last result, 0 before the first."""
        return self._autofill.iteration

    @property
    def training_iteration(self) -> int:
        """The same as :attr:`iteration`."""
        return self._autofill.iteration

    @property
    def trial_id(self) -> str | None:
        """The trial's id; None outside of a trial."""
        return None if self._context is None else self._context.get_trial_id()

    @property
    def trial_name(self) -> str | None:
        """The trial's name; None outside of a trial."""
        return None if self._context is None else self._context.get_trial_name()

    @property
    def trial_resources(self) -> PlacementGroupFactory | None:
        """The trial's resources; None outside of a trial."""
        return None if self._context is None else self._context.get_trial_resources()

    @property
    def trial_info(self) -> TrialInfo | None:
        """Names and resources of the trial as one value; None outside of a trial."""
        return None if self._context is None else self._context.trial_info

    @property
    def logdir(self) -> str | None:
        """The trial's directory, a path or a URL; None outside of a trial."""
        return None if self._context is None else self._context.get_trial_dir()

    def is_milestone(self, result: Mapping[str, Any] | None = None) -> bool:
        """Whether the trial will wait for a decision at a result.

        Use it in :meth:`step` to compute an expensive metric, such as a validation score, only for
        the results that need it. A scheduler without milestones decides at each result.

        Parameters
        ----------
        result : mapping, optional
            The known fields of the result; by default the ``training_iteration`` of the next one.

        Returns
        -------
        bool
            Always True outside of a trial.

        Examples
        --------
        >>> class Slow(Trainable):
        ...     def step(self):
        ...         return {"score": 0.5} if self.is_milestone() else {}
        >>> Slow().train()["score"]
        0.5
        """
        if self._awaits is None:
            return True
        return self._awaits({"training_iteration": self.iteration + 1} if result is None else result)

    def tell_milestones(self, judged: Callable[[Mapping[str, Any]], bool]) -> None:
        """Set the function behind :meth:`is_milestone`; dasktune calls it before the first step.

        Parameters
        ----------
        judged : callable
            Returns whether the trial will wait for a decision at a result.
        """
        self._awaits = judged

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return self.config

    def get_state(self) -> dict[str, Any]:
        """Return the counters and the last result."""
        return {**self._autofill.state(), "last_result": self._last_result}


def _missing(trainable: Trainable, hook: str) -> str:
    return f"{type(trainable).__name__} has no {hook}(): override it to use checkpoints"


def _is_same(returned: object, directory: str) -> bool:
    is_path = isinstance(returned, str | os.PathLike)
    return is_path and os.path.realpath(str(returned)) == os.path.realpath(directory)
