"""Launches an experiment on a cluster: connects, checks the workers, and opens the executor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from dasktune.cluster.checks.admission import Admission, only_allowed
from dasktune.cluster.checks.preflight import Checks, check_request, preflight
from dasktune.cluster.connection.connect import Connection, connect
from dasktune.cluster.driver.garbage_collection import rarer_collections
from dasktune.cluster.membership.worker_list import list_workers
from dasktune.cluster.protocol.payload import Payload, pack_trainable
from dasktune.cluster.protocol.pickling import dumps_user_code
from dasktune.cluster.resources.adaptive_demand import Growth
from dasktune.cluster.scheduler_page.page_publisher import publishing
from dasktune.config import RunConfig
from dasktune.errors import ClusterError, check
from dasktune.placement import Ledger
from dasktune.runner.ports import Clock
from dasktune.runner.secret_values import check_secrets, names_by_value, with_secrets
from dasktune.storage.checkpoints.initial import INITIAL_CHECKPOINT
from dasktune.storage.fs.probe import writes_nothing
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.api.binding import resource_help
from dasktune.trainable.api.distributed import rank_settings
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.ranks import RankSettings
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.actions import RestoreTrial, StartTrial
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    from dasktune.cluster.driver.dispatcher import DispatcherSettings
    from dasktune.cluster.driver.executor import DaskTrialExecutor

#: Seconds after which the workers are read again before the request is compared with them.
_SOON: Final = 1.0

#: Seconds between two looks whether the checks have ended.
_WAIT: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The experiment to launch.

    Parameters
    ----------
    trainable : type or callable
        The user's code.
    param_space : mapping
        The search space. It is pickled before the first trial, to find values that cannot be
        pickled.
    name : str
        The experiment's name.
    storage : Storage
        The experiment's directory.
    run_config : RunConfig
        The user's settings.
    reuse_actors : bool
        Whether an actor runs several trials, one after another.
    resources : PlacementGroupFactory or None
        The resources of every trial; None if they depend on its configuration.
    metrics : tuple of str
        Metrics that every result must contain.
    complete : callable, default=dict
        Given a trial's configuration as journaled, returns the configuration that its worker gets.
    saves : bool, default=True
        Whether trials save checkpoints.
    trials : mapping of str to Trial, optional
        The experiment's trials by id; the runner adds trials to it. A missing trial gets its id as
        its name.
    on_link : callable, optional
        Called, in any thread, with the address of the experiment's page in Dask's dashboard, and
        whether Dask's own pages are next to it.
    """

    trainable: Any
    param_space: Any
    name: str
    storage: Storage
    run_config: RunConfig
    reuse_actors: bool
    resources: PlacementGroupFactory | None
    metrics: tuple[str, ...]
    complete: Callable[[dict[str, Any]], dict[str, Any]] = dict
    saves: bool = True
    trials: Mapping[str, Trial] = field(default_factory=dict)
    on_link: Callable[[str, bool], None] = lambda link, has_neighbours: None

    @property
    def advice(self) -> str:
        """The trainable's advice for an error about insufficient resources."""
        return resource_help(self.trainable, dict(self.param_space))

    def prepare(self, action: StartTrial | RestoreTrial) -> tuple[TrialSpec, bytes]:
        """Return a trial's specification and its pickled configuration."""
        checkpoints = self.run_config.checkpoint_config
        config = self.complete(action.config)
        trial = self.trials.get(action.trial_id)
        spec = TrialSpec(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            # Without the exclusive request that isolates a suspected trial.
            resources=action.resources.exclusively(False),
            storage=self.storage.with_retry(self.run_config.storage_patience),
            trial_dir=action.trial_id if trial is None else trial.folder,
            experiment_name=self.name,
            trial_name=(trial and trial.name) or action.trial_id,
            checkpoint=action.checkpoint if isinstance(action, RestoreTrial) else None,
            milestones=action.milestones,
            next_checkpoint=action.next_checkpoint,
            checkpoint_frequency=checkpoints.checkpoint_frequency,
            checkpoint_at_end=checkpoints.checkpoint_at_end,
            required_metrics=self.metrics,
            isolation=self.run_config.isolation,
            ranks=self._rank_settings(),
            log_files=self.run_config.log_files,
            chdir=self.run_config.chdir_to_trial_dir,
            initial_checkpoint=None if self.run_config.restore is None else INITIAL_CHECKPOINT,
            export_formats=tuple(self.run_config.export_formats or ()),
            report_timeout_s=self.run_config.failure_config.report_timeout_s,
            stop_grace=self.run_config.stop_grace,
            secrets=names_by_value(config),
        )
        # Only what the worker gets has the values; no file gets this configuration.
        return spec, dumps_user_code({"config": with_secrets(config)}, code=self.run_config.code)

    @property
    def _can_save(self) -> bool:
        """Whether the trainable is a class that can save a checkpoint at any result."""
        of = self.trainable
        is_class = isinstance(of, type) and issubclass(of, Trainable)
        return is_class and of.save_checkpoint is not Trainable.save_checkpoint

    def _rank_settings(self) -> RankSettings | None:
        settings = rank_settings(self.trainable)
        if settings is None:
            return None
        return replace(settings, lost_after_s=2 * self.run_config.heartbeat_timeout)

    def dispatcher_settings(self) -> DispatcherSettings:
        """Return the dispatcher's settings, with a name that is unique on the cluster."""
        # See `_admission`.
        from dasktune.cluster.driver.dispatcher import DispatcherSettings

        config = self.run_config
        return DispatcherSettings(
            name=f"dasktune-{uuid.uuid4().hex}",
            heartbeat_timeout=config.heartbeat_timeout,
            driver_ttl=config.driver_ttl,
            stop_grace=config.stop_grace,
            reuse_actors=self.reuse_actors,
            priority=config.priority,
            weight=config.weight,
            yields_after=config.yields_after,
            share_group=config.share_group or "",
            can_save=self._can_save,
            label=self.name,
            distributed=self._rank_settings() is not None,
            memory_limit=config.checkpoint_config.pause_limit,
            disk_first=self.storage.is_local and config.checkpoint_config.memory_limit is None,
        )


@contextmanager
def launched(client: Any, launch: Launch, clock: Clock) -> Iterator[DaskTrialExecutor]:
    """Connect to a cluster, check it, and open an executor.

    Everything that can be checked without a trial is checked before the first trial starts.

    Parameters
    ----------
    client : object
        The Dask cluster, as for :func:`dasktune.cluster.connection.connect.connect`.
    launch : Launch
        The experiment.
    clock : Clock
        Stamps the events.

    Raises
    ------
    ConfigError
        If the trainable or the search space cannot be pickled.
    ClusterError
        If the cluster cannot be reached.
    PreflightError
        If the cluster cannot run the experiment.
    """
    config = launch.run_config
    private = rank_settings(launch.trainable) is not None and launch.storage.is_process_private
    hint = "Use a directory or a URL that all workers see."
    check(
        not private, "storage_path", "visible to other processes for with_ranks()", launch.storage.url, hint
    )
    check_secrets(launch.param_space)
    dumps_user_code({"param_space": launch.param_space}, code=config.code)
    payload = pack_trainable(launch.trainable, code=config.code)
    with rarer_collections(), connect(client, timeout_s=config.scheduler_wait) as connection:
        growth = Growth(client, embedded=connection.embedded)
        admission = _admission(connection, payload, launch, growth)
        from dasktune.cluster.driver.executor import DaskTrialExecutor

        executor = DaskTrialExecutor(
            connection,
            launch.dispatcher_settings(),
            payload=payload,
            prepare=launch.prepare,
            clock=clock,
            scheduler_wait=config.scheduler_wait,
            admit=admission,
            queue_trials=config.queue_trials,
            growth=growth,
            advice=launch.advice,
        )
        try:
            with _publishing(client, connection, launch):
                yield executor
        finally:
            executor.close()
            if connection.client.status == "running":
                connection.client.loop.add_callback(admission.close)


def _admission(connection: Connection, payload: Payload, launch: Launch, growth: Growth) -> Admission:
    """Check the cluster, and return the object that checks workers that join later."""
    config = launch.run_config
    checks = Checks(
        blob=payload.blob,
        storage=launch.storage,
        code=config.code,
        # A worker that is silent for longer would be marked lost anyway.
        timeout_s=min(60.0, max(10.0, 2 * config.heartbeat_timeout)),
        saves=launch.saves,
        declare=config.declare_resources,
    )
    client = connection.client
    work = _check(client, checks, launch, growth)
    try:
        with writes_nothing(launch.storage):
            checking = asyncio.run_coroutine_threadsafe(work, client.loop.asyncio_loop)
            try:
                # The first experiment waits for what workers and this process import, so let them
                # do so at the same time. This import takes as long as that of the workers.
                import_module("dasktune.cluster.driver.executor")
                while not checking.done():
                    # Without a limit Ctrl-C would not end the wait on Windows.
                    concurrent.futures.wait((checking,), timeout=_WAIT)
                return checking.result()
            finally:
                # Ctrl-C, for example, has ended the wait.
                checking.cancel()
    except OSError as error:
        raise ClusterError(
            f"the Dask scheduler at {connection.address} was lost before the first trial "
            f"({error}). Call fit() again when it is back."
        ) from error


def _publishing(client: Any, connection: Connection, launch: Launch) -> AbstractContextManager[None]:
    config = launch.run_config
    return publishing(
        config.dashboard is not False,
        client,
        connection,
        launch.storage,
        name=launch.name,
        loud=config.verbose > 0,
        on_link=launch.on_link,
    )


async def _check(client: Any, checks: Checks, launch: Launch, growth: Growth) -> Admission:
    config = launch.run_config
    may_wait = bool(config.queue_trials)
    workers = only_allowed(await list_workers(client), config.workers, may_wait=may_wait)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    report = await preflight(client, checks, workers=workers)
    admission = Admission(client, checks, report, allowed=config.workers)
    # Workers that did not answer are examined later, like workers that join later.
    await admission.examine({a: one for a, one in workers.items() if a not in report.unchecked})
    ledger = Ledger(heartbeat_timeout=config.heartbeat_timeout)
    if admission.has_declared or loop.time() > begun + _SOON:
        workers = only_allowed(await list_workers(client), config.workers, may_wait=may_wait)
    ledger.update(workers)
    resources = launch.resources or PlacementGroupFactory([{}])
    may_queue = config.queue_trials
    if may_queue is None:
        may_queue = growth.may_wait(resources, empty=not workers)
    if not may_queue and not report.unchecked:
        check_request(ledger, resources, launch.advice)
    return admission
