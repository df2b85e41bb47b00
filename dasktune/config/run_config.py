"""How and where an experiment runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Final, Literal

from dasktune.config.checkpoint_config import CheckpointConfig
from dasktune.config.failure_config import FailureConfig
from dasktune.errors import check, without_passwords
from dasktune.rules import (
    LONGEST_NAME,
    check_bool,
    check_seconds,
    is_port,
    is_safe_name,
    is_text,
)
from dasktune.stopper import as_stopper
from dasktune.trial.metrics import number
from dasktune.workers import WorkerFilter, check_workers

__all__ = ["DEFAULT_STORAGE_PATH", "RunConfig"]

#: Where experiments are kept when the user names no place.
DEFAULT_STORAGE_PATH: Final = "~/dasktune_results"

#: What dasktune and its loggers write into a trial's directory.
_TAKEN: Final = re.compile(
    r"params\..*|result\.json|progress\.csv|error\.txt|events\.out\..*|pbt_.*|checkpoint_.*|exported"
)

_CHECKPOINTS: Final = CheckpointConfig()
_FAILURES: Final = FailureConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How and where an experiment runs.

    Parameters
    ----------
    name : str, optional
        Name of the experiment and of its folder; by default made of the trainable's and the date.
    storage_path : str or path, optional
        Where experiments are kept: a folder or any fsspec URL. ``~/dasktune_results`` by default.
    storage_options : mapping, optional
        What fsspec needs for that URL. Never shown, because it may hold credentials.
    storage_patience : float, default=300.0
        Seconds for which a storage that fails is tried again, on driver and workers, before it
        costs a trial or the experiment. Trials go on meanwhile until too much waits to be stored.
    stop : mapping, callable, Stopper or list of Stopper, optional
        When a trial ends: ``{"training_iteration": 10}`` at the first result with at least that
        value.
    checkpoint_config : CheckpointConfig, optional
        When checkpoints are made and which are kept.
    failure_config : FailureConfig, optional
        What failures cost.
    checkpoint_period : float or "auto", default="auto"
        Seconds between two snapshots of the experiment's state, which make restoring quicker. By
        default at least 10, and so many that they take at most 5 % of the time.
    callbacks : list of Callback, optional
        Hear of what happens, in this order.
    verbose : int, default=1
        0 is silent, 1 shows how far it is, 2 tells of each trial that ends, 3 of each result, too.
        All goes to ``sys.stderr``; the variable ``DASKTUNE_PROGRESS`` may choose how.
    progress_reporter : ProgressReporter, optional
        Shows how far it is in the place of what dasktune shows itself.
    heartbeat_timeout : float, default=30.0
        Seconds of silence after which a worker is given up for lost.
    driver_ttl : float, default=30.0
        Seconds of the driver's silence after which workers stop its trials.
    stop_grace : float, default=10.0
        Seconds that a trial has to come to its end when it is stopped.
    scheduler_wait : float, default=300.0
        Seconds to wait for a lost Dask scheduler to come back.
    code : {"auto", "installed"}, default="auto"
        Whether local modules that the workers lack travel to them, or all is installed there.
    isolation : {"auto", "thread", "process"}, default="auto"
        Whether a trial runs in a thread of its worker or in a process of its own, which can crash
        or be killed without harm to others. By default it is a process for trials that ask for a
        GPU or more than one CPU, else a thread.
    chdir_to_trial_dir : bool, default=False
        Let each trial work in its own directory. Threads share one, so that `isolation` must be
        ``"process"``, and `storage_path` on a disk. ``TUNE_ORIG_WORKING_DIR`` says where it was.
    log_to_file : bool, str or pair of str, default=False
        Keep what each trial prints and logs in its directory: in ``stdout`` and ``stderr`` (True),
        in one file, or in two. In a thread it is what the trial's own thread writes to
        ``sys.stdout`` and ``sys.stderr``, which is shown as before, too; in a process all that it
        and its children write, which is shown nowhere else. Workers that do not see the storage
        hand it to the driver every 5 s: the last seconds of it die with a worker.
    restore : Checkpoint, str or path, optional
        A checkpoint that each trial begins from: ``get_checkpoint()`` and ``load_checkpoint`` give
        it as long as the trial has none of its own. Its iterations count from 1 all the same. A
        directory or URL, which `storage_options` are used for if it is of the same kind as
        `storage_path`; it is copied into the experiment when that begins.
    export_formats : list of str, optional
        What the class of a trial is asked to export when that came to a good end, by
        ``_export_model(export_formats, export_dir)``: ``"checkpoint"``, ``"model"``, ``"onnx"``,
        ``"h5"``, or any name that the class knows; they are stripped and lower-cased. What it
        writes is kept in ``exported`` of the trial's directory, see
        :attr:`~dasktune.Result.exported`.
    queue_trials : bool, optional
        Wait for a cluster that has no room yet for a single trial (True), or fail (False) after
        10 s. By default wait while there is no worker at all, and on an adaptive cluster object
        unless its new workers are known to be too small; else fail. Every 60 s a table tells what
        is asked and what is there.
    workers : list of str or callable, optional
        Addresses or names of the workers that trials may run on, or a function that is given a
        :class:`~dasktune.WorkerInfo` of each worker and returns whether they may, for workers that
        come later, too. All by default.
    priority : float, default=0
        Dask's priority of the experiment's tasks among everybody's: those of the highest come
        first. It matters while a trial waits for a worker that is busy with other tasks.
    declare_resources : bool, default=True
        Make Dask keep account of what trials use: workers that declare no ``CPU`` are made to
        declare one for each thread, and those that own GPUs and declare no ``GPU`` as many as they
        own. It outlasts the experiment. What a worker declares itself is never changed.
    dashboard : bool or int, optional
        By default a page in the dashboard of Dask's scheduler. True, or a port, shows the
        experiment with all figures besides, while it runs: at port 8788 or another free one, or at
        this port. Only this machine reaches it. Nothing can be changed on either. False is neither.
    dashboard_controls : bool, default=False
        Let whoever has the link with the token, which is printed to ``sys.stderr``, stop trials and
        the experiment there, and hold new trials. Needs `dashboard`.
    server_port : int or bool, optional
        Take commands over HTTP while the experiment runs (see :class:`~dasktune.TuneClient`): at
        this port, or at a free one (0 or True). Only this machine reaches it, and only with the
        token that is printed to ``sys.stderr``.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> RunConfig(name="first", stop={"training_iteration": 10}).storage_url
    '~/dasktune_results'
    """

    name: str | None = field(default=None, kw_only=False)
    storage_path: str | os.PathLike[str] | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    storage_patience: float = 300.0
    stop: Any = None
    checkpoint_config: CheckpointConfig = _CHECKPOINTS
    failure_config: FailureConfig = _FAILURES
    checkpoint_period: float | Literal["auto"] = "auto"
    callbacks: Sequence[Any] | None = None
    verbose: int = 1
    progress_reporter: Any = None
    heartbeat_timeout: float = 30.0
    driver_ttl: float = 30.0
    stop_grace: float = 10.0
    scheduler_wait: float = 300.0
    code: Literal["auto", "installed"] = "auto"
    isolation: Literal["auto", "thread", "process"] = "auto"
    chdir_to_trial_dir: bool = False
    log_to_file: bool | str | tuple[str, str] = False
    restore: Any = None
    export_formats: Sequence[str] | None = None
    queue_trials: bool | None = None
    workers: WorkerFilter = None
    priority: float = 0
    declare_resources: bool = True
    dashboard: bool | int | None = None
    dashboard_controls: bool = False
    server_port: bool | int | None = None

    def __post_init__(self) -> None:
        self._check_place()
        self._check_parts()
        as_stopper(self.stop)  # for what it raises
        self._check_callbacks()
        check(self.verbose in (0, 1, 2, 3), "verbose", "0, 1, 2 or 3", self.verbose)
        if self.checkpoint_period != "auto":
            check_seconds("checkpoint_period", self.checkpoint_period)
        for name in ("heartbeat_timeout", "driver_ttl"):
            check_seconds(name, getattr(self, name))
        for name in ("stop_grace", "scheduler_wait", "storage_patience"):
            check_seconds(name, getattr(self, name), zero=True)
        check(self.code in ("auto", "installed"), "code", "'auto' or 'installed'", self.code)
        self._check_isolation()
        self._check_logs()
        self._check_beginning_and_end()
        if self.queue_trials is not None:
            check_bool("queue_trials", self.queue_trials)
        check_workers(self.workers)
        priority = None if isinstance(self.priority, bool) else number(self.priority)
        finite = priority is not None and isfinite(priority)
        check(finite, "priority", "a finite number", self.priority)
        check_bool("declare_resources", self.declare_resources)
        self._check_servers()

    def _check_place(self) -> None:
        check(
            self.name is None or is_safe_name(self.name),
            "name",
            f"a safe file name of at most {LONGEST_NAME} bytes (no separators, no '..')",
            self.name,
            "Folders go into storage_path.",
        )
        path: object = self.storage_path
        check(
            path is None or is_text(path) or isinstance(path, os.PathLike),
            "storage_path",
            "a path or a URL",
            path,
        )
        options: object = self.storage_options
        # The type says enough, and the values may be credentials.
        check(
            options is None or isinstance(options, Mapping),
            "storage_options",
            "a mapping",
            type(options),
        )

    def _check_callbacks(self) -> None:
        given: object = self.callbacks
        objects = isinstance(given, list | tuple) and not any(isinstance(x, type) for x in given)
        hint = "A class must be called."
        check(given is None or objects, "callbacks", "a list of objects", given, hint)
        shows: object = self.progress_reporter
        fits = not isinstance(shows, type) and callable(getattr(shows, "should_report", None))
        rule = "an object of ProgressReporter"
        check(shows is None or fits, "progress_reporter", rule, shows, hint)

    def _check_servers(self) -> None:
        given = self.dashboard
        fits = given is None or isinstance(given, bool) or is_port(given)
        check(fits, "dashboard", "True, False, None or a port from 1 to 65535", given)
        check_bool("dashboard_controls", self.dashboard_controls)
        fits = not self.dashboard_controls or bool(given)
        check(fits, "dashboard_controls", "False without dashboard=True", self.dashboard_controls)
        port = self.server_port
        fits = port is None or isinstance(port, bool) or port == 0 or is_port(port)
        check(fits, "server_port", "None, True, False or a port from 0 to 65535", port)

    def _check_isolation(self) -> None:
        kinds = ("auto", "thread", "process")
        check(self.isolation in kinds, "isolation", "'auto', 'thread' or 'process'", self.isolation)
        check_bool("chdir_to_trial_dir", self.chdir_to_trial_dir)
        hint = "Threads of one process share their directory."
        apart = self.isolation == "process" or not self.chdir_to_trial_dir
        check(apart, "isolation", "'process' with chdir_to_trial_dir=True", self.isolation, hint)
        url = self.storage_url
        on_disk = "://" not in url or url.startswith(("file://", "local://"))
        check(
            on_disk or not self.chdir_to_trial_dir,
            "storage_path",
            "on a disk with chdir_to_trial_dir=True",
            without_passwords(url),
        )

    def _check_logs(self) -> None:
        given: object = self.log_to_file
        names = given if isinstance(given, tuple | list) else ()
        pair = len(names) == 2 and all(map(_may_be_log, names))
        fits = isinstance(given, bool) or pair or _may_be_log(given)
        rule = "True, False, the name of a file or two names"
        hint = "They must be safe and none that dasktune writes itself, such as 'error.txt'."
        check(fits, "log_to_file", rule, given, hint)

    def _check_beginning_and_end(self) -> None:
        given: object = self.restore
        named = is_text(given) or isinstance(given, os.PathLike)
        fits = given is None or named or hasattr(given, "as_directory")
        check(fits, "restore", "a Checkpoint, or the path or URL of one", given)
        formats: object = self.export_formats
        if formats is not None:
            given = formats if isinstance(formats, list | tuple) else ()
            names = tuple(one.strip().lower() if isinstance(one, str) else one for one in given)
            listed = given is formats and all(map(is_safe_name, names))
            hint = "Names such as 'model', 'onnx', 'h5' or 'checkpoint', or those of your class."
            check(listed, "export_formats", "a list of names", formats, hint)
            object.__setattr__(self, "export_formats", names)

    @property
    def log_files(self) -> tuple[str, str] | None:
        """The files in which a trial's stdout and stderr are kept; None if they are not."""
        given = self.log_to_file
        if isinstance(given, bool):
            return ("stdout", "stderr") if given else None
        out, err = (given, given) if isinstance(given, str) else given
        return out, err

    def _check_parts(self) -> None:
        # Ray Tune's users pass None for "the defaults".
        parts = (("checkpoint_config", _CHECKPOINTS), ("failure_config", _FAILURES))
        for name, default in parts:
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
            part, kind = getattr(self, name), type(default)
            check(isinstance(part, kind), name, f"a {kind.__name__}", part)

    def __repr__(self) -> str:
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.repr}
        if self.storage_options is not None:
            shown["storage_options"] = dict.fromkeys(self.storage_options, "***")
        told = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        # The address, too, may have a password in it.
        return without_passwords(f"RunConfig({told})")

    @property
    def storage_url(self) -> str:
        """Where experiments are kept, whichever way it was given."""
        return DEFAULT_STORAGE_PATH if self.storage_path is None else os.fspath(self.storage_path)


def _may_be_log(name: object) -> bool:
    return is_safe_name(name) and _TAKEN.fullmatch(str(name)) is None
