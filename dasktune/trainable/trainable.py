"""The class API: what users derive their own trainables from."""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle

from dasktune.errors import ConfigError
from dasktune.storage.checkpoint import DICT_FILE, Checkpoint, dict_files
from dasktune.trainable.autofill import Autofill
from dasktune.trainable.plain import plain_metrics
from dasktune.trainable.session import current_context
from dasktune.trainable.trial_info import TrialInfo
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Trainable"]

#: Where the counters are kept in the metadata of a checkpoint.
_METADATA_KEY = "dasktune"


class Trainable(ABC):
    """A model that is trained step by step; derive from it and override the hooks.

    :meth:`step` is the only one that must be there; :meth:`save_checkpoint` and
    :meth:`load_checkpoint` come as a pair. By itself, outside of a tuning run, it works too: build
    it and call :meth:`train`, :meth:`save`, :meth:`restore` and :meth:`stop`.

    Parameters
    ----------
    config : dict, optional
        The configuration; also there as ``self.config``.

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

    #: What :func:`~dasktune.trainable.interface.with_resources` attached.
    attached_resources: ClassVar[Any] = None
    #: What :func:`~dasktune.trainable.interface.with_parameters` bound to this very class.
    bound_parameters: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config: dict[str, Any] = {} if config is None else config
        self._context = current_context()
        self._autofill = Autofill(self.trial_id or "default")
        self._last_result: dict[str, Any] = {}
        #: Says which results are judged; None if all of them may be.
        self._judged: Callable[[Mapping[str, Any]], bool] | None = None
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
        """Look at a result on the worker, with the auto-filled fields, before it is sent."""

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Save what :meth:`load_checkpoint` needs.

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
        """Take up what :meth:`save_checkpoint` saved.

        Parameters
        ----------
        checkpoint : dict or str
            The dict that was returned, else a local directory with the files, to be read only.
        """
        raise NotImplementedError(_missing(self, "load_checkpoint"))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become a fresh model with another configuration, if you can.

        Override it to let one object serve one trial after the other, for what is expensive to
        set up. It is called in place of :meth:`setup`, after a trial that came to a good end; a
        checkpoint to go on from is loaded afterwards. What the last trial left must be undone here.

        Returns
        -------
        bool
            True if this object is ready for another trial. False, which is the default, has it
            cleaned up and a new one built.
        """
        return False

    def cleanup(self) -> None:  # noqa: B027 - an optional hook
        """Release what :meth:`setup` took. Called once, at the end, however that came."""

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Write the model in these formats; return ``{format: path}``."""
        return {}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | None:
        """Return what a trial with this configuration needs; None leaves it to the user."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """Return a hint that is added to what users are told when the resources do not suffice.

        Parameters
        ----------
        config : dict
            The search space, with its domains.
        """
        return ""

    # What dasktune, or you by hand, calls.

    def train(self) -> dict[str, Any]:
        """Do one step and return its result with the auto-filled fields.

        Raises
        ------
        ConfigError
            If :meth:`step` returned something that is no dict of plain data.
        """
        started = time.monotonic()
        metrics = self.step()
        elapsed = time.monotonic() - started
        result = self._autofill(plain_metrics(metrics, "what step() returns"), elapsed)
        self._last_result = result
        self.log_result(result)
        return result

    def train_buffered(
        self, buffer_time_s: float, max_buffer_length: int = 1000
    ) -> list[dict[str, Any]]:
        """Do steps for a while, by hand; on a cluster results stream by themselves.

        Parameters
        ----------
        buffer_time_s : float
            Seconds after which no further step is begun.
        max_buffer_length : int, default=1000
            How many steps at most.

        Returns
        -------
        list of dict
            At least one result. The last one ends them early if it says ``done`` or
            ``should_checkpoint``.
        """
        end = time.monotonic() + buffer_time_s
        results = [self.train()]
        while len(results) < max_buffer_length and time.monotonic() < end:
            if results[-1].get("done") or results[-1].get("should_checkpoint"):
                break
            results.append(self.train())
        return results

    def get_auto_filled_metrics(self) -> dict[str, Any]:
        """Return the fields that a result would get now, without counting one."""
        filled = copy(self._autofill)({}, 0.0)
        since = filled["iterations_since_restore"] - 1
        own = {"training_iteration": self.iteration, "iterations_since_restore": since}
        return {**filled, **own}

    def save(self, checkpoint_dir: str | None = None) -> Checkpoint:
        """Save a checkpoint in a local directory.

        Parameters
        ----------
        checkpoint_dir : str, optional
            Where; by default in a new temporary directory, which the caller deletes.

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
        self,
        checkpoint: Checkpoint | str | os.PathLike[str],
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Go on from a checkpoint.

        Parameters
        ----------
        checkpoint : Checkpoint, str or path-like
            What :meth:`save` returned, or its directory.
        metrics : mapping, optional
            The result that it belongs to, for the counters; by default what :meth:`save` noted.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        noted = checkpoint.get_metadata().get(_METADATA_KEY, {}) if metrics is None else metrics
        with checkpoint.as_directory() as directory:
            pickled = Path(directory, DICT_FILE)
            if pickled.is_file():
                self.load_checkpoint(cloudpickle.loads(pickled.read_bytes()))
            else:
                self.load_checkpoint(directory)
        self._autofill.restore(noted)

    def reset(self, new_config: dict[str, Any]) -> bool:
        """Prepare for another trial; False if :meth:`reset_config` says that it can not be done."""
        before = self._context, self._autofill, self._last_result
        # What the user calls there speaks of the new trial.
        self._context = current_context()
        self._autofill = Autofill(self.trial_id or "default")
        self._last_result = {}
        if not self.reset_config(new_config):
            self._context, self._autofill, self._last_result = before
            return False
        self.config = new_config
        return True

    def stop(self) -> None:
        """End it: calls :meth:`cleanup`."""
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
        """What the trial holds; None outside of a trial."""
        return None if self._context is None else self._context.get_trial_resources()

    @property
    def trial_info(self) -> TrialInfo | None:
        """Which trial it is, in one value; None outside of a trial."""
        return None if self._context is None else self._context.trial_info

    @property
    def logdir(self) -> str | None:
        """The trial's directory, a path or a URL; None outside of a trial."""
        return None if self._context is None else self._context.get_trial_dir()

    def is_milestone(self, result: Mapping[str, Any] | None = None) -> bool:
        """Whether the trial will wait for a decision at a result.

        In :meth:`step`: what only a decision needs, and takes long, such as a score on other data,
        can be left out of the results in between. A scheduler that states no milestones decides at
        each result.

        Parameters
        ----------
        result : mapping, optional
            What is known of the result; by default the ``training_iteration`` of the next one.

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
        if self._judged is None:
            return True
        return self._judged(
            {"training_iteration": self.iteration + 1} if result is None else result
        )

    def tell_milestones(self, judged: Callable[[Mapping[str, Any]], bool]) -> None:
        """Take what :meth:`is_milestone` asks; dasktune calls it before the first step of a trial.

        Parameters
        ----------
        judged : callable
            Returns whether the trial will wait for a decision at a result.
        """
        self._judged = judged

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
