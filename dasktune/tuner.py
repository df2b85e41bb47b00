"""The front door: `Tuner`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from dasktune.callback import TrialPlaces
from dasktune.config import RunConfig, TuneConfig
from dasktune.control.lazily import controlled
from dasktune.description import description
from dasktune.detached import DetachedExperiment, submit
from dasktune.errors import ConfigError, StorageError, check
from dasktune.experiment import Experiment
from dasktune.first_error import raise_first_error
from dasktune.first_setup import setup_of
from dasktune.interrupts import Interrupts, interruptible, interrupts_remembered
from dasktune.plain_errors import plain_errors
from dasktune.progress import watched
from dasktune.registry import get_trainable
from dasktune.results import ResultGrid
from dasktune.resume import Session, beginning_of, check_trainable, leading, restored, seeded
from dasktune.resume_config import ResumeConfig
from dasktune.runner import Stage, SystemClock, ThinkingThread, TrialRunner
from dasktune.runner.build import (
    build_callbacks,
    build_experiment,
    check_saving,
    first_resources,
    required_metrics,
    resources_for,
)
from dasktune.runner.commands import Commands
from dasktune.runner.naming import Naming
from dasktune.showing import linked, shown
from dasktune.space.fits import check_fits
from dasktune.storage.beginning import copy_beginning
from dasktune.storage.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.location import Storage
from dasktune.storage.setup_file import SETUP_FILE
from dasktune.trainable.interface import experiment_name, trainable_name, validate_trainable

__all__ = ["Tuner"]

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
        What is searched for, and how.
    run_config : RunConfig, optional
        Where it is kept, when trials end, what failures cost.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client if there is one, else a `LocalCluster` with
        one process per CPU, which is closed at the end.

    Raises
    ------
    ConfigError
        If an argument breaks its rule. Nothing has been started then.

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

    @plain_errors
    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        client: Any = None,
        _session: Session | None = None,
    ) -> None:
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
        )
        self._param_space = dict(param_space or {})
        self._tune_config = seeded(_of_type(tune_config, TuneConfig, "tune_config"))
        self._run_config = _of_type(run_config, RunConfig, "run_config")
        check_saving(self._trainable, self._run_config)
        self._beginning = beginning_of(self._run_config, _session)
        self._client = client
        self._results: ResultGrid | None = None
        self._runner: TrialRunner | None = None
        self._cancelled = False
        self._page = "", False  # in Dask's dashboard; whether Dask's own pages are beside it
        self._session = _session
        self._experiment: Experiment | None
        if _session is not None:
            self._setup, self._experiment = _session.setup, _session.experiment
            store = ExperimentStore(_session.storage)
            self._results = self._read_off(_session.experiment, store, _session.storage)
            return
        parts = self._tune_config, self._run_config, self._param_space
        # The user's objects as they are before anything is asked of them.
        self._setup = setup_of(*parts)
        # What is wrong with the space, the searcher or the scheduler shows here, not after minutes.
        self._experiment = build_experiment(*parts)

    @classmethod
    @plain_errors
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
        """Go on with an experiment whose driver has ended, was interrupted or has died.

        All that its driver had acknowledged is there. :meth:`fit` runs the unfinished trials on,
        from their last checkpoints and in their old order. The directory may have been moved.
        Restoring unpickles what stands there: do it only with directories that you trust.

        Parameters
        ----------
        path : str or path
            The experiment's directory, or its URL.
        trainable : callable, type or str
            As it was given to the `Tuner`.
        resume_unfinished : bool, default=True
            Run on what had not ended, or only for the failure of a trial that is tried again.
        resume_errored : bool, default=False
            Let the trials that failed go on from their last checkpoints.
        restart_errored : bool, default=False
            Let the trials that failed begin anew.
        resume_config : ResumeConfig, optional
            The same and more, instead of these three.
        tune_config : TuneConfig, optional
            What it goes on with: more samples, other limits, a scheduler with another ``max_t``. By
            default as it was begun.
        run_config : RunConfig, optional
            Likewise. Its name and place are not looked at.
        param_space : mapping, optional
            Likewise, with the same names, for values that cannot be pickled.
        storage_options : mapping, optional
            What fsspec needs for the URL; never stored, so it must be given again.
        client : optional
            The Dask cluster, as for `Tuner`.

        Returns
        -------
        Tuner
            Whose :meth:`get_results` gives what there is so far.

        Raises
        ------
        ConfigError
            If the trainable has another name, or something is to be changed that cannot.
        StorageError
            If there is no experiment, or it is damaged, or an object no longer loads.

        Examples
        --------
        >>> Tuner.restore("~/dasktune_results/train", train).fit()  # doctest: +SKIP
        """
        storage = Storage(path, storage_options or {})  # type: ignore[arg-type]
        check_trainable(storage, trainable)
        resume = resume_config or ResumeConfig.of_flags(
            resume_unfinished, resume_errored, restart_errored
        )
        session = restored(
            storage,
            tune_config=tune_config,
            run_config=run_config,
            param_space=param_space,
            resume=resume,
        )
        return cls(trainable, client=client, _session=session)

    @classmethod
    def can_restore(
        cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> bool:
        """Whether :meth:`restore` would find an experiment there.

        Parameters
        ----------
        path : str or path
            The experiment's directory, or its URL.
        storage_options : mapping, optional
            What fsspec needs for the URL.
        """
        return Storage(path, storage_options or {}).exists(SETUP_FILE)  # type: ignore[arg-type]

    @plain_errors
    def fit(self) -> ResultGrid:
        """Run the experiment to its end, and return what came of it.

        Ctrl-C ends it early: what was recorded is kept, and the results so far are returned.

        Returns
        -------
        ResultGrid
            One result for each trial, failed ones included.

        Raises
        ------
        ClusterError
            If the cluster cannot be used, or is lost for good.
        PreflightError
            If cluster or storage cannot run this experiment; no trial was started.
        StorageError
            If an experiment of this name is stored there already.
        TrialError
            If a trial failed and ``fail_fast="raise"`` was asked for, and its own exception cannot
            be raised here.
        """
        with interrupts_remembered() as interrupts:
            return self._fit(interrupts)

    def _fit(self, interrupts: Interrupts) -> ResultGrid:
        experiment = self._take_experiment()
        (name, storage), config = self._place(), self._run_config
        with (
            self._on_stage(experiment, name, storage) as stage,
            leading(storage, config.driver_ttl, self._session, self._interrupt),
            ExitStack() as showing,
        ):
            store = self._open_store(storage, name, experiment)
            showing.enter_context(self._shown(experiment, name, storage, stage.clock.now))
            if self._beginning is not None:
                copy_beginning(self._beginning, store.storage)
            places = TrialPlaces.of(store, trainable_name(self._trainable), self._param_space)
            offers = stage.executor.offers
            progress = watched(config, experiment, places, self._param_space, offers)
            missed = None if self._session is None else self._session.missed
            runner = TrialRunner(
                experiment,
                stage.executor,
                store=store,
                clock=stage.clock,
                resources_for=partial(resources_for, self._trainable),
                observers=showing.enter_context(progress),
                checkpoint_period=config.checkpoint_period,
                thinker=stage.thinker,
                naming=Naming(self._tune_config, places, experiment.trials),
                callbacks=build_callbacks(self._tune_config, config, experiment, places, missed),
            )
            interrupts.raise_again()
            if self._session is not None:
                self._session.begin(runner)
            self._run(runner, storage)
        if runner.interrupted:
            self._tell_how_to_go_on(storage)
        self._results = self._read_off(experiment, store, storage)
        raise_first_error(experiment)
        return self._results

    def _tell_how_to_go_on(self, storage: Storage) -> None:
        logger.warning(
            "interrupted; what was recorded is kept. Go on by Tuner.restore(%r, %s).fit()",
            str(storage),
            trainable_name(self._trainable),
        )

    def _place(self) -> tuple[str, Storage]:
        """Return the experiment's name and directory."""
        if self._session is not None:
            return self._session.name, self._session.storage
        name = self._run_config.name or experiment_name(self._trainable)
        return name, self._new_storage(name)

    @contextmanager
    def _on_stage(self, experiment: Experiment, name: str, storage: Storage) -> Iterator[Stage]:
        """Yield where trials run: on a cluster."""
        # Dask takes a while to import; who only configures need not wait for it.
        from dasktune.cluster.launch import Launch, launched

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
            on_link=self._take_link,
        )
        clock = SystemClock()
        with launched(self._client, launch, clock) as executor:
            yield Stage(executor=executor, clock=clock, thinker=ThinkingThread)

    def _take_link(self, link: str, has_neighbours: bool) -> None:
        self._page = link, has_neighbours

    def _interrupt(self) -> None:
        """End a run as Ctrl-C would; safe in any thread."""
        self._cancelled = True
        if self._runner is not None:
            self._runner.interrupt()

    async def fit_async(self) -> ResultGrid:
        """Run :meth:`fit` in a thread, for callers that live on an event loop, such as notebooks.

        Returns
        -------
        ResultGrid
            As :meth:`fit` does. Cancelling it ends the experiment as Ctrl-C does.
        """
        fitting = asyncio.ensure_future(asyncio.to_thread(self.fit))
        try:
            return await asyncio.shield(fitting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, and the loop's end would wait for it.
            self._interrupt()
            await asyncio.wait({fitting})
            raise

    @plain_errors
    def submit(self) -> DetachedExperiment:
        """Let the cluster run the experiment by itself, so that this process may end.

        The driver becomes a task of the cluster. If its worker dies, it goes on on another one,
        from where the journal ends, as often as that happens. All workers must see
        ``storage_path``, and Dask's scheduler holds the ``storage_options``. A checkpoint on this
        machine that trials begin from travels along, up to 16 MiB. An experiment that was restored
        may be submitted like a new one.

        Returns
        -------
        DetachedExperiment
            To wait for it, or to stop it; :func:`attach` gives the same to any other process.

        Raises
        ------
        ConfigError
            If the cluster would end with this process or has an experiment of this name, the
            workers do not share ``storage_path`` or lack a file, or something cannot travel.
        """
        self._take_experiment()
        parts = {
            "trainable": self._trainable,
            "param_space": self._param_space,
            "tune_config": self._tune_config,
            "run_config": self._run_config,
        }
        if self._session is not None:
            name = self._session.name
        else:
            name = self._run_config.name or experiment_name(self._trainable)
        return submit(parts, name, self._client, self._session, self._beginning)

    @property
    def runner(self) -> TrialRunner | None:
        """What runs the experiment, while :meth:`fit` does."""
        return self._runner

    @property
    def dashboard_link(self) -> str | None:
        """Where Dask's dashboard shows the experiment, once :meth:`fit` has begun, else None."""
        return self._page[0] or None

    def __repr__(self) -> str:
        shown = f", dashboard {self._page[0]}" if self._page[0] else ""
        return f"Tuner({trainable_name(self._trainable)}{shown})"

    def _repr_html_(self) -> str:
        return linked(f"Tuner({trainable_name(self._trainable)})", self.dashboard_link)

    def get_results(self) -> ResultGrid:
        """Return what the last :meth:`fit` returned.

        Raises
        ------
        ConfigError
            If there was none.
        """
        if self._results is None:
            raise ConfigError("get_results() must be called after fit(). Call fit() first.")
        return self._results

    def _take_experiment(self) -> Experiment:
        """Return the experiment, once: searcher and scheduler learn from a run, and keep it."""
        experiment, self._experiment = self._experiment, None
        if experiment is None:
            raise ConfigError("fit() must be called once for each Tuner. Make a new one.")
        return experiment

    def _new_storage(self, name: str) -> Storage:
        """Return the experiment's directory, if it can be used and nothing is there yet."""
        from dasktune.cluster.preflight import check_storage

        config = self._run_config
        storage = Storage(config.storage_url, config.storage_options or {}).child(name)
        check_storage(storage)
        # It is made sure of when the experiment begins; here nobody has waited for a cluster yet.
        if storage.exists(SPEC_FILE):
            raise StorageError(
                f"name must be new to its storage_path, got {name!r}: {storage} holds an "
                "experiment already. Give this one another name, or go on with that one by "
                "Tuner.restore()."
            )
        return storage

    def _open_store(self, storage: Storage, name: str, experiment: Experiment) -> ExperimentStore:
        store = ExperimentStore(storage.patient(self._run_config.storage_patience))
        if self._session is not None:
            store.begin(after=self._session.end)
            return store
        store.create(self._description(experiment, name))
        self._setup.write(storage)
        for what, why in self._setup.lost:
            logger.warning("%s cannot be pickled (%s): Tuner.restore() will ask for it", what, why)
        return store

    def _description(self, experiment: Experiment, name: str) -> dict[str, Any]:
        of, total = trainable_name(self._trainable), experiment.search.total_samples
        return description(name, of, self._tune_config, self._param_space, total)

    def _shown(
        self, experiment: Experiment, name: str, storage: Storage, now: Callable[[], float]
    ) -> AbstractContextManager[None]:
        config = self._run_config

        def commands() -> Commands | None:
            return None if self._runner is None else self._runner.commands

        return shown(
            config.dashboard,
            partial(self._description, experiment, name),
            storage=storage,
            runner_time=now,
            loud=config.verbose > 0,
            find_dask=lambda: self._page[0] if self._page[1] else "",
            commander=commands if config.dashboard_controls else None,
        )

    def _run(self, runner: TrialRunner, storage: Storage) -> None:
        self._runner = runner
        if self._cancelled:
            runner.interrupt()
        runner.commands.config_rule = partial(check_fits, self._param_space)
        port = self._run_config.server_port
        with controlled(port, runner.commands, storage), interruptible(runner):
            runner.run()

    def _read_off(
        self, experiment: Experiment, store: ExperimentStore, storage: Storage
    ) -> ResultGrid:
        config = self._tune_config
        return ResultGrid.from_trials(
            experiment.trials.values(),
            storage.url,
            config.metric,
            config.mode,
            store.checkpoints.load,
            self._run_config.checkpoint_config.retention,
            storage,
        )


def _of_type(value: Any, kind: type[Any], name: str) -> Any:
    check(value is None or isinstance(value, kind), name, f"a {kind.__name__}", value)
    return kind() if value is None else value
