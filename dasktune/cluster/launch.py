"""From a trainable and a cluster to an executor that is ready to run trials."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from dasktune.cluster.admission import Admission, only_allowed
from dasktune.cluster.code import pack
from dasktune.cluster.connect import Connection, connect
from dasktune.cluster.demand import Growth
from dasktune.cluster.executor import DaskTrialExecutor
from dasktune.cluster.payload import Payload, pack_trainable
from dasktune.cluster.poster import posted
from dasktune.cluster.preflight import Checks, check_request, preflight
from dasktune.cluster.service import ServiceSettings
from dasktune.cluster.workers import read_workers
from dasktune.config import RunConfig
from dasktune.errors import ClusterError
from dasktune.placement import Ledger
from dasktune.runner.ports import Clock
from dasktune.storage.beginning import BEGINNING
from dasktune.storage.location import Storage
from dasktune.storage.probe import traceless
from dasktune.trainable.interface import resource_help
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.actions import RestoreTrial, StartTrial
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

__all__ = ["Launch", "launched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is to be run.

    Parameters
    ----------
    trainable : type or callable
        The user's code.
    param_space : mapping
        The search space, so that what cannot travel is found before a trial starts.
    name : str
        Of the experiment.
    storage : Storage
        Of the experiment.
    run_config : RunConfig
        Limits.
    reuse_actors : bool
        Whether a slot takes one trial after the other.
    resources : PlacementGroupFactory or None
        What every trial asks for; None if that depends on its configuration.
    metrics : tuple of str
        What every result must hold.
    complete : callable, default=dict
        Returns a trial's configuration with what only its own run needs, as it goes to a worker.
    saves : bool, default=True
        Whether trials save checkpoints.
    trials : mapping of str to Trial, optional
        Those of the experiment, by their ids; grows. One that is not there is called by its id.
    on_link : callable, optional
        Called, in some thread, with the address of the experiment's page in Dask's dashboard.
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
        """What the trainable has to say where the resources do not suffice."""
        return resource_help(self.trainable, dict(self.param_space))

    def prepare(self, action: StartTrial | RestoreTrial) -> tuple[TrialSpec, bytes]:
        """Return a trial's specification and its pickled configuration."""
        checkpoints = self.run_config.checkpoint_config
        trial = self.trials.get(action.trial_id)
        spec = TrialSpec(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            # As the user asked for it.
            resources=action.resources.exclusively(False),
            storage=self.storage.patient(self.run_config.storage_patience),
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
            log_files=self.run_config.log_files,
            chdir=self.run_config.chdir_to_trial_dir,
            beginning=None if self.run_config.restore is None else BEGINNING,
            export_formats=tuple(self.run_config.export_formats or ()),
            report_timeout_s=self.run_config.failure_config.report_timeout_s,
            stop_grace=self.run_config.stop_grace,
        )
        config = self.complete(action.config)
        return spec, pack({"config": config}, code=self.run_config.code)

    def service_settings(self) -> ServiceSettings:
        """Return the limits under a name that no other experiment on the cluster has."""
        config = self.run_config
        return ServiceSettings(
            name=f"dasktune-{uuid.uuid4().hex}",
            heartbeat_timeout=config.heartbeat_timeout,
            driver_ttl=config.driver_ttl,
            stop_grace=config.stop_grace,
            reuse_actors=self.reuse_actors,
            priority=config.priority,
            memory_limit=config.checkpoint_config.pause_limit,
            disk_first=self.storage.is_local and config.checkpoint_config.memory_limit is None,
        )


@contextmanager
def launched(client: Any, launch: Launch, clock: Clock) -> Iterator[DaskTrialExecutor]:
    """Connect, check everything that can be checked before a trial starts, and open an executor.

    Parameters
    ----------
    client : object
        What names the cluster; see :func:`dasktune.cluster.connect.connect`.
    launch : Launch
        What is to be run.
    clock : Clock
        Stamps the events.

    Raises
    ------
    ConfigError
        If the trainable or the search space cannot travel.
    ClusterError
        If the cluster cannot be reached.
    PreflightError
        If it cannot run the experiment.
    """
    config = launch.run_config
    pack({"param_space": launch.param_space}, code=config.code)
    payload = pack_trainable(launch.trainable, code=config.code)
    with connect(client, timeout_s=config.scheduler_wait) as connection:
        growth = Growth(client, embedded=connection.embedded)
        admission = _admitted(connection, payload, launch, growth)
        executor = DaskTrialExecutor(
            connection,
            launch.service_settings(),
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
            with _posted(client, connection, launch):
                yield executor
        finally:
            executor.close()
            if connection.client.status == "running":
                connection.client.loop.add_callback(admission.close)


def _admitted(
    connection: Connection, payload: Payload, launch: Launch, growth: Growth
) -> Admission:
    """Check the cluster, and return what checks workers that come later."""
    config = launch.run_config
    checks = Checks(
        blob=payload.blob,
        storage=launch.storage,
        code=config.code,
        # A worker that is silent for longer would be given up anyway.
        timeout_s=min(60.0, max(10.0, 2 * config.heartbeat_timeout)),
        saves=launch.saves,
    )
    client = connection.client
    try:
        with traceless(launch.storage):
            admission: Admission = client.sync(_check, client, checks, launch, growth)
    except OSError as error:
        raise ClusterError(
            f"the Dask scheduler at {connection.address} was lost before the first trial "
            f"({error}). Call fit() again when it is back."
        ) from error
    return admission


def _posted(client: Any, connection: Connection, launch: Launch) -> AbstractContextManager[None]:
    config = launch.run_config
    return posted(
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
    workers = only_allowed(await read_workers(client), config.workers, may_wait=may_wait)
    report = await preflight(client, checks, workers=workers)
    admission = Admission(
        client,
        checks,
        report.hosts,
        allowed=config.workers,
        declare=config.declare_resources,
    )
    # The others are looked at like those that come later.
    await admission.examine({a: one for a, one in workers.items() if a not in report.unchecked})
    ledger = Ledger(heartbeat_timeout=config.heartbeat_timeout)
    # Once more: now it is known who has which GPUs.
    again = await read_workers(client)
    ledger.update(only_allowed(again, config.workers, may_wait=may_wait))
    resources = launch.resources or PlacementGroupFactory([{}])
    may_queue = config.queue_trials
    if may_queue is None:
        may_queue = growth.may_wait(resources, empty=not again)
    if not may_queue and not report.unchecked:
        check_request(ledger, resources, launch.advice)
    return admission
