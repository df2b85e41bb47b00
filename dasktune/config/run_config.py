"""`RunConfig`: the experiment's name and storage, its stopping rules, failures and monitoring."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Final, Literal

from dasktune.config.checkpoint_config import CheckpointConfig
from dasktune.config.failure_config import FailureConfig
from dasktune.config.validation import (
    LONGEST_NAME,
    check_bool,
    check_priority,
    check_seconds,
    check_share_group,
    check_weight,
    check_yields_after,
    is_port,
    is_safe_name,
    is_text,
    normalised_name,
)
from dasktune.config.worker_filter import WorkerFilter, check_workers
from dasktune.errors import check, without_passwords
from dasktune.stopper import as_stopper

#: The default of `storage_path`.
DEFAULT_STORAGE_PATH: Final = "~/dasktune_results"

#: Files that dasktune and its loggers write into a trial's directory.
_TAKEN: Final = re.compile(
    r"params\..*|result\.json|progress\.csv|error\.txt|events\.out\..*|pbt_.*|checkpoint_.*|exported"
)

_CHECKPOINTS: Final = CheckpointConfig()
_FAILURES: Final = FailureConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The experiment's name and storage, when trials stop, failures, isolation and monitoring.

    Parameters
    ----------
    name : str, optional
        The name of the experiment and of its directory; by default the trainable's name and the
        date. It may have letters and symbols of all scripts, in Unicode's form NFC.
    storage_path : str or path, optional
        The directory or fsspec URL in which experiments are stored; ``~/dasktune_results`` by
        default.
    storage_options : mapping, optional
        Options of fsspec for that URL. They are never shown, because they may hold credentials.
    storage_patience : float, default=300.0
        Seconds for which the driver and the workers retry failed storage operations before a trial
        or the experiment fails. Trials continue meanwhile until too much data waits to be stored.
    stop : mapping, callable, Stopper or list of Stopper, optional
        When a trial stops: ``{"training_iteration": 10}`` at the first result with at least that
        value.
    checkpoint_config : CheckpointConfig, optional
        When to save checkpoints and which ones to keep.
    failure_config : FailureConfig, optional
        How many failures a trial and the experiment may have.
    checkpoint_period : float or "auto", default="auto"
        Seconds between two snapshots of the experiment's state, which make restoring faster. By
        default at least 10, and long enough that snapshots take at most 5 % of the time.
    compress_journal : bool, default=False
        Compress the files of the journal when they are complete: on a disk those of 64 MiB and of
        earlier drivers, in an object store each object. They take about a third of the room, and
        have the same results and decisions. dasktune reads both forms, and ``zcat -f`` prints both;
        most other programs read only the plain one.
    callbacks : list of Callback, optional
        Objects that are called at each event of the experiment, in this order.
    verbose : int, default=1
        0 shows nothing, 1 the progress, 2 also each trial that ends, 3 also each result. The output
        goes to ``sys.stderr``; the environment variable ``DASKTUNE_PROGRESS`` chooses its form.
    progress_reporter : ProgressReporter, optional
        Shows the progress instead of dasktune's own display.
    heartbeat_timeout : float, default=30.0
        Seconds without a heartbeat after which a worker is marked as lost.
    driver_ttl : float, default=30.0
        Seconds without contact to the driver after which workers stop its trials.
    stop_grace : float, default=10.0
        Seconds in which a stopped trial may end by itself before it is interrupted. A trial that
        ends by itself has the same time to clean up. ``fail_fast`` interrupts trials at once.
    scheduler_wait : float, default=300.0
        Seconds to wait for a lost Dask scheduler to come back.
    code : {"auto", "installed"}, default="auto"
        Whether to send local modules to workers that lack them. ``"installed"`` sends none.
    isolation : {"auto", "thread", "process"}, default="auto"
        Whether a trial runs in a thread of its worker or in its own process, which can crash or be
        killed without affecting other trials. By default trials that request a GPU or more than one
        CPU run in a process, and others in a thread.
    chdir_to_trial_dir : bool, default=False
        Run each trial with its own directory as the working directory. Needs
        ``isolation="process"``, because threads share a working directory, and a `storage_path` on
        a disk. The environment variable ``TUNE_ORIG_WORKING_DIR`` has the original directory.
    log_to_file : bool, str or pair of str, default=False
        Write the output of each trial to files in its directory: to ``stdout`` and ``stderr``
        (True), to one file, or to two. For a trial in a thread this is what its main thread writes
        to ``sys.stdout`` and ``sys.stderr``, which is still shown as well. For a trial in a process
        it is all output of the process and its children, which is not shown elsewhere. Workers
        without access to the storage send it to the driver every 5 s: if a worker dies, the output
        of its last seconds is lost.
    restore : Checkpoint, str or path, optional
        The initial checkpoint of each trial: ``get_checkpoint()`` and ``load_checkpoint`` return it
        until the trial has its own. The trial's iterations still count from 1. `storage_options`
        apply to a directory or URL of the same protocol as `storage_path`. The checkpoint is copied
        into the experiment's directory when the experiment begins.
    export_formats : list of str, optional
        The formats that a class trainable exports when its trial ends without error, with
        ``_export_model(export_formats, export_dir)``: ``"checkpoint"``, ``"model"``, ``"onnx"``,
        ``"h5"``, or other names that the class supports; they are stripped and lower-cased. The
        files are kept in ``exported`` of the trial's directory, see
        :attr:`~dasktune.Result.exported`.
    queue_trials : bool, optional
        Whether to wait for a cluster that has no room for a single trial (True), or to fail after
        10 s (False). By default wait while there is no worker, and on an adaptive cluster unless
        its new workers are known to be too small; otherwise fail. A table shows every 60 s which
        resources are requested and which ones exist.
    workers : list of str or callable, optional
        Addresses or names of the workers that may run trials, or a function of a worker's
        :class:`~dasktune.WorkerInfo` that returns whether it may. It also applies to workers that
        join later. All workers by default.
    priority : float, default=0
        Dask's priority of the experiment's tasks; tasks with a higher one run first. Among the
        experiments on one cluster it is a strict class: an experiment with a higher priority gets
        all that it requests before one with a lower priority starts another trial. The lower one
        starves as long as the higher one has trials to run. Running trials are not interrupted.
    weight : float, default=1.0
        The experiment's share of the cluster relative to other experiments of the same priority. An
        experiment of weight 2 gets twice the share of one of weight 1 if both have enough trials.
        What one experiment does not request the others use. Shares need leases, so workers must
        declare their resources to Dask; see `declare_resources`. While the experiment runs,
        :meth:`TuneClient.set_share <dasktune.TuneClient.set_share>` and ``dasktune share`` change
        weight and priority.
    share_group : str, optional
        A name that several experiments on one cluster have in common, such as that of their user or
        project. They have the share of one experiment together, of weight 1 unless the cluster's
        administrator has given the group another one, and divide it by their weights. By default
        the experiment has a share of its own.
    yields_after : float, default=inf
        Seconds for which the experiment may hold more than its share of the cluster while another
        experiment waits for it. Then trials yield, the ones that began last first: each saves a
        checkpoint at its next result, leaves its worker, and continues when there is room again.
        A trial that has continued stays for so many seconds, and trains for at least as long as its
        start took. Only trials of a class with ``save_checkpoint`` yield, because they repeat no
        step. By default the experiment gives room up only as its trials end.
    declare_resources : bool, default=True
        Declare resources of workers to Dask, so that Dask accounts for what trials use: one ``CPU``
        for each thread where a worker declares none, and its GPUs as ``GPU`` where it declares
        none. The declaration stays after the experiment. A worker's own declaration never changes.
    dashboard : bool or int, optional
        By default a read-only page in the dashboard of Dask's scheduler. True or a port also serves
        a dashboard with all figures while the experiment runs, at port 8788 or another free one, or
        at the given port. Only this machine can connect to it. False disables both.
    dashboard_controls : bool, default=False
        Add buttons to the dashboard that stop trials and the experiment and hold new trials, for
        users of the link with the token, which is printed to ``sys.stderr``. Needs `dashboard`.
    server_port : int or bool, optional
        Accept commands over HTTP while the experiment runs (see :class:`~dasktune.TuneClient`), at
        this port or at a free one (0 or True). Only this machine can connect, and needs the token
        that is printed to ``sys.stderr``.
    public_metrics : bool, default=False
        Let programs on this machine read ``/metrics`` of that server without the token, for
        Prometheus: numbers of trials, results and decisions, but no names and no values of the
        experiment. Needs `server_port`.
    if_exists : {"new", "resume", "replace", "error"}, default="new"
        What to do if `storage_path` has an experiment of this name. ``"new"`` runs in a directory
        of its own, ``<name>_2`` or the next free number, and logs it. ``"resume"`` resumes the
        stored experiment as :meth:`Tuner.restore <dasktune.Tuner.restore>` does, and begins a new
        one if there is none. ``"replace"`` deletes the stored experiment with its checkpoints.
        ``"error"`` raises StorageError.

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
    compress_journal: bool = False
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
    weight: float = 1.0
    share_group: str | None = None
    yields_after: float = inf
    declare_resources: bool = True
    dashboard: bool | int | None = None
    dashboard_controls: bool = False
    server_port: bool | int | None = None
    public_metrics: bool = False
    if_exists: Literal["new", "resume", "replace", "error"] = "new"

    def __post_init__(self) -> None:
        self._check_place()
        self._check_parts()
        as_stopper(self.stop)  # raises ConfigError if it is invalid
        self._check_callbacks()
        check(self.verbose in (0, 1, 2, 3), "verbose", "0, 1, 2 or 3", self.verbose)
        if self.checkpoint_period != "auto":
            check_seconds("checkpoint_period", self.checkpoint_period)
        check_bool("compress_journal", self.compress_journal)
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
        check_priority(self.priority)
        check_weight(self.weight)
        check_share_group(self.share_group)
        check_yields_after(self.yields_after)
        check_bool("declare_resources", self.declare_resources)
        self._check_servers()

    def _check_place(self) -> None:
        check(
            self.name is None or is_safe_name(self.name),
            "name",
            f"a safe file name of at most {LONGEST_NAME} bytes (no separators, no '..')",
            self.name,
            "Give directories in storage_path.",
        )
        if self.name is not None:
            object.__setattr__(self, "name", normalised_name(self.name))
        choices = ("new", "resume", "replace", "error")
        rule = "'new', 'resume', 'replace' or 'error'"
        check(self.if_exists in choices, "if_exists", rule, self.if_exists)
        path: object = self.storage_path
        check(
            path is None or is_text(path) or isinstance(path, os.PathLike),
            "storage_path",
            "a path or a URL",
            path,
        )
        options: object = self.storage_options
        # The message has the type only, because the values may be credentials.
        check(options is None or isinstance(options, Mapping), "storage_options", "a mapping", type(options))

    def _check_callbacks(self) -> None:
        given: object = self.callbacks
        objects = isinstance(given, list | tuple) and not any(isinstance(x, type) for x in given)
        hint = "Write callbacks=[MyCallback()]: a list, in which each class is called."
        check(given is None or objects, "callbacks", "a list of objects", given, hint)
        hint = "A class must be called."
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
        check_bool("public_metrics", self.public_metrics)
        has_server = port is not None and port is not False
        fits = has_server or not self.public_metrics
        check(fits, "public_metrics", "False without server_port", self.public_metrics)

    def _check_isolation(self) -> None:
        kinds = ("auto", "thread", "process")
        check(self.isolation in kinds, "isolation", "'auto', 'thread' or 'process'", self.isolation)
        check_bool("chdir_to_trial_dir", self.chdir_to_trial_dir)
        hint = "Threads of a process share its working directory."
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
        hint = "Names must be safe and not those of dasktune's files, such as 'error.txt'."
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
            hint = "Give names such as 'model', 'onnx', 'h5' or 'checkpoint', or your class's own."
            check(listed, "export_formats", "a list of names", formats, hint)
            object.__setattr__(self, "export_formats", names)

    @property
    def log_files(self) -> tuple[str, str] | None:
        """The files for a trial's stdout and stderr; None if they are not written."""
        given = self.log_to_file
        if isinstance(given, bool):
            return ("stdout", "stderr") if given else None
        out, err = (given, given) if isinstance(given, str) else given
        return out, err

    def _check_parts(self) -> None:
        # Users of Ray Tune pass None for the defaults.
        parts = (("checkpoint_config", _CHECKPOINTS), ("failure_config", _FAILURES))
        for name, default in parts:
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
            part, kind = getattr(self, name), type(default)
            hint = f"Write {name}={kind.__name__}(...)."
            check(isinstance(part, kind), name, f"a {kind.__name__}", part, hint)

    def __repr__(self) -> str:
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.repr}
        if self.storage_options is not None:
            shown["storage_options"] = dict.fromkeys(self.storage_options, "***")
        arguments = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        # A URL may contain a password, too.
        return without_passwords(f"RunConfig({arguments})")

    @property
    def storage_url(self) -> str:
        """The path or URL in which experiments are stored."""
        return DEFAULT_STORAGE_PATH if self.storage_path is None else os.fspath(self.storage_path)


def _may_be_log(name: object) -> bool:
    return is_safe_name(name) and _TAKEN.fullmatch(str(name)) is None
