"""Functions for user code in a trial: `report`, `get_checkpoint`, `should_checkpoint` etc."""

from __future__ import annotations

import copy
import functools
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from dasktune.errors import ReportError, TuneError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trainable.async_exception import AsyncRaise, TrialInterrupted
from dasktune.trainable.fork_guard import check_not_forked
from dasktune.trainable.ranks import SOLE_RANK, RankInfo
from dasktune.trainable.reporting.auto_metrics import AutoMetrics
from dasktune.trainable.reporting.plain_metrics import plain_metrics
from dasktune.trainable.reporting.recorder import Done, Recorder
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_OUTSIDE = (
    "was called outside of a trial{effect}. In a thread that your code starts, run it through "
    "contextvars.copy_context().run(...) to stay inside the trial."
)

#: What to do in a process that user code has forked, by the function that it calls there.
_IN_FORK = {
    "report()": "Send the values to the trial's process, for example by a multiprocessing.Queue.",
    "get_checkpoint()": "Call it before the fork, or send its files to the other process.",
    "get_notice()": "Call it in the trial's process.",
    "should_checkpoint()": "Call it in the trial's process, which reports the checkpoint.",
    "get_client()": "Open a client there: distributed.Client(address of the scheduler).",
}

#: Warnings for user code that does not load the checkpoint from which it should continue.
_UNREAD = (
    "trial %(trial)s should resume from its checkpoint of iteration %(iteration)d, but has "
    "reported a result without calling get_checkpoint(): it trains from scratch, while its "
    "iterations are counted from the checkpoint"
)
_INITIAL_UNREAD = (
    "trial %(trial)s should start from the checkpoint given by restore=, but has reported a result "
    "without calling get_checkpoint()"
)

#: The trial whose code runs here. Asyncio tasks and ``asyncio.to_thread`` inherit it.
_current: ContextVar[UserSession | None] = ContextVar("dasktune_session", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialInfo:
    """Names and resources of a trial: a value for your own processes, threads and loggers.

    In a trial, :func:`~dasktune.get_context` and :class:`~dasktune.Trainable` have it as
    ``trial_info``. It can be pickled and used outside of the trial.

    Parameters
    ----------
    experiment_name : str
        The experiment's name.
    trial_id : str
        The trial's id, unique within the experiment.
    trial_name : str
        The trial's name for people.
    trial_resources : PlacementGroupFactory
        The resources that it has while it runs.

    Examples
    --------
    >>> TrialInfo(
    ...     experiment_name="run", trial_id="a1b2c_00000", trial_name="deep",
    ...     trial_resources=PlacementGroupFactory([{"CPU": 1}]),
    ... ).trial_name
    'deep'
    """

    experiment_name: str
    trial_id: str
    trial_name: str
    trial_resources: PlacementGroupFactory


@dataclass(frozen=True, slots=True)
class Notice:
    """The trial's worker or driver ends soon; see :func:`~dasktune.get_notice`.

    Parameters
    ----------
    seconds : float
        Seconds left; 0 if the time has passed. Infinite if nothing ends, and the trial only leaves
        with its next checkpoint to continue with more ranks.
    reason : str
        Why it ends.

    Examples
    --------
    >>> Notice(seconds=120.0, reason="spot instance").reason
    'spot instance'
    """

    seconds: float
    reason: str


class TuneContext:
    """Names, resources and directory of a trial.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    rank : RankInfo, optional
        The calling process among the processes of the trial; by default there is one.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     context = tune.get_context()
    ...     return {"where": context.get_trial_dir(), "gpus": context.get_gpu_ids()}
    """

    def __init__(self, spec: TrialSpec, rank: RankInfo = SOLE_RANK) -> None:
        self._spec = spec
        self._rank = rank

    @property
    def trial_info(self) -> TrialInfo:
        """Names and resources as one value, for other processes."""
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
        """Return the resources that the trial has while it runs."""
        return self._spec.resources

    def get_gpu_ids(self) -> list[str]:
        """Return the GPUs that the trial may use; empty if it requests none.

        They are named as in ``CUDA_VISIBLE_DEVICES``. Trials that run in threads of one process
        share that variable, so there your code has to select the GPU itself.
        """
        return list(self._spec.devices or ())

    def get_bundle_workers(self) -> list[str]:
        """Return the address of each bundle's Dask worker, in the order of the request.

        The first one is the worker that runs the trial's own code.
        """
        return list(self._spec.bundle_workers)

    def get_world_rank(self) -> int:
        """Return the number of the calling process in its trial, from 0; 0 in an ordinary trial."""
        return self._rank.world_rank

    def get_world_size(self) -> int:
        """Return how many processes the trial has; 1 without :func:`~dasktune.with_ranks`."""
        return self._rank.world_size

    def get_local_rank(self) -> int:
        """Return the number of the calling process among those of its trial on its host, from 0."""
        return self._rank.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of processes of the trial on the host of the calling one."""
        return self._rank.local_world_size

    def get_node_rank(self) -> int:
        """Return the number of the calling process's host among the hosts of the trial, from 0."""
        return self._rank.node_rank

    def get_trial_dir(self) -> str:
        """Return the trial's directory: an existing local path, or the URL of a remote one."""
        directory = self._spec.storage.child("trials", self._spec.trial_dir)
        if directory.is_local:
            os.makedirs(directory.inside(), exist_ok=True)
        return directory.url

    def redacted(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration for a log or a tracker: names in place of secrets.

        Each text that is the value of a :func:`~dasktune.secret` becomes ``secret('NAME')``.

        Parameters
        ----------
        config : mapping
            The trial's configuration, or any part or copy of it.
        """
        # Imported here: most trials do not need the package of search spaces.
        from dasktune.space.secret import conceal

        return dict(conceal(config, dict(self._spec.secrets)))


class UserSession(Protocol):
    """What the functions of this module need of a session."""

    context: TuneContext

    def report(self, metrics: object, checkpoint: object = None) -> None:
        """Record a result."""

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint."""

    def should_checkpoint(self) -> bool:
        """Return whether to save at the next result."""

    def get_notice(self) -> Notice | None:
        """Return the notice of an end; None without one."""

    def protected(self, function: str) -> AbstractContextManager[None]:
        """Defer interrupts inside the ``with`` block."""


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
        """Stop counting: user code has called :func:`report`."""
        self.elapsed += self._timer() - self._since

    def resume(self) -> None:
        """Continue counting: user code runs again."""
        self._since = self._timer()


class Session:
    """Connects user code to its trial: counts, records and saves the results that it reports.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    recorder : Recorder
        Records results.
    interrupter : AsyncRaise
        Runs the user code that calls this session.
    timer : callable
        Seconds since any fixed moment.
    on_done : callable
        Called when user code has reported ``done=True``, and from then on may only clean up.
    """

    # User code may report from several threads; the lock lets one report at a time through. A
    # report masks interrupts before it waits for the lock and unmasks them after its release. So an
    # interrupt never hits a thread that holds or waits for the lock. `close` takes the lock, too:
    # it waits for a report in progress, and a later one raises TrialInterrupted. So nothing is sent
    # after the trial's last message.
    #
    # A process that user code has forked has copies of the locks, which other threads may have held
    # at that moment. No thread of the copy releases them, so check the process before any lock.

    def __init__(
        self,
        spec: TrialSpec,
        recorder: Recorder,
        interrupter: AsyncRaise,
        timer: Callable[[], float],
        on_done: Callable[[], None],
    ) -> None:
        self._on_done = on_done
        self.context = TuneContext(spec)
        self._pid = os.getpid()
        self._recorder = recorder
        self._interrupter = interrupter
        self._stopwatch = Stopwatch(timer)
        self._autofill = AutoMetrics(spec.trial_id, restored_metrics(spec))
        self._initial_checkpoint = spec.initial_checkpoint
        #: The checkpoint to continue from, until user code loads it or was warned.
        self._unread_checkpoint = spec.checkpoint or spec.initial_checkpoint
        #: Reports may come from several of the user's threads.
        self._lock = threading.Lock()
        self._closed = False

    def enter(self) -> None:
        """Make this the session of the calling thread, and of code that inherits its context."""
        enter_session(self)

    def close(self) -> None:
        """Wait for a report in progress, and refuse later ones."""
        with self._lock:
            self._closed = True

    def report(self, metrics: object, checkpoint: object = None) -> None:
        """Record a result; see :func:`report`."""
        # The same as `protected`, without the cost of a generator for each result.
        self._check_process("report()")
        self._interrupter.mask()
        try:
            with self._lock:
                self._stopwatch.pause()
                try:
                    self._record(metrics, checkpoint)
                finally:
                    self._stopwatch.resume()
        finally:
            self._interrupter.unmask()

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint of the trial; see :func:`get_checkpoint`."""
        self.note_checkpoint_read()
        with self.protected("get_checkpoint()"):
            return self._recorder.load()

    def note_checkpoint_read(self) -> None:
        """Note that user code has asked for its checkpoint, so that no warning says otherwise."""
        self._unread_checkpoint = None

    def should_checkpoint(self) -> bool:
        """Whether the trial is to save soon; see :func:`should_checkpoint`."""
        with self.protected("should_checkpoint()"):
            return self._recorder.is_save_due()

    def get_notice(self) -> Notice | None:
        """Return the notice that the trial was given; see :func:`get_notice`."""
        with self.protected("get_notice()"):
            notice = self._recorder.ask_notice()
            return None if notice is None else Notice(*notice)

    @contextmanager
    def protected(self, function: str) -> Iterator[None]:
        """Defer interrupts inside the ``with`` block, which is code of dasktune.

        Parameters
        ----------
        function : str
            The function that user code has called, for the error in a process that it has forked.
        """
        self._check_process(function)
        self._interrupter.mask()
        try:
            yield
        finally:
            self._interrupter.unmask()

    def _check_process(self, function: str) -> None:
        check_not_forked(self._pid, function, _IN_FORK[function])

    def _record(self, metrics: object, checkpoint: object) -> None:
        ended = self._recorder.ending
        if self._closed or ended is not None:
            # User code has caught the first TrialInterrupted, or has left a thread running.
            raise TrialInterrupted
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise ReportError(
                f"checkpoint must be a Checkpoint, got {type(checkpoint).__name__}. "
                f"Write Checkpoint.from_directory(path)."
            )
        self._warn_if_checkpoint_unread()
        # The counters change only if the checkpoint is saved: user code may catch a failed commit.
        autofill = copy.copy(self._autofill)
        result = autofill(plain_metrics(metrics), self._stopwatch.elapsed)
        self._recorder.check(result)
        saved = None if checkpoint is None else self._recorder.save(checkpoint, result)
        self._autofill = autofill
        self._stopwatch.elapsed = 0.0
        self._recorder.publish(result, saved)
        if self._recorder.ending is not None:
            if isinstance(self._recorder.ending, Done):
                # No order of the driver bounds what user code does now.
                self._on_done()
            raise TrialInterrupted

    def _warn_if_checkpoint_unread(self) -> None:
        """Warn if user code reports without having loaded its checkpoint."""
        record, self._unread_checkpoint = self._unread_checkpoint, None
        if record is not None:
            logger.warning(
                _INITIAL_UNREAD if record is self._initial_checkpoint else _UNREAD,
                {"trial": self.context.get_trial_id(), "iteration": record.iteration},
            )


class ClassSession(Session):
    """The session of a class trainable, whose ``step`` returns its results."""

    def report(self, metrics: object, checkpoint: object = None) -> None:
        """Raise TuneError: a result that bypasses ``step`` would be counted twice."""
        raise TuneError(
            "report() must be called in a function trainable only. "
            "Return the metrics from step() and save in save_checkpoint()."
        )


def enter_session(session: UserSession) -> None:
    """Make this the session of the calling thread, and of code that inherits its context."""
    _current.set(session)


def restored_metrics(spec: TrialSpec) -> dict[str, Any]:
    """Return the metrics from which the counters continue; empty without a checkpoint."""
    if spec.checkpoint is None:
        return {}
    return {**spec.checkpoint.metrics, "training_iteration": spec.checkpoint.iteration}


def current_context() -> TuneContext | None:
    """Return the context of the trial whose code runs here, or None outside of one."""
    session = _current.get()
    return None if session is None else session.context


def protected(function: str) -> AbstractContextManager[None]:
    """Return a context manager that defers interrupts of the calling trial.

    Parameters
    ----------
    function : str
        The function that user code has called, such as ``"get_client()"``. In a process that user
        code has forked, the context manager raises a `TuneError` about it.
    """
    session = _current.get()
    return nullcontext() if session is None else session.protected(function)


#: The arguments of `report`.
_REPORTED: Final = frozenset({"metrics", "checkpoint"})


def _explain_keyword_call(function: F) -> F:
    """Wrap `function` so that a call with keywords, as in old Ray Tune, explains the new form."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Called for each result, so the usual case comes first.
        if (args or "metrics" in kwargs) and kwargs.keys() <= _REPORTED:
            return function(*args, **kwargs)
        given = {name: value for name, value in kwargs.items() if name not in _REPORTED}
        shown = ", ".join(f"{name}={value!r:.40}" for name, value in given.items()) or "none"
        new = ", ".join(f'"{name}": {value!r:.40}' for name, value in given.items()) or '"loss": 1'
        raise ReportError(f"metrics must be one dict, got {shown}. Write report({{{new}}}).")

    return cast(F, call)


@_explain_keyword_call
def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Report a result of the calling trial, and wait for a decision if the scheduler needs one.

    Outside of a trial it warns and does nothing, so training code also runs without dasktune.

    Parameters
    ----------
    metrics : dict of str to plain data
        Numbers, strings, lists, dicts. Numpy scalars become Python numbers. ``done=True`` ends the
        trial with this result.
    checkpoint : Checkpoint, optional
        A checkpoint of this result. Its files have been copied when this returns, so you may change
        or delete the directory at once. A local storage has them by then; to any other storage they
        are uploaded while your code continues. The result, and those after it, count when the
        upload has ended. At most two uploads run behind your code: a third checkpoint waits here.

    Raises
    ------
    ConfigError
        If the metrics are not plain data.
    TuneError
        In a process that user code has forked.
    Exception
        The error of the storage: this checkpoint cannot be written, or an earlier one could not be
        uploaded. In the second case the trial fails even if you catch the error.
    TrialInterrupted
        If the trial ends. It is not an `Exception`: let it pass, and clean up in ``finally``.

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
    """Return the newest checkpoint of the trial; None without one, or outside of a trial.

    At the start of a trial this is the checkpoint to resume from. If the newest checkpoint is still
    being uploaded, the call waits for it.

    Raises
    ------
    TuneError
        In a process that user code has forked.

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


def should_checkpoint() -> bool:
    """Return whether the calling trial should save at its next result, because it leaves soon.

    It is True from the moment at which the trial's worker or the driver is given notice of its end:
    a machine is reclaimed, a job reaches its time limit, a worker or the driver gets SIGTERM. It is
    True, too, if the trial has been told to pause. The trial leaves with its next checkpoint, and
    resumes from it on another worker or later. Ask in each step: it takes a microsecond. Outside of
    a trial it is False.

    Raises
    ------
    TuneError
        In a process that user code has forked.

    See Also
    --------
    get_notice : The seconds left, and the reason.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     for step in range(100):
    ...         checkpoint = None
    ...         if step % 50 == 49 or tune.should_checkpoint():
    ...             checkpoint = tune.Checkpoint.from_dict({"step": step})
    ...         tune.report({"loss": 1 / (step + 1)}, checkpoint=checkpoint)
    """
    session = _current.get()
    return session is not None and session.should_checkpoint()


def get_notice() -> Notice | None:
    """Return how soon the trial's worker or driver ends, and why; None if it was given no notice.

    Raises
    ------
    TuneError
        In a process that user code has forked.

    See Also
    --------
    should_checkpoint : Whether to save at the next result.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     notice = tune.get_notice()
    ...     if notice is not None:
    ...         print(f"{notice.seconds:.0f} s left: {notice.reason}")
    """
    session = _current.get()
    return None if session is None else session.get_notice()


def get_context() -> TuneContext:
    """Return the names, resources and directory of the calling trial.

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
