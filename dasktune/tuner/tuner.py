"""`Tuner`, which runs, restores and submits experiments."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, overload

from dasktune.callback import TrialStorage
from dasktune.config import RunConfig, TuneConfig
from dasktune.config.found_past import is_unread, notes_of, places_of
from dasktune.config.resume_config import ResumeConfig
from dasktune.control.issuer import this_user
from dasktune.control.open_server import controlled
from dasktune.dashboard.server.attach import serve_dashboard, with_dashboard_link
from dasktune.errors import ConfigError, check
from dasktune.experiment import ExperimentMachine
from dasktune.full_collections import quick_full_collections
from dasktune.progress import open_progress
from dasktune.registry import get_trainable
from dasktune.results.past_lookup import read_earlier_experiments, with_past
from dasktune.runner import BackgroundThread, Environment, SystemClock, TrialRunner
from dasktune.runner.build import (
    build_callbacks,
    build_experiment,
    check_ranks,
    check_saving,
    elastic_times,
    first_resources,
    required_metrics,
    resources_for,
)
from dasktune.runner.commands import Commands
from dasktune.runner.naming import Naming
from dasktune.space.inspection import check_config
from dasktune.storage.checkpoints.initial import copy_initial_checkpoint
from dasktune.storage.experiment.experiment_store import (
    ExperimentStore,
    experiment_json,
)
from dasktune.storage.fs.probe import warn_if_exposed
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.trainable.api.binding import (
    code_address,
    experiment_name,
    trainable_name,
    validate_trainable,
)
from dasktune.trainable.api.script_import import check_not_imported
from dasktune.trial.nesting import check_nesting
from dasktune.tuner.experiment_directory import (
    can_resume,
    check_queued_owner,
    directory_of,
    free_names,
    reserved_directory,
)
from dasktune.tuner.queued import QueuedExperiment, enqueue
from dasktune.tuner.raise_trial_error import raise_first_error
from dasktune.tuner.restore import (
    RestoredExperiment,
    check_trainable,
    hold_leader_lock,
    initial_checkpoint_of,
    restore_experiment,
    seeded,
)
from dasktune.tuner.result_grid import ResultGrid
from dasktune.tuner.saved_setup import setup_of
from dasktune.tuner.short_tracebacks import short_tracebacks
from dasktune.tuner.signals import EndSignals, keep_interrupts, obey_signals
from dasktune.tuner.submitted import DetachedExperiment, submit
from dasktune.tuner.suspicious_settings import warn_of_constants, with_score_order

logger = logging.getLogger(__name__)


class Tuner:
    """Tunes the hyperparameters of a trainable on a Dask cluster.

    Parameters
    ----------
    trainable : callable, type or str
        A function of the configuration, a subclass of `Trainable`, or the name of a registered one.
    param_space : mapping, optional
        The search space: plain values, domains such as ``tune.uniform(0, 1)``, and
        ``tune.grid_search([...])``, nested as you like.
    tune_config : TuneConfig, optional
        The metric to optimise, the searcher, the scheduler and the number of trials.
    run_config : RunConfig, optional
        The experiment's name and storage, when trials stop, and how failures are handled.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client if there is one, else a `LocalCluster` with
        one process per CPU, which is closed at the end.

    Raises
    ------
    ConfigError
        If an argument breaks its rule. Nothing has been started in this case.

    Examples
    --------
    >>> import dasktune as tune
    >>> tuner = tune.Tuner(
    ...     lambda config: {"loss": config["x"] ** 2},
    ...     param_space={"x": tune.uniform(-1, 1)},
    ...     tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=10),
    ... )
    >>> results = tuner.fit()  # doctest: +SKIP
    >>> results.get_best_result().config  # doctest: +SKIP
    {'x': 0.03}
    """

    @short_tracebacks
    @keep_interrupts()
    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        client: Any = None,
        _session: RestoredExperiment | None = None,
        _queue_entry: str = "",
    ) -> None:
        # The entry of a queue that the experiment belongs to, and whose directory it may use.
        self._queue_entry = _queue_entry
        if _session is not None:
            param_space, tune_config = _session.param_space, _session.tune_config
            run_config = _session.run_config
        self._trainable = get_trainable(trainable) if isinstance(trainable, str) else trainable
        validate_trainable(self._trainable)
        check(
            param_space is None or isinstance(param_space, Mapping),
            "param_space",
            "a mapping of names to values and domains",
            param_space,
            "Write param_space={'lr': uniform(0, 1)}.",
        )
        check_nesting(param_space, "param_space")
        self._param_space = dict(param_space or {})
        self._given_tune_config = tune_config
        self._tune_config = seeded(_of_type(tune_config, TuneConfig, "tune_config"))
        self._run_config = _of_type(run_config, RunConfig, "run_config")
        check_saving(self._trainable, self._run_config)
        check_ranks(self._trainable, self._tune_config)
        self._initial_checkpoint = initial_checkpoint_of(self._run_config, _session)
        self._client = client
        self._results: ResultGrid | None = None
        self._runner: TrialRunner | None = None
        self._cancelled, self._cancelled_by = False, ""
        self._dashboard_page = (
            "",
            False,
        )  # the link in Dask's dashboard; whether Dask's own pages are beside it
        self._session = _session
        self._experiment: ExperimentMachine | None
        if _session is not None:
            self._use_session(_session)
            return
        self._run_config = with_score_order(self._run_config, self._tune_config)
        warn_of_constants(self._param_space, self._tune_config)
        # A resumed experiment has stored what it learned, and does not read the places again.
        storage = None if self._tune_config.learn_from is None else self._place_to_resume()
        if storage is None or not can_resume(storage):
            self._learn_from_past()
        self._build()

    def _learn_from_past(self) -> None:
        """Read the experiments in the places of ``learn_from``, if there are any."""
        self._tune_config = with_past(
            self._tune_config,
            self._run_config,
            self._param_space,
            trainable=trainable_name(self._trainable),
            code=code_address(self._trainable),
        )

    def _build(self) -> None:
        parts = self._tune_config, self._run_config, self._param_space
        read_earlier_experiments(self._tune_config.search_alg)
        # Pickle the user's objects before the searcher and the scheduler change their state.
        self._setup = setup_of(*parts)
        # Raise errors of the space, the searcher or the scheduler here, before a cluster starts.
        self._experiment = build_experiment(*parts)

    @classmethod
    @short_tracebacks
    @keep_interrupts()
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any,
        *,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        resume_config: ResumeConfig | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        param_space: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        client: Any = None,
    ) -> Tuner:
        """Restore an experiment whose driver ended, was interrupted or died.

        Every result that the driver acknowledged is restored. :meth:`fit` resumes the unfinished
        trials from their last checkpoints, in their previous order. The directory may have been
        moved. Restoring unpickles files of the directory: only restore directories that you trust.

        Parameters
        ----------
        path : str or path
            The experiment's directory, or its URL.
        trainable : callable, type or str
            The trainable that was given to the `Tuner`.
        resume_unfinished : bool, default=True
            Resume trials that had not ended, and trials that ``fail_fast`` ended because of another
            trial's failure if that trial is tried again.
        resume_errored : bool, default=False
            Resume failed trials from their last checkpoints.
        restart_errored : bool, default=False
            Restart failed trials from the beginning.
        resume_config : ResumeConfig, optional
            Replaces these three flags, and has more choices.
        tune_config : TuneConfig, optional
            A new configuration: more samples, other limits, a scheduler with another ``max_t``. By
            default the stored one.
        run_config : RunConfig, optional
            A new configuration. Its name and storage path are ignored.
        param_space : mapping, optional
            The search space again, with the same names, for values that cannot be pickled.
        storage_options : mapping, optional
            Options of fsspec for the URL. They are never stored, so they must be given again.
        client : optional
            The Dask cluster, as for `Tuner`.

        Returns
        -------
        Tuner
            A tuner with the restored experiment. Its :meth:`get_results` returns the results so
            far.

        Raises
        ------
        ConfigError
            If the trainable has another name, or an argument changes a setting that must stay the
            same.
        StorageError
            If there is no experiment, it is damaged, or a stored object cannot be unpickled.

        Examples
        --------
        >>> Tuner.restore("~/dasktune_results/train", train).fit()  # doctest: +SKIP
        """
        check_nesting(param_space, "param_space")
        storage = Storage(path, storage_options or {})  # type: ignore[arg-type]
        check_trainable(storage, trainable)
        resume = resume_config or ResumeConfig.of_flags(resume_unfinished, resume_errored, restart_errored)
        session = restore_experiment(
            storage, tune_config=tune_config, run_config=run_config, param_space=param_space, resume=resume
        )
        return cls(trainable, client=client, _session=session)

    @classmethod
    def can_restore(
        cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> bool:
        """Whether a directory holds an experiment that :meth:`restore` can read.

        Parameters
        ----------
        path : str or path
            The experiment's directory, or its URL.
        storage_options : mapping, optional
            Options of fsspec for the URL.
        """
        storage = Storage(path, storage_options or {})  # type: ignore[arg-type]
        return can_resume(storage)

    @short_tracebacks
    def fit(self) -> ResultGrid:
        """Run the experiment to its end, and return its results.

        Ctrl-C ends it early: recorded results are kept, and the results so far are returned. So
        does SIGUSR1. SIGTERM ends it in the same way, and then raises SystemExit, so that this
        process ends with the status that its parent expects.

        Returns
        -------
        ResultGrid
            One result for each trial, failed ones included.

        Raises
        ------
        ClusterError
            If the cluster cannot be used, or is lost and does not come back.
        PreflightError
            If cluster or storage cannot run this experiment; no trial was started.
        ReportError
            If a trial's result or return value breaks its rule while no trial has a result.
        StorageError
            If an experiment of this name exists in this storage path and
            ``RunConfig(if_exists="error")`` is set, or it cannot be replaced or resumed.
        TrialError
            If a trial failed with ``fail_fast="raise"``, and its own exception cannot be unpickled.
        KeyboardInterrupt
            At Ctrl-C before the first trial could start, and at the second Ctrl-C.
        SystemExit
            After SIGTERM, with the exit status 143. :meth:`get_results` returns the results so far.
        """
        check_not_imported()
        with obey_signals() as signals:
            return self._fit(signals)

    def _fit(self, signals: EndSignals) -> ResultGrid:
        self._resume_existing()
        experiment, config = self._take_experiment(), self._run_config
        signals.raise_again()
        with (
            quick_full_collections() as end_of_start,
            self._open_directory() as (name, storage, lock),
            self._open_environment(experiment, name, storage) as environment,
            ExitStack() as displays,
        ):
            signals.raise_again()
            store = self._open_store(storage, name, experiment, lock)
            displays.enter_context(self._serve_dashboard(experiment, name, storage, environment))
            if self._initial_checkpoint is not None:
                copy_initial_checkpoint(self._initial_checkpoint, store.storage)
            trial_storage = TrialStorage.of(store, trainable_name(self._trainable), self._param_space)
            progress = open_progress(
                config,
                experiment,
                trial_storage,
                self._param_space,
                offers=environment.executor.worker_resources,
                shares=environment.executor.cluster_shares,
                notes=notes_of(self._tune_config.learn_from),
            )
            missed = None if self._session is None else self._session.missed
            runner = TrialRunner(
                experiment,
                environment.executor,
                store=store,
                clock=environment.clock,
                resources_for=partial(resources_for, self._trainable),
                observers=displays.enter_context(progress),
                checkpoint_period=config.checkpoint_period,
                background=environment.background,
                naming=Naming(self._tune_config, trial_storage, experiment.trials),
                callbacks=build_callbacks(self._tune_config, config, experiment, trial_storage, missed),
                elastic=elastic_times(self._trainable),
            )
            signals.raise_again()
            if self._session is not None:
                self._session.begin(runner)
            end_of_start()
            self._run(runner, storage, signals)
        if runner.interrupted:
            self._log_how_to_resume(storage)
        self._results = self._read_results(experiment, store, storage)
        signals.end()
        raise_first_error(experiment)
        return self._results

    def _log_how_to_resume(self, storage: Storage) -> None:
        if self._queue_entry:
            # It stays in the queue, unless the user has cancelled it there.
            logger.info("interrupted; recorded results are kept. A runner of the queue resumes %s", storage)
            return
        logger.warning(
            "interrupted; recorded results are kept. Resume with Tuner.restore(%r, %s).fit()",
            str(storage),
            trainable_name(self._trainable),
        )

    @contextmanager
    def _open_directory(self) -> Iterator[tuple[str, Storage, LeaderLock]]:
        """Yield the experiment's name, its directory, and the leader lock of this driver."""
        session, config = self._session, self._run_config
        if session is None:
            with reserved_directory(config, self._name(), self._interrupt, self._queue_entry) as reserved:
                yield reserved
        else:
            with hold_leader_lock(session.storage, config.driver_ttl, session, self._interrupt) as lock:
                if self._queue_entry:
                    check_queued_owner(session.storage, self._queue_entry)
                yield session.name, session.storage, lock

    def _name(self) -> str:
        return self._run_config.name or experiment_name(self._trainable)

    def _resume_existing(self) -> None:
        """Restore the stored experiment of this name, if there is one and the user wants that."""
        storage = self._place_to_resume()
        if self._session is not None or storage is None:
            return
        if not can_resume(storage):
            logger.warning("%s has no experiment to resume: a new one begins", storage)
            if self._experiment is not None and is_unread(self._tune_config.learn_from):
                # The experiment was deleted after this object was created.
                self._learn_from_past()
                self._build()
            return
        check_trainable(storage, self._trainable)
        session = restore_experiment(
            storage,
            tune_config=self._given_tune_config,
            run_config=self._run_config,
            param_space=self._param_space,
            resume=ResumeConfig(),
        )
        self._use_session(session)

    def _place_to_resume(self) -> Storage | None:
        """Return the directory whose experiment, if any, the user wants to resume."""
        config = self._run_config
        if config.if_exists != "resume" or config.name is None:
            return None
        return directory_of(config)

    def _use_session(self, session: RestoredExperiment) -> None:
        self._session, self._setup, self._experiment = session, session.setup, session.experiment
        self._param_space, self._tune_config = dict(session.param_space), session.tune_config
        self._run_config = session.run_config
        self._initial_checkpoint = initial_checkpoint_of(self._run_config, session)
        store = ExperimentStore(session.storage)
        self._results = self._read_results(session.experiment, store, session.storage)

    @contextmanager
    def _open_environment(
        self, experiment: ExperimentMachine, name: str, storage: Storage
    ) -> Iterator[Environment]:
        """Yield the executor on the cluster, with its clock, until the block ends."""
        # Importing Dask is slow, and configuring a Tuner does not need it.
        from dasktune.cluster.driver.launch import Launch, launched

        launch = Launch(
            trainable=self._trainable,
            param_space=self._param_space,
            name=name,
            storage=storage,
            run_config=self._run_config,
            reuse_actors=self._tune_config.reuse_actors,
            resources=first_resources(self._trainable, experiment),
            metrics=required_metrics(experiment, self._tune_config),
            trials=experiment.trials,
            on_link=self._set_dashboard_link,
        )
        clock = SystemClock()
        with launched(self._client, launch, clock) as executor:
            yield Environment(executor=executor, clock=clock, background=BackgroundThread)

    def _set_dashboard_link(self, link: str, has_neighbours: bool) -> None:
        self._dashboard_page = link, has_neighbours

    def _interrupt(self, by: str = "") -> None:
        """End a run as Ctrl-C would; safe in any thread.

        The thread of the leader lock, or the event loop of `fit_async`, may call this before, while
        or after `_run` publishes the runner. This sets `_cancelled` before it reads `_runner`, and
        `_run` sets `_runner` before it reads `_cancelled`. So in each order of the two threads at
        least one of them interrupts the runner; a second interrupt changes nothing.
        """
        self._cancelled_by, self._cancelled = by, True
        if self._runner is not None:
            self._runner.interrupt(by=by)

    async def fit_async(self) -> ResultGrid:
        """Run :meth:`fit` in a thread, for coroutines, such as cells of a notebook.

        Returns
        -------
        ResultGrid
            The result of :meth:`fit`. Cancelling the coroutine ends the experiment as Ctrl-C does.
        """
        fitting = asyncio.ensure_future(asyncio.to_thread(self.fit))
        try:
            return await asyncio.shield(fitting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: without the interrupt, closing the loop would wait for
            # the whole experiment. Whether the thread has made its runner yet does not matter.
            self._interrupt(f"{this_user()} (cancelled coroutine)")
            await asyncio.wait({fitting})
            raise

    @overload
    def submit(self, queue: None = None) -> DetachedExperiment: ...
    @overload
    def submit(self, queue: str | os.PathLike[str]) -> QueuedExperiment: ...
    @short_tracebacks
    @keep_interrupts()
    def submit(self, queue: str | os.PathLike[str] | None = None) -> DetachedExperiment | QueuedExperiment:
        """Run the experiment's driver on the cluster, so that this process may end.

        The driver becomes a task of the cluster. If its worker dies, Dask runs the task on another
        worker, which resumes the experiment from the end of its journal, any number of times. All
        workers must see ``storage_path``, and Dask's scheduler holds the ``storage_options``. An
        initial checkpoint on this machine is sent with the driver, up to 16 MiB. A restored
        experiment may be submitted like a new one.

        Parameters
        ----------
        queue : str or path, optional
            The directory or URL of a queue. The experiment then waits there, and no cluster is
            needed now: ``dasktune queue run`` starts the driver. `priority` and `weight` of the
            `RunConfig` say when. ``storage_options`` are not stored, so the runner needs them.

        Returns
        -------
        DetachedExperiment or QueuedExperiment
            A handle to wait for the experiment or to stop it. In any other process,
            :func:`attach` returns one of a driver on the cluster, and
            ``QueuedExperiment(queue, name)`` is one of an experiment in a queue.

        Raises
        ------
        ConfigError
            If the cluster would end with this process, if it has an experiment of this name and
            ``if_exists`` is not ``"new"``, if the workers do not share ``storage_path`` or lack a
            file, or if an object cannot be pickled.
        """
        check_not_imported()
        if queue is not None:
            return self._submit_to_queue(queue)
        self._resume_existing()
        self._take_experiment()
        parts = {
            "trainable": self._trainable,
            "param_space": self._param_space,
            "tune_config": self._tune_config,
            "run_config": replace(self._run_config, if_exists="error"),
        }
        name = self._name() if self._session is None else self._session.name
        if self._session is None and self._run_config.if_exists == "new":
            return self._submit_under_free_name(parts, name)
        if self._session is None and self._run_config.if_exists == "replace":
            with reserved_directory(self._run_config, name, lambda: None):
                pass  # the old experiment is deleted; the driver on the cluster reserves the name
        return submit(parts, name, self._client, self._session, self._initial_checkpoint)

    def _submit_to_queue(self, queue: str | os.PathLike[str]) -> QueuedExperiment:
        hint = "Submit the tuner that began the experiment, with RunConfig(if_exists='resume')."
        check(self._session is None, "queue", "left out for a restored experiment", queue, hint)
        self._take_experiment()
        parts = {
            "trainable": self._trainable,
            "param_space": self._param_space,
            "tune_config": self._for_queue(self._tune_config),
            # Without the seed that was drawn for it: a resumed experiment keeps its own.
            "given_tune_config": self._for_queue(self._given_tune_config),
            "run_config": self._run_config,
        }
        return enqueue(parts, self._name(), queue, self._initial_checkpoint)

    def _for_queue(self, config: TuneConfig | None) -> TuneConfig | None:
        """Return a configuration with what was found in the places of ``learn_from``.

        If they were not read, because the experiment is to be resumed, it has the places without
        passwords: a driver that resumes it compares them, and does not read them either.
        """
        found = self._tune_config.learn_from
        if config is None:
            return None
        return replace(config, learn_from=list(places_of(found)) if is_unread(found) else found)

    def _submit_under_free_name(self, parts: dict[str, Any], name: str) -> DetachedExperiment:
        """Submit under the first name that neither the storage nor the cluster has."""
        from dasktune.cluster.submitted.driver_task import NameTakenError

        for each in free_names(self._run_config, name):
            # The directory does not show a driver that has been submitted and has not begun.
            with suppress(NameTakenError):
                return submit(parts, each, self._client, None, self._initial_checkpoint)
        raise AssertionError("the names have no end")

    @property
    def runner(self) -> TrialRunner | None:
        """The runner of the experiment; None until :meth:`fit` starts the trials."""
        return self._runner

    @property
    def dashboard_link(self) -> str | None:
        """The experiment's page in Dask's dashboard; None before :meth:`fit` has begun."""
        return self._dashboard_page[0] or None

    def __repr__(self) -> str:
        shown = f", dashboard {self._dashboard_page[0]}" if self._dashboard_page[0] else ""
        return f"Tuner({trainable_name(self._trainable)}{shown})"

    def _repr_html_(self) -> str:
        return with_dashboard_link(f"Tuner({trainable_name(self._trainable)})", self.dashboard_link)

    def get_results(self) -> ResultGrid:
        """Return the results of the last :meth:`fit`, or of the restored experiment.

        Raises
        ------
        ConfigError
            If :meth:`fit` was not called and nothing was restored.
        """
        if self._results is None:
            raise ConfigError("get_results() must be called after fit(). Call fit() first.")
        return self._results

    def _take_experiment(self) -> ExperimentMachine:
        """Return the experiment at the first call, and raise ConfigError at the next ones.

        A run changes the state of the searcher and the scheduler, so they cannot be used again.
        """
        experiment, self._experiment = self._experiment, None
        if experiment is None:
            raise ConfigError("fit() must be called once for each Tuner. Make a new one.")
        return experiment

    def _open_store(
        self, storage: Storage, name: str, experiment: ExperimentMachine, lock: LeaderLock | None = None
    ) -> ExperimentStore:
        warn_if_exposed(storage)
        config = self._run_config
        store = ExperimentStore(
            storage.with_retry(config.storage_patience), lock, compress_journal=config.compress_journal
        )
        if self._session is not None:
            store.begin(after=self._session.end)
        else:
            store.remove_half_created()
            store.create(self._description(experiment, name))
            # The journal begins before the setup is written. So a directory with a setup and
            # without a journal has lost its journal, and is not an experiment that has just begun.
            store.begin()
            self._setup.write(storage)
            for what, why in self._setup.lost:
                logger.warning("%s cannot be pickled (%s): give it again to Tuner.restore()", what, why)
        store.remove_stale_files()
        return store

    def _description(self, experiment: ExperimentMachine, name: str) -> dict[str, Any]:
        of, total = trainable_name(self._trainable), experiment.search.total_samples
        description = experiment_json(name, of, self._tune_config, self._param_space, total)
        return {**description, "code": code_address(self._trainable)}

    def _serve_dashboard(
        self, experiment: ExperimentMachine, name: str, storage: Storage, environment: Environment
    ) -> AbstractContextManager[None]:
        config = self._run_config

        def commands() -> Commands | None:
            return None if self._runner is None else self._runner.commands

        return serve_dashboard(
            config.dashboard,
            partial(self._description, experiment, name),
            storage=storage,
            runner_time=environment.clock.now,
            announce=config.verbose > 0,
            find_dask=lambda: self._dashboard_page[0] if self._dashboard_page[1] else "",
            find_shares=environment.executor.cluster_shares,
            commander=commands if config.dashboard_controls else None,
        )

    def _run(self, runner: TrialRunner, storage: Storage, signals: EndSignals) -> None:
        # `_interrupt` says why this order loses no interrupt.
        self._runner = runner
        if self._cancelled:
            runner.interrupt(by=self._cancelled_by)
        runner.commands.config_rule = partial(check_config, self._param_space)
        config = self._run_config
        server = controlled(
            config.server_port, runner.commands, storage, public_metrics=config.public_metrics
        )
        with server, signals.obey(runner):
            runner.run()

    def _read_results(
        self, experiment: ExperimentMachine, store: ExperimentStore, storage: Storage
    ) -> ResultGrid:
        config = self._tune_config
        return ResultGrid.from_trials(
            experiment.trials.values(),
            storage.url,
            config.metric,
            config.mode,
            store.checkpoints.load,
            self._run_config.checkpoint_config.retention,
            storage=storage,
        )


def _of_type(value: Any, kind: type[Any], name: str) -> Any:
    hint = f"Write {name}={kind.__name__}(...)."
    check(value is None or isinstance(value, kind), name, f"a {kind.__name__}", value, hint)
    return kind() if value is None else value
