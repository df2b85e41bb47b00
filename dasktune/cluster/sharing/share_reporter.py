"""The driver's end of the fair share: registers the plugin, and reports what the driver requests.

The demand is part of the reading of the workers, so an experiment that is alone on its cluster
makes no additional call. If there are others, the begin and the end of waiting are reported at
once, by a small call.

All methods run on the client's event loop, except that other threads may read `others` and
`shares`. The loop replaces both values as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle
from distributed import Client

from dasktune.cluster.connection.by_value import pickled_once
from dasktune.cluster.sharing import (
    amounts,
    due_shares,
    fair_share,
    lease_records,
    share_metrics,
    share_plugin,
    trial_places,
)
from dasktune.cluster.sharing.share_plugin import PLUGIN_NAME, SharePlugin
from dasktune.placement import (
    ClusterShares,
    WorkerCapacity,
    bin_packing,
    devices,
    free_capacity,
    host_layout,
)
from dasktune.text.formatting import plural
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory

logger = logging.getLogger(__name__)

#: The modules whose functions travel to the scheduler by value with the plugin.
TRAVELLING: Final = (
    amounts,
    bin_packing,
    devices,
    due_shares,
    fair_share,
    free_capacity,
    host_layout,
    lease_records,
    share_metrics,
    share_plugin,
    trial_places,
)

#: Seconds that a call to the scheduler may take.
_DEADLINE: Final = 10.0

#: Seconds after which a missing plugin is registered. To pickle its modules takes tens of
#: milliseconds, for which the first trials would wait.
_REGISTER_DELAY: Final = 0.3

#: Least seconds between two attempts to register the plugin on the same scheduler.
_REGISTER_INTERVAL: Final = 60.0

#: Least seconds between two reports of the demand that are not part of a reading.
_PAUSE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTrials:
    """The trials of an experiment that would start now if they had room.

    Parameters
    ----------
    request : PlacementGroupFactory or None
        The resources of each trial; None if none waits.
    number : int
        Number of trials.
    kinds : collection of str
        The resources that the plugin counts: those that workers declare to Dask, and memory.
    closed : sequence of str
        Addresses of the workers that accept no trial now.
    """

    request: PlacementGroupFactory | None
    number: int
    kinds: Collection[str] = ()
    closed: Sequence[str] = ()

    @property
    def plain(self) -> list[tuple[list[dict[str, float]], str, int]]:
        """The requests as plain values: bundles, strategy and number of trials.

        Examples
        --------
        >>> one = PlacementGroupFactory([{"CPU": 1, "disk": 1000}])
        >>> WaitingTrials(request=one, number=3, kinds={"CPU"}).plain
        [([{'CPU': 1}], 'PACK', 3)]
        """
        if self.request is None:
            return []
        bundles = [
            {kind: amount for kind, amount in bundle.items() if kind in self.kinds}
            for bundle in self.request.bundles
        ]
        return [(bundles, self.request.strategy, self.number)]

    @property
    def layouts(self) -> list[tuple[bool, int | None]]:
        """For each request of `plain`: whether hosts count, and the bundles on each of them.

        Examples
        --------
        >>> one = HostPlacement([{"CPU": 1}] * 4, per_host=2)
        >>> WaitingTrials(request=one, number=3).layouts
        [(True, 2)]
        """
        if self.request is None:
            return []
        return [(True, self.request.per_host) if isinstance(self.request, HostPlacement) else (False, None)]


class ShareReporter:
    """Reports an experiment's demand to the plugin on the scheduler, and keeps its answer.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    name : str
        The unique name of the experiment on the cluster, and the topic of its notifications.
    label : str
        The name that users know.
    weight, priority : float
        See :class:`~dasktune.RunConfig`.
    group : str
        The `share_group` of :class:`~dasktune.RunConfig`; empty for none.
    waiting : callable
        Returns the trials that wait now.
    enabled : bool, default=True
        Whether the experiment takes part. It does not on a cluster of its own, nor without leases:
        the scheduler then does not know what it holds.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        label: str,
        weight: float,
        priority: float,
        group: str = "",
        waiting: Callable[[], WaitingTrials],
        enabled: bool = True,
    ) -> None:
        self._client = client
        self._name, self._label = name, label
        self._weight, self._priority, self._group = weight, priority, group
        self._waiting = waiting
        self._enabled = enabled
        #: Number of other experiments on the cluster, as of the last reading.
        self.others = 0
        #: The shares of all experiments as of the last reading; None without other experiments.
        self.shares: ClusterShares | None = None
        #: The workers where it holds what is due to others, and for how many seconds it holds too
        #: much, as of the last reading.
        self.over: tuple[Sequence[str], float] = ((), 0.0)
        #: The leases of all experiments, the number of experiments that wait, and the place of this
        #: one among them, as of the last reading; None if the plugin does not say so.
        self.demands: tuple[int, int, int] | None = None
        self._has_news = self._has_warned = False
        self._task: asyncio.Task[None] | None = None
        #: When the plugin may be registered again, on the loop's clock.
        self._register_at = 0.0
        self._registering: asyncio.Task[None] | None = None

    async def register(self) -> None:
        """Register the plugin on the scheduler. It stays there, because other drivers use it."""
        # The modules are never unregistered, because another experiment of this process may need
        # the registrations at this moment.
        for module in TRAVELLING:
            cloudpickle.register_pickle_by_value(module)
        try:
            await asyncio.wait_for(self._client.register_plugin(SharePlugin()), _DEADLINE)
        except Exception as error:
            # Without the plugin the experiment uses whatever is free.
            logger.info("the cluster is not shared fairly between experiments: %r", error)

    def demand(self) -> dict[str, Any] | None:
        """Return the demand as plain values, for :meth:`SharePlugin.exchange`; None without leases.

        ``label``, ``client``, ``weight``, ``priority`` and ``group`` say whose demand it is.
        ``requests`` has the bundles, the placement strategy and the number of the trials that wait,
        and ``layouts`` for each of them whether hosts count, and the exact number on each host.
        ``closed`` has the addresses of the workers that the experiment cannot use now.
        """
        if not self._enabled:
            return None
        waiting = self._waiting()
        return {
            "label": self._label,
            "client": self._client.id,
            "weight": self._weight,
            "priority": self._priority,
            "group": self._group,
            "requests": waiting.plain,
            "layouts": waiting.layouts,
            "closed": list(waiting.closed),
        }

    def on_answer(self, answer: Mapping[str, Any] | None) -> None:
        """Keep the plugin's answer to a reading; None if the scheduler has no plugin.

        The plugin is then registered in the background, a moment later. Experiments that find it on
        the scheduler do not send it again.
        """
        self.others = 0 if answer is None else int(answer["others"])
        shares = None if answer is None else answer["shares"]
        self.shares = None if shares is None else ClusterShares.from_plain(**shares)
        self.over = ((), 0.0) if answer is None else answer["over"]
        # The plugin of the driver that came first may be older.
        self.demands = None if answer is None else answer.get("demand")
        if answer is not None or not self._enabled:
            return
        loop = asyncio.get_running_loop()
        if loop.time() > self._register_at:
            self._register_at = loop.time() + _REGISTER_INTERVAL
            self._registering = loop.create_task(self._register_later())

    async def _register_later(self) -> None:
        await asyncio.sleep(_REGISTER_DELAY)
        await self.register()

    def on_reconnect(self) -> None:
        """Note that the scheduler may be a new one, without the plugin."""
        self._register_at = 0.0

    def set_share(self, *, weight: float | None, priority: float | None) -> None:
        """Change the weight and the priority, unless they are None, and report them."""
        self._weight = self._weight if weight is None else weight
        self._priority = self._priority if priority is None else priority
        self.report_soon()

    def report_soon(self) -> None:
        """Report the demand now, if other experiments share the cluster."""
        if not self.others:
            return
        self._has_news = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._report())

    def warn_of_undeclared(self, workers: Collection[WorkerCapacity]) -> None:
        """Warn once if trials are not shared with the other experiments on the cluster."""
        # A worker that has just joined declares its resources after it was checked.
        if self._has_warned or not self._enabled or any(one.status == "unchecked" for one in workers):
            return
        text = undeclared_text(workers, self.others)
        if text:
            self._has_warned = True
            logger.warning("%s", text)

    async def close(self) -> None:
        """Report that the experiment has ended, if other experiments share the cluster."""
        for task in (self._task, self._registering):
            if task is not None:
                task.cancel()
        if self.others and self._client.status == "running":
            await self._note(None)

    async def _report(self) -> None:
        while self._has_news:
            self._has_news = False
            await self._note(self.demand())
            await asyncio.sleep(_PAUSE)

    async def _note(self, demand: dict[str, Any] | None) -> None:
        call = self._client.run_on_scheduler(_noted(), PLUGIN_NAME, self._name, demand)
        try:
            await asyncio.wait_for(call, _DEADLINE)
        except Exception as error:
            # The next reading reports the demand again. A silent driver requests nothing.
            logger.debug("the demand could not be reported: %r", error)


def undeclared_text(workers: Iterable[WorkerCapacity], others: int) -> str:
    """Return a warning that trials are not shared with other experiments; empty if they are.

    Parameters
    ----------
    workers : iterable of WorkerCapacity
        The workers of the cluster.
    others : int
        Number of other experiments on the cluster.

    Examples
    --------
    >>> undeclared_text([WorkerCapacity(address="a", resources={"CPU": 4})], 1)
    ''
    """
    usable = [worker for worker in workers if worker.can_run_trials]
    undeclared = sum("CPU" not in worker.resources for worker in usable)
    if not others or not undeclared:
        return ""
    return (
        f"{undeclared} of {len(usable)} {plural('worker', len(usable))} declare no CPUs to Dask, so this "
        f"experiment does not share them with the {others} other {plural('experiment', others)} on the "
        "cluster: each starts trials there as if it was alone. Leave out declare_resources=False, or start "
        "the workers with --resources CPU=N"
    )


@pickled_once
def _noted() -> Callable[..., None]:
    """Return a function that calls the plugin on the scheduler; nested, to pickle by value."""

    def note(plugin: str, name: str, demand: Any, dask_scheduler: Any) -> None:
        share = dask_scheduler.plugins.get(plugin)
        if share is not None:
            share.note(name, demand)

    return note
