"""Experiments whose driver lives on the cluster, so that the client may leave."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from dasktune.errors import ControlError, StorageError, check
from dasktune.first_error import raise_first_error
from dasktune.registry import offer_envs
from dasktune.results import ResultGrid
from dasktune.resume import Session, restored
from dasktune.resume_config import ResumeConfig
from dasktune.runner.commands import Outcome
from dasktune.showing import linked
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.experiment_store import SPEC_FILE
from dasktune.storage.location import Storage
from dasktune.storage.luggage import Seen, packed_beginning, rooted, with_beginning
from dasktune.storage.probe import remove_if_empty
from dasktune.storage.setup_file import SETUP_FILE

if TYPE_CHECKING:
    from dasktune.cluster.detached import Hosted
    from dasktune.tuner import Tuner

__all__ = ["DetachedExperiment", "attach", "submit"]

#: Nobody looks at a driver that is a task of the cluster.
_SILENT: Final[dict[str, Any]] = {"verbose": 0, "progress_reporter": None}

#: Dask's words and ours.
_STATUS = {"pending": "running", "finished": "finished"}

#: Seconds for which a client that only looks waits for a lost scheduler.
_PATIENCE = 300.0

#: What a driver does when it is asked to.
_COMMANDS = frozenset(
    {"add_trial", "hold", "pause_trial", "release", "stop_trial", "unpause_trial"}
)

#: Seconds between two looks for the runner that is to hear something.
_LOOK = 0.05


class DetachedExperiment:
    """An experiment that runs on a cluster by itself.

    Returned by :meth:`Tuner.submit` and :func:`attach`. Closing it, or the end of this process,
    does nothing to the experiment.

    Parameters
    ----------
    hosted : Hosted
        Its driver.

    Examples
    --------
    >>> experiment = tuner.submit()  # doctest: +SKIP
    >>> experiment = attach("run", client="tcp://cluster:8786")  # doctest: +SKIP
    >>> results = experiment.result()  # doctest: +SKIP
    """

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._hosted.name

    @property
    def status(self) -> Literal["running", "finished", "failed"]:
        """Whether it runs, has come to its end, or cannot go on."""
        return _STATUS.get(self._hosted.status, "failed")  # type: ignore[return-value]

    def result(self, timeout: float | None = None) -> ResultGrid:
        """Wait for the end, and return what came of it.

        Parameters
        ----------
        timeout : float, optional
            Seconds; no limit by default.

        Raises
        ------
        TimeoutError
            If it has not ended by then.
        TuneError
            What :meth:`Tuner.fit` raised there.
        """
        results: ResultGrid = self._hosted.result(timeout)
        return results

    def stop(self) -> None:
        """End all trials; :meth:`result` then gives what they came to."""
        self._hosted.tell("stop")

    def stop_trial(self, trial_id: str) -> Outcome:
        """End one trial.

        Parameters
        ----------
        trial_id : str
            Which.

        Returns
        -------
        Outcome
            What came of it.

        Raises
        ------
        ControlError
            If there is no such trial, it is over, or the driver does not answer within 30 s.
        """
        return self._command("stop_trial", trial_id)

    def pause_trial(self, trial_id: str) -> Outcome:
        """Let one trial rest until :meth:`unpause_trial`; as :meth:`stop_trial` otherwise.

        Parameters
        ----------
        trial_id : str
            Which.
        """
        return self._command("pause_trial", trial_id)

    def unpause_trial(self, trial_id: str) -> Outcome:
        """End the rest of a trial; as :meth:`stop_trial` otherwise.

        Parameters
        ----------
        trial_id : str
            Which.
        """
        return self._command("unpause_trial", trial_id)

    def add_trial(self, config: Mapping[str, Any]) -> Outcome:
        """Add a trial, which goes before the suggestions of the search.

        Parameters
        ----------
        config : mapping
            Its whole configuration.

        Returns
        -------
        Outcome
            With its id.

        Raises
        ------
        ControlError
            If it does not fit into the search space, or the driver does not answer within 30 s.
        """
        return self._command("add_trial", config)

    def hold(self) -> Outcome:
        """Let no trial start until :meth:`release`; those that run go on.

        Raises
        ------
        ControlError
            If it is over, or the driver does not answer within 30 s.
        """
        return self._command("hold")

    def release(self) -> Outcome:
        """Let trials start again; as :meth:`hold` otherwise."""
        return self._command("release")

    def _command(self, name: str, *arguments: Any) -> Outcome:
        if self.status != "running":
            raise ControlError(f"experiment {self.name} is {self.status}", "over")
        outcome: Outcome = self._hosted.call(name, *arguments)
        return outcome

    def interrupt(self) -> None:
        """End it as Ctrl-C would: trials stay unfinished, and `Tuner.restore` goes on with them."""
        self._hosted.tell("interrupt")

    def forget(self) -> None:
        """Free its name and what the cluster keeps of it. One that still runs is ended.

        What it has written to its storage stays.
        """
        self._hosted.forget()

    def close(self) -> None:
        """Close the connection."""
        self._hosted.close()

    def __enter__(self) -> DetachedExperiment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def dashboard_link(self) -> str | None:
        """Where Dask's dashboard shows the experiment; None if it does not, or not yet."""
        return self._hosted.dashboard_link or None

    def __repr__(self) -> str:
        link = self.dashboard_link
        shown = f", dashboard {link}" if link else ""
        return f"{type(self).__name__}({self.name!r}, {self.status}{shown})"

    def _repr_html_(self) -> str:
        text = f"{type(self).__name__}({self.name!r}, {self.status})"
        return linked(text, self.dashboard_link)


def attach(name: str, client: Any = None) -> DetachedExperiment:
    """Return the experiment that was submitted to a cluster under a name.

    Parameters
    ----------
    name : str
        The experiment's name.
    client : optional
        The Dask cluster, as for :class:`Tuner`.

    Raises
    ------
    ConfigError
        If there is none of this name; the message has those that there are.
    ClusterError
        If the cluster cannot be reached.

    Examples
    --------
    >>> attach("run", client="tcp://cluster:8786").status  # doctest: +SKIP
    'running'
    """
    from dasktune.cluster.detached import find_hosted

    return DetachedExperiment(find_hosted(client, name, timeout_s=_PATIENCE))


@dataclass(frozen=True)
class _Origin:
    """Where an experiment stood that was restored and then submitted."""

    storage: Storage
    #: What is to become of its trials, once.
    resume: ResumeConfig
    #: Records of its journal.
    position: int


def submit(
    parts: dict[str, Any],
    name: str,
    client: Any,
    session: Session | None = None,
    beginning: Checkpoint | None = None,
) -> DetachedExperiment:
    """Let a cluster run an experiment by itself.

    Parameters
    ----------
    parts : dict
        The arguments of a :class:`Tuner`, but for its client.
    name : str
        The experiment's name.
    client : object
        The cluster.
    session : Session, optional
        What it goes on from.
    beginning : Checkpoint, optional
        What its trials begin from, if the experiment has no copy of it yet.
    """
    from dasktune.cluster.code import pack
    from dasktune.cluster.detached import host
    from dasktune.cluster.payload import pack_envs

    run_config, origin = parts["run_config"], None
    for served in ("server_port", "dashboard_controls"):
        given = getattr(run_config, served)
        hint = "It would listen on a worker. What submit() returns has the same commands."
        check(given is None or given is False, served, "left out for submit()", given, hint)
    timeout_s = run_config.scheduler_wait
    packed = packed_beginning(beginning)
    seen = packed if isinstance(packed, Seen) else None
    files = None if isinstance(packed, Seen) else packed
    if files is not None:
        # The driver could not find it.
        run_config = replace(run_config, restore=None)
    if session is None:
        run_config = rooted(run_config)
        parts = {**parts, "run_config": replace(run_config, name=name, **_SILENT)}
        options = run_config.storage_options or {}
        storage = partial(_storage, run_config.storage_url, options, name)
    else:
        parts = {**parts, "run_config": replace(run_config, **_SILENT)}
        origin = _Origin(session.storage, session.resume, session.end.position)
        storage = partial(_same, session.storage)
    parts |= {"origin": origin, "beginning": files, "envs": pack_envs(code=run_config.code)}
    work = partial(_drive, pack(parts, code=run_config.code))
    return DetachedExperiment(host(client, name, work, storage, timeout_s=timeout_s, seen=seen))


def _storage(url: str, options: Mapping[str, Any], name: str) -> Storage:
    """Return an experiment's directory; called where it is to be used, as a home may differ."""
    return Storage(url, options).child(name)


def _same(storage: Storage) -> Storage:
    return storage


def _storage_of(parts: Mapping[str, Any]) -> Storage:
    config = parts["run_config"]
    return _storage(config.storage_url, config.storage_options or {}, config.name)


def _drive(blob: bytes, mark: str) -> ResultGrid:
    """Run an experiment, or go on with it, in a task."""
    parts = pickle.loads(blob)
    origin: _Origin | None = parts.pop("origin")
    # From here they go on to the workers.
    offer_envs(parts.pop("envs", {}))
    parts["run_config"] = with_beginning(parts["run_config"], parts.pop("beginning", None))
    storage = _storage_of(parts) if origin is None else origin.storage
    try:
        session = _session(parts, storage, origin, mark)
        tuner = _tuner(parts, session)
        if session is not None and session.experiment.finished and not _is_first(session, origin):
            # The last driver had done all, and died before it could say so.
            session.tell_the_end(parts["trainable"])
            raise_first_error(session.experiment)
            return tuner.get_results()
        return _fit(tuner)
    finally:
        offer_envs({})
        # It has begun, or never will.
        if mark:
            storage.remove(mark)
            remove_if_empty(storage)


def _fit(tuner: Tuner) -> ResultGrid:
    from dasktune.cluster.detached import hosted_here

    ears = {
        "stop": lambda: _runner(tuner).stop_soon("stopped by the user"),
        "interrupt": lambda: _runner(tuner).interrupt(),
    }

    def do(name: str, *arguments: Any) -> Future[Any]:
        if name not in _COMMANDS:
            raise ControlError(f"there is no command {name!r:.100}", "invalid")
        future: Future[Any] = getattr(_runner(tuner).commands, name)(*arguments)
        return future

    with hosted_here(ears, do):
        return tuner.fit()


def _session(
    parts: dict[str, Any], storage: Storage, origin: _Origin | None, mark: str
) -> Session | None:
    """Return what to go on from; None if nothing has begun."""
    if not storage.exists(SETUP_FILE):
        if mark and not storage.exists(mark):
            # A worker that came later. To begin anew here would run everything twice.
            raise StorageError(
                f"the driver has come to a worker that does not see {storage}. Go on by "
                "Tuner.restore() where it is seen, and start all workers with the same storage."
            )
        if origin is None:
            # A driver may have died right after the first of its files.
            storage.remove(SPEC_FILE)
            return None
    session = restored(
        storage,
        # The objects that have travelled: the worker may lack the modules of the stored ones.
        tune_config=parts["tune_config"],
        run_config=parts["run_config"],
        param_space=parts["param_space"],
        resume=ResumeConfig(),
    )
    session.releases = _is_first(session, origin)
    if origin is not None and session.releases:
        session.resume = origin.resume
    return session


def _is_first(session: Session, origin: _Origin | None) -> bool:
    """Whether no driver has gone on yet since the experiment was submitted."""
    return origin is not None and session.end.position == origin.position


def _tuner(parts: dict[str, Any], session: Session | None) -> Tuner:
    from dasktune.tuner import Tuner

    return Tuner(**parts) if session is None else Tuner(parts["trainable"], _session=session)


def _runner(tuner: Tuner) -> Any:
    while (runner := tuner.runner) is None:
        time.sleep(_LOOK)
    return runner
