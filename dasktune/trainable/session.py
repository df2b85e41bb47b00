"""What user code calls in a trial: :func:`report`, :func:`get_checkpoint`, :func:`get_context`."""

from __future__ import annotations

import copy
import functools
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from dasktune.errors import ConfigError, TuneError
from dasktune.storage.checkpoint import Checkpoint
from dasktune.trainable.autofill import Autofill
from dasktune.trainable.interrupt import Interrupter, TrialInterrupted
from dasktune.trainable.plain import plain_metrics
from dasktune.trainable.recorder import Recorder
from dasktune.trainable.spec import TrialSpec
from dasktune.trainable.trial_info import TrialInfo
from dasktune.trial.resources import PlacementGroupFactory

__all__ = [
    "Session",
    "TuneContext",
    "current_context",
    "get_checkpoint",
    "get_context",
    "protected",
    "report",
]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_OUTSIDE = (
    "was called outside of a trial{effect}. In a thread that your code starts, run it through "
    "contextvars.copy_context().run(...) to stay inside the trial."
)

#: What is told of user code that does not go on from where it should.
_BEGUN_ANEW = (
    "trial %(trial)s is to go on from its checkpoint of iteration %(iteration)d, and reports "
    "without having called get_checkpoint(): its training has begun anew, while its iterations "
    "count on"
)
_UNASKED = (
    "trial %(trial)s is to begin from the checkpoint that was given by restore=, and reports "
    "without having called get_checkpoint()"
)

#: The trial whose code runs here. Asyncio tasks and ``asyncio.to_thread`` inherit it.
_current: ContextVar[Session | None] = ContextVar("dasktune_session", default=None)


class TuneContext:
    """What a trial may know about itself.

    Parameters
    ----------
    spec : TrialSpec
        The trial.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     context = tune.get_context()
    ...     return {"where": context.get_trial_dir(), "gpus": context.get_gpu_ids()}
    """

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec

    @property
    def trial_info(self) -> TrialInfo:
        """Names and resources together, to be given to other processes."""
        return TrialInfo(
            experiment_name=self._spec.experiment_name,
            trial_id=self._spec.trial_id,
            trial_name=self._spec.trial_name,
            trial_resources=self._spec.resources,
        )

    def get_experiment_name(self) -> str:
        """Return the experiment's name."""
        return self._spec.experiment_name

    def get_trial_name(self) -> str:
        """Return the trial's name."""
        return self._spec.trial_name

    def get_trial_id(self) -> str:
        """Return the trial's id, unique within the experiment."""
        return self._spec.trial_id

    def get_trial_resources(self) -> PlacementGroupFactory:
        """Return what the trial holds while it runs."""
        return self._spec.resources

    def get_gpu_ids(self) -> list[str]:
        """Return the GPUs that the trial may use; empty if it asks for none.

        They are named as in ``CUDA_VISIBLE_DEVICES``. Trials that run in threads of one process
        share that variable, so there it is up to the code to use no other.
        """
        return list(self._spec.devices or ())

    def get_bundle_workers(self) -> list[str]:
        """Return the address of each bundle's Dask worker, in the order of the request.

        The first one is the worker that runs the trial's own code.
        """
        return list(self._spec.bundle_workers)

    def get_trial_dir(self) -> str:
        """Return the trial's directory: a path, which exists, or the URL of a remote one."""
        directory = self._spec.storage.child("trials", self._spec.trial_dir)
        if directory.is_local:
            os.makedirs(directory.url, exist_ok=True)
        return directory.url


class Stopwatch:
    """Seconds that user code has been running since the last result.

    Parameters
    ----------
    timer : callable
        Seconds since any fixed moment.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self.elapsed = 0.0
        self.resume()

    def pause(self) -> None:
        """User code is in :func:`report`."""
        self.elapsed += self._timer() - self._since

    def resume(self) -> None:
        """User code goes on."""
        self._since = self._timer()


class Session:
    """A trial as its own code sees it.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    recorder : Recorder
        Where results go.
    interrupter : Interrupter
        Runs the user code that calls this session.
    timer : callable
        Seconds since any fixed moment.
    """

    def __init__(
        self,
        spec: TrialSpec,
        recorder: Recorder,
        interrupter: Interrupter,
        timer: Callable[[], float],
    ) -> None:
        self.context = TuneContext(spec)
        self._recorder = recorder
        self._interrupter = interrupter
        self._stopwatch = Stopwatch(timer)
        self._autofill = Autofill(spec.trial_id, restored_metrics(spec))
        self._beginning = spec.beginning
        #: What to go on from, until user code has asked for it.
        self._not_asked_for = spec.checkpoint or spec.beginning
        #: Reports may come from several of the user's threads.
        self._lock = threading.Lock()
        self._closed = False

    def enter(self) -> None:
        """Be the session of this thread and of what inherits its context."""
        _current.set(self)

    def close(self) -> None:
        """Wait for reports in flight, and let no further one in."""
        with self._lock:
            self._closed = True

    def report(self, metrics: object, checkpoint: object = None) -> None:
        """Record a result; see :func:`report`."""
        # What `protected` does, without the cost of a generator for each result.
        self._interrupter.shield()
        try:
            with self._lock:
                self._stopwatch.pause()
                try:
                    self._record(metrics, checkpoint)
                finally:
                    self._stopwatch.resume()
        finally:
            self._interrupter.unshield()

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint of the trial; see :func:`get_checkpoint`."""
        self._not_asked_for = None
        with self.protected():
            return self._recorder.load()

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Let no interrupt strike inside the ``with`` block, which is not user code."""
        self._interrupter.shield()
        try:
            yield
        finally:
            self._interrupter.unshield()

    def _record(self, metrics: object, checkpoint: object) -> None:
        if self._closed or self._recorder.ending is not None:
            # User code caught the first one, or left a thread behind.
            raise TrialInterrupted
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise ConfigError(
                f"checkpoint must be a Checkpoint, got {type(checkpoint).__name__}. "
                f"Write Checkpoint.from_directory(path)."
            )
        self._warn_if_begun_anew()
        # The counters move only if the result is recorded: user code may catch a failed commit.
        autofill = copy.copy(self._autofill)
        result = autofill(plain_metrics(metrics), self._stopwatch.elapsed)
        self._recorder.check(result)
        saved = None if checkpoint is None else self._recorder.save(checkpoint, result)
        self._autofill = autofill
        self._stopwatch.elapsed = 0.0
        self._recorder.publish(result, saved)
        if self._recorder.ending is not None:
            raise TrialInterrupted

    def _warn_if_begun_anew(self) -> None:
        """Say so where user code has not gone on from where it should: nothing else would tell."""
        record, self._not_asked_for = self._not_asked_for, None
        if record is not None:
            logger.warning(
                _UNASKED if record is self._beginning else _BEGUN_ANEW,
                {"trial": self.context.get_trial_id(), "iteration": record.iteration},
            )


class ClassSession(Session):
    """The session of a class trainable, which returns its results from ``step``."""

    def report(self, metrics: object, checkpoint: object = None) -> None:
        """Refuse: a result that bypasses ``step`` would be counted twice."""
        raise TuneError(
            "report() must be called in a function trainable only. "
            "Return the metrics from step() and save in save_checkpoint()."
        )


def restored_metrics(spec: TrialSpec) -> dict[str, Any]:
    """Return what the counters go on from."""
    if spec.checkpoint is None:
        return {}
    return {**spec.checkpoint.metrics, "training_iteration": spec.checkpoint.iteration}


def current_context() -> TuneContext | None:
    """Return the context of the trial whose code runs here, or None outside of one."""
    session = _current.get()
    return None if session is None else session.context


def protected() -> AbstractContextManager[None]:
    """Return a context in which no interrupt strikes the trial that calls this."""
    session = _current.get()
    return nullcontext() if session is None else session.protected()


def _told_if_called_by_names(function: F) -> F:
    """Say what to write where it is called as older versions of Ray Tune had it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # For each result, so it looks at no more than it must.
        if args or "metrics" in kwargs:
            return function(*args, **kwargs)
        given = {name: value for name, value in kwargs.items() if name != "checkpoint"}
        shown = ", ".join(f"{name}={value!r:.40}" for name, value in given.items()) or "none"
        new = ", ".join(f'"{name}": {value!r:.40}' for name, value in given.items()) or '"loss": 1'
        raise ConfigError(f"metrics must be one dict, got {shown}. Write report({{{new}}}).")

    return cast(F, call)


@_told_if_called_by_names
def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Report a result of the trial that calls this, and perhaps wait for a decision on it.

    Outside of a trial it warns and does nothing, so that training code also runs by itself.

    Parameters
    ----------
    metrics : dict of str to plain data
        Numbers, strings, lists, dicts. Numpy scalars become Python numbers. ``done=True`` ends the
        trial with this result.
    checkpoint : Checkpoint, optional
        Kept with the result. Its files have been copied when this returns, so the directory may be
        changed or deleted at once. A local storage has them by then; to any other they are uploaded
        while your code goes on. The result counts, and so do those after it, when they have
        arrived, and a third checkpoint waits here until the first of two has.

    Raises
    ------
    ConfigError
        If the metrics are no plain data.
    Exception
        What the storage raised: the checkpoint cannot be written, or one before it could not be
        uploaded, with which the trial fails even if you catch this.
    TrialInterrupted
        If the trial is to end. It is no `Exception`: let it pass, and clean up in ``finally``.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     for epoch in range(3):
    ...         tune.report({"loss": config["lr"] / (epoch + 1)})
    """
    session = _current.get()
    if session is None:
        text = _OUTSIDE.format(effect=" and does nothing")
        warnings.warn(f"report() {text}", UserWarning, stacklevel=3)
        return
    session.report(metrics, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """Return the newest checkpoint of the trial, None if there is none or outside of a trial.

    At the start that is the one to go on from. One that is still being uploaded is waited for.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     checkpoint = tune.get_checkpoint()
    ...     first = 0 if checkpoint is None else checkpoint.to_dict()["epoch"] + 1
    ...     for epoch in range(first, 3):
    ...         state = {"epoch": epoch}
    ...         tune.report(state, checkpoint=tune.Checkpoint.from_dict(state))
    """
    session = _current.get()
    return None if session is None else session.get_checkpoint()


def get_context() -> TuneContext:
    """Return names, resources and directory of the trial that calls this.

    Raises
    ------
    TuneError
        Outside of a trial.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     return {"name": tune.get_context().get_trial_name()}
    """
    context = current_context()
    if context is None:
        raise TuneError(f"get_context() {_OUTSIDE.format(effect='')}")
    return context
