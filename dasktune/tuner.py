"""The front door: `Tuner`."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from typing import Any

from dasktune.config import RunConfig, TuneConfig
from dasktune.errors import ConfigError, StorageError, TrialError, TuneError, check
from dasktune.experiment import Experiment
from dasktune.progress import ProgressLine, ProgressObserver
from dasktune.registry import get_trainable
from dasktune.results import ResultGrid
from dasktune.runner import SystemClock, TrialRunner
from dasktune.runner.build import build_experiment, first_config
from dasktune.storage.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.location import Storage
from dasktune.trainable.interface import default_resources, trainable_name, validate_trainable
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Tuner"]

logger = logging.getLogger(__name__)

#: Seconds from the second Ctrl-C until nothing is waited for any more.
_AGAIN = 0.5


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

    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        client: Any = None,
    ) -> None:
        self._trainable = get_trainable(trainable) if isinstance(trainable, str) else trainable
        validate_trainable(self._trainable)
        check(
            param_space is None or isinstance(param_space, Mapping),
            "param_space",
            "a mapping of names to values and domains",
            param_space,
        )
        self._param_space = dict(param_space or {})
        self._tune_config = _of_type(tune_config, TuneConfig, "tune_config")
        self._run_config = _of_type(run_config, RunConfig, "run_config")
        self._check_checkpoints()
        self._client = client
        self._results: ResultGrid | None = None
        self._runner: TrialRunner | None = None
        self._cancelled = False
        # What is wrong with the space, the searcher or the scheduler shows here, not after minutes.
        self._experiment: Experiment | None = build_experiment(
            self._tune_config, self._run_config, self._param_space
        )

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
        with _interrupts_remembered() as interrupts:
            return self._fit(interrupts)

    def _fit(self, interrupts: _Interrupts) -> ResultGrid:
        # Dask takes a while to import; who only configures need not wait for it.
        from dasktune.cluster.launch import Launch, launched

        experiment = self._take_experiment()
        name = self._run_config.name or _default_name(self._trainable)
        storage = self._new_storage(name)
        launch = Launch(
            trainable=self._trainable,
            param_space=self._param_space,
            name=name,
            storage=storage,
            run_config=self._run_config,
            reuse_actors=self._tune_config.reuse_actors,
            resources=self._first_resources(experiment),
            metrics=_metrics(experiment),
        )
        clock = SystemClock()
        with launched(self._client, launch, clock) as executor:
            store = ExperimentStore(storage)
            store.create(self._spec(name))
            runner = TrialRunner(
                experiment,
                executor,
                store=store,
                clock=clock,
                resources_for=self._resources_for,
                observers=self._observers(experiment),
            )
            interrupts.raise_again()
            self._run(runner)
        if runner.interrupted:
            logger.warning("interrupted; what was recorded is kept in %s", storage)
        self._results = self._read_off(experiment, store, storage)
        _raise_first_error(experiment)
        return self._results

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
            self._cancelled = True
            if self._runner is not None:
                self._runner.interrupt()
            await asyncio.wait({fitting})
            raise

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

    def _check_checkpoints(self) -> None:
        config = self._run_config.checkpoint_config
        for name in ("checkpoint_frequency", "checkpoint_at_end"):
            check(
                isinstance(self._trainable, type) or not getattr(config, name),
                name,
                "left out for a function",
                getattr(config, name),
                "A function saves by itself: report(metrics, checkpoint=...).",
            )

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
                "experiment already. Give this one another name."
            )
        return storage

    def _run(self, runner: TrialRunner) -> None:
        self._runner = runner
        if self._cancelled:
            runner.interrupt()
        with _interruptible(runner):
            runner.run()

    def _resources_for(self, config: dict[str, Any]) -> PlacementGroupFactory:
        try:
            return default_resources(self._trainable, config)
        except TuneError:
            raise
        except Exception as error:
            raise ConfigError(
                f"resources must be a request for every configuration, got {error!r} from their "
                f"function for {config!r}. Let it return a dict such as {{'cpu': 1}}."
            ) from error

    def _first_resources(self, experiment: Experiment) -> PlacementGroupFactory | None:
        """Return what the first trial asks for, or None if that cannot be told yet."""
        config = first_config(experiment)
        if config is not None:
            return self._resources_for(config)
        try:
            return default_resources(self._trainable, {})
        except (LookupError, TypeError, AttributeError):
            return None  # the function looks at a configuration

    def _observers(self, experiment: Experiment) -> list[Any]:
        if not self._run_config.verbose:
            return []
        settings = experiment.settings
        line = ProgressLine(
            total=experiment.search.total_samples, metric=settings.metric, mode=settings.mode
        )
        return [ProgressObserver(line)]

    def _spec(self, name: str) -> dict[str, Any]:
        """Return what ``experiment.json`` says."""
        return {
            "format": 1,
            "dasktune": version("dasktune"),
            "name": name,
            "trainable": trainable_name(self._trainable),
            "metric": self._tune_config.metric,
            "mode": self._tune_config.mode,
            "num_samples": self._tune_config.num_samples,
            "created": datetime.now().astimezone().isoformat(timespec="seconds"),
        }

    def _read_off(
        self, experiment: Experiment, store: ExperimentStore, storage: Storage
    ) -> ResultGrid:
        return ResultGrid.from_trials(
            experiment.trials.values(),
            storage.url,
            self._tune_config.metric,
            self._tune_config.mode,
            store.checkpoints.load,
            self._run_config.checkpoint_config.retention,
        )


def _of_type(value: Any, kind: type[Any], name: str) -> Any:
    check(value is None or isinstance(value, kind), name, f"a {kind.__name__}", value)
    return kind() if value is None else value


def _default_name(trainable: Any) -> str:
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    # Two experiments may begin within a second.
    return f"{trainable_name(trainable)}_{now}_{uuid.uuid4().hex[:4]}"


def _metrics(experiment: Experiment) -> tuple[str, ...]:
    """Return what every result must hold for the policies to work."""
    wanted = (experiment.settings.metric, experiment.scheduler.metric)
    return tuple(dict.fromkeys(name for name in wanted if name is not None))


class _Interrupts:
    """Remembers Ctrl-C while an experiment gets ready.

    The exception may come up where Python or a library swallows it, a destructor for one. The
    experiment would then run on as if nobody had pressed anything.
    """

    def __init__(self) -> None:
        self._heard = False

    def hear(self, number: int, frame: object) -> None:
        """Handle the signal."""
        self._heard = True
        raise KeyboardInterrupt

    def raise_again(self) -> None:
        """Raise the interrupt if there was one: whoever had it has lost it."""
        if self._heard:
            raise KeyboardInterrupt


@contextmanager
def _interrupts_remembered() -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    is_main = threading.current_thread() is threading.main_thread()
    # Whoever has a handler of his own means it.
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.hear)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interruptible(runner: TrialRunner) -> Iterator[None]:
    """Let the first Ctrl-C end the run in good order, and the second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    main = threading.get_ident()
    again = threading.Timer(_AGAIN, lambda: signal.pthread_kill(main, signal.SIGINT))
    again.daemon = True

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, leave)
        runner.interrupt()
        logger.warning("interrupted: finishing; press Ctrl-C again to leave at once")

    def leave(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # On its way out the runner waits for its trials, unless it did so already.
        again.start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        again.cancel()
        signal.signal(signal.SIGINT, before)


def _raise_first_error(experiment: Experiment) -> None:
    trial = experiment.first_error
    if trial is None or experiment.settings.fail_fast != "raise":
        return
    error = trial.error
    told = TrialError(
        trial.trial_id,
        trial.reason if error is None else error.message,
        "" if error is None else error.traceback,
    )
    own = None if error is None else _unpickled(error.pickled)
    if own is None:
        raise told
    # Its traceback stayed on the worker; the text of it goes along.
    raise own from told


def _unpickled(blob: bytes) -> BaseException | None:
    """Return the exception of user code, if it can be made here; its class may do anything."""
    try:
        error = pickle.loads(blob)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
