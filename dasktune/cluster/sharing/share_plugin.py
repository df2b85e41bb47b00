"""A plugin of Dask's scheduler that shares the cluster fairly between experiments.

It is pickled by value together with the modules of this package that it imports, so all of them use
only the standard library and Dask: the scheduler may lack dasktune.

The plugin knows what each experiment holds from the tasks of its leases, see
:mod:`dasktune.cluster.sharing.lease_records`. The drivers report what they request, with the
reading of the workers that they make each second or two anyway. The answer is what each experiment
may hold on each worker. The plugin starts and stops no trial. Without it, or with a plugin of
another protocol, drivers use whatever is free.

Everything here runs on the scheduler's event loop, without an ``await``. The state is lost with the
scheduler. The drivers then register the plugin again, and it begins with equal lags.

A driver that is notified of room may not use it: memory that Dask does not count may be missing, or
the driver hangs. Room that a driver has not used for 2 s is therefore not reserved for it for 10 s,
and for twice as long each further time. Otherwise trials of others would yield again and again, and
the driver would never use what they free.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from math import inf
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import dask
from distributed import SchedulerPlugin

from dasktune.cluster.sharing.amounts import (
    EPSILON,
    add,
    dominant_share,
    gpu_amounts,
    sum_of,
    total_amounts,
)
from dasktune.cluster.sharing.due_shares import CREDIT, Contender, ShareRequest, due_shares, next_lag
from dasktune.cluster.sharing.fair_share import SharePlan, plan_shares
from dasktune.cluster.sharing.lease_records import (
    Lease,
    LeaseRecords,
    gpu_loads,
    memory_of,
    owner_of,
    worker_gpus,
)
from dasktune.cluster.sharing.share_metrics import ShareCollector

logger = logging.getLogger("distributed.dasktune")

#: Version of the calls between drivers and the plugin. Experiments of different versions do not
#: share by plan; each sees what the others hold as used.
PROTOCOL = 3

#: The plugin's name on the scheduler.
PLUGIN_NAME = f"dasktune-share-{PROTOCOL}"

#: Seconds after which a new plan is made although nothing has changed, because lags grow.
_PERIOD = 0.5

#: Least seconds between two plans, and largest fraction of the scheduler's time for plans.
_LEAST_PAUSE = 0.02
_MOST_OF_LOOP = 0.02

#: Seconds without a call after which a driver counts as silent, and requests nothing. After the
#: second time it is forgotten, if it holds nothing.
_SILENT = 5.0
_FORGOTTEN = 60.0

#: Seconds in which a driver must use room that is reserved for it, and seconds for which nothing is
#: reserved there if it does not: the first time, and at most.
_UNUSED = 2.0
_VOID = 10.0
_LONGEST_VOID = 160.0

#: Largest number of seconds for which shares are summed at once. The scheduler's process may have
#: been suspended meanwhile.
_LONGEST_SUM = 2.0

#: Seconds for which a summary is used again. All drivers read it.
_SUMMARY_AGE = 0.5

#: Largest number of experiments in an answer, those with the largest shares.
_MOST_LISTED = 20

_LEAST_WEIGHT = 1e-6


class _Planned(NamedTuple):
    """What a plan means for an experiment.

    `is_limited` is whether room is reserved for other experiments. `startable` has the addresses
    where it can start a trial now, and `excess` what it holds too much, by address and resource.
    """

    is_limited: bool = False
    startable: Set[str] = frozenset()
    excess: Mapping[str, Mapping[str, float]] = {}

    def is_news(self, before: _Planned) -> bool:
        """Whether the driver should read the workers at once."""
        grows = any(
            amount > before.excess.get(address, {}).get(kind, 0.0) + EPSILON
            for address, over in self.excess.items()
            for kind, amount in over.items()
        )
        is_new_limit = self.is_limited and not before.is_limited
        return grows or is_new_limit or (bool(self.startable) and self.startable != before.startable)


class _SharingExperiment:
    """What the plugin knows about an experiment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.label = self.client = self.group = ""
        self.weight, self.priority = 1.0, 0.0
        self.requests: list[ShareRequest] = []
        self.closed: frozenset[str] = frozenset()
        self.heard_at = self.waits_since = 0.0
        self.has_requested = False
        #: The lag, and the shares that are due and held since the lag was computed.
        self.lag = self.due = self.held = 0.0
        self.planned = _Planned()
        #: Since when it has held more than is due to it, and than it may on some worker; else None.
        self.over_since: float | None = None
        #: Whether a notification has been sent since the last call.
        self.is_notified = False
        #: Since when each worker has had room for a trial that the driver has not started.
        self.unused: dict[str, float] = {}
        #: Until when nothing is reserved on a worker.
        self.voided: dict[str, float] = {}
        #: For how long that is, by address, since the driver last used room there.
        self.void_seconds: dict[str, float] = {}
        #: Where it can start trials on several workers by the last plan: amounts by address.
        self.spread: list[dict[str, dict[str, float]]] = []
        #: The leases that an actor is still to acquire for such a trial, and until when.
        self.expected: dict[str, tuple[dict[str, dict[str, float]], float]] = {}


class SharePlugin(SchedulerPlugin):  # type: ignore[misc]
    """Plans what each experiment may hold, and notifies the drivers of changes."""

    idempotent = True

    def __init__(
        self,
        *,
        timer: Callable[[], float] = monotonic,
        stopwatch: Callable[[], float] = perf_counter,
        plan: Callable[..., SharePlan] = plan_shares,
    ) -> None:
        self.name = PLUGIN_NAME
        self._timer, self._stopwatch, self._plan_shares = timer, stopwatch, plan
        self.experiments: dict[str, _SharingExperiment] = {}
        self.records = LeaseRecords()
        #: The last plan; None while no experiment is limited. It stays until all room is taken
        #: that an experiment has waited for.
        self.plan: SharePlan | None = None
        #: Number of plans and of calls, and seconds that all plans took.
        self.plans = self.calls = 0
        self.plan_seconds = 0.0
        self._totals: dict[str, float] = {}
        self._planned_at = self._summed_at = -_FORGOTTEN
        self._last_seconds = 0.0
        #: When the last summary for drivers was made, and what it has.
        self._summary: tuple[float, dict[str, float], dict[str, dict[str, Any]]] = (-_FORGOTTEN, {}, {})
        #: Whether a lease, a demand or a worker has changed since the last plan.
        self._has_changed = False
        self._is_scheduled = False
        self._collector: ShareCollector | None = None

    async def start(self, scheduler: Any) -> None:
        """Read the leases that exist already, and add the shares to the scheduler's metrics."""
        self.scheduler = scheduler
        self._collector = ShareCollector.registered(lambda: list(self._recent_summary()[1].values()))
        for key, task in scheduler.tasks.items():
            if task.processing_on is not None:
                self.transition(key, "waiting", "processing")
        for name in self.records.by_experiment:
            for _, event in scheduler.get_events(name):
                self.log_event(name, event)

    # Hooks of the scheduler

    async def close(self) -> None:
        """Take the shares out of the metrics of this process: another scheduler may run in it."""
        if self._collector is not None:
            self._collector.unregister()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Record the begin and the end of each lease."""
        # This is called for every task of every client.
        if not isinstance(key, str) or "-lease-" not in key:
            return
        name, actor = owner_of(key)
        known = self.experiments.get(name)
        if known is not None:
            self._sum_shares()
        if finish == "processing":
            lease = self.records.begin(key, self.scheduler.tasks[key])
            if known is not None:
                known.held += dominant_share(lease.needs, self._totals)
                known.unused.pop(lease.address, None)
                known.void_seconds.pop(lease.address, None)
                self._expect_rest(known, lease)
        else:
            ended = self.records.end(key)
            if ended is None:
                return
            if known is not None:
                known.held = max(0.0, known.held - dominant_share(ended.needs, self._totals))
                known.expected.pop(actor, None)
        self._note_change()

    def log_event(self, topic: str, msg: Any) -> None:
        """Record the GPUs of a lease that a worker has granted."""
        # This is called for every event of the cluster.
        if not isinstance(msg, dict) or msg.get("kind") != "lease-granted":
            return
        lease = self.records.by_experiment.get(topic, {}).get(msg["lease"])
        if lease is None or not msg["devices"]:
            return
        worker = self.scheduler.workers[lease.address]
        self.records.grant(topic, msg["lease"], msg["devices"], worker)
        self._note_change()

    def _expect_rest(self, one: _SharingExperiment, lease: Lease) -> None:
        """Keep the other workers of a trial free, because it acquires one lease after another."""
        if lease.actor in one.expected:
            one.expected[lease.actor][0].pop(lease.address, None)
            return
        for places in one.spread:
            if lease.address in places:
                one.spread.remove(places)
                rest = {address: needs for address, needs in places.items() if address != lease.address}
                one.expected[lease.actor] = rest, self._timer() + _UNUSED
                return

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Note that the cluster has changed."""
        self._note_change()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Note that the cluster has changed."""
        for one in self.experiments.values():
            # Another worker may have the same address later.
            one.void_seconds.pop(worker, None)
        self._note_change()

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Forget the experiments of a client that has left; Dask releases its leases."""
        for one in [one for one in self.experiments.values() if one.client == client]:
            self._forget(one.name)

    def restart(self, scheduler: Any) -> None:
        """Forget all leases, because Dask has released all tasks."""
        self.records.clear()
        self._note_change()

    # Calls of the drivers

    def exchange(self, name: str, demand: Mapping[str, Any]) -> dict[str, Any]:
        """Take an experiment's demand, which comes with its reading of the workers.

        Parameters
        ----------
        name : str
            The unique name of the experiment on the cluster, which is also the topic of its
            notifications.
        demand : mapping
            See :meth:`~dasktune.cluster.sharing.share_reporter.ShareReporter.demand`.

        Returns
        -------
        dict
            ``others``: the number of other experiments. ``shares``: the shares as in
            :meth:`summary`, at most half a second old; None without other experiments. It lists at
            most 20 experiments, and ``is_own`` is true for the one that asks. ``over``: the
            addresses of the workers where the experiment holds what is due to others, and for how
            many seconds it has held too much. ``demand``: the number of leases of all experiments,
            the number of experiments that wait, and the place of this one among them; None without
            other experiments.
        """
        self.calls += 1
        try:
            one = self._take_demand(name, demand)
            one.is_notified = False
            others = self._others(one)
            if not others:
                self.plan, one.lag, one.over_since = None, 0.0, None
                one.unused.clear()
            elif self._is_plan_due():
                self._make_plan(asker=one)
            elif self._has_changed:
                self._note_change()
            shares = self._shares_for(name) if others else None
            over = self._over(one) if others else ([], 0.0)
            waiting = self._demand(name) if others else None
        except Exception:
            # A bug here must not disturb the driver. It uses whatever is free.
            logger.exception("the cluster could not be shared between experiments")
            self.plan, others, shares, over, waiting = None, [], None, ([], 0.0), None
        return {"others": len(others), "shares": shares, "over": over, "demand": waiting}

    def _demand(self, name: str) -> tuple[int, int, int]:
        now = self._timer()
        waiting = [
            one.name
            for one in self.experiments.values()
            if one.name == name or (one.requests and now - one.heard_at < _SILENT)
        ]
        leases = sum(map(len, self.records.by_experiment.values()))
        return leases, len(waiting), waiting.index(name)

    def limits(self, name: str, worker: Any, used: Mapping[str, float]) -> dict[str, Any]:
        """Return what of a worker an experiment may not use.

        Parameters
        ----------
        name : str
            The unique name of the experiment.
        worker : distributed.scheduler.WorkerState
            The worker.
        used : mapping
            What others than the experiment use there by Dask's records.

        Returns
        -------
        dict
            ``used``: `used` with the memory that other experiments hold. ``withheld``: what is free
            there and reserved for other experiments. ``gpu_loads``: the part of each GPU that other
            experiments hold or that is reserved for them. Empty if there is no such limit.
        """
        others = [lease for lease in self.records.special_on(worker.address) if lease.experiment != name]
        if not others and self.plan is None:
            # A driver asks for each worker at each reading, and mostly has the cluster for itself.
            return {}
        used = dict(used)
        if "memory" not in worker.resources and (memory := memory_of(others)):
            used["memory"] = memory
        names, loads = worker_gpus(worker), gpu_loads(others)
        parts = [loads.get(place, 0.0) for place in range(len(names))]
        withheld = {}
        allowed = None if self.plan is None else self.plan.allowed(name, worker.address)
        if allowed is not None:
            totals = {"memory": worker.memory_limit or inf, **worker.resources}
            rest = {
                kind: v - used.get(kind, 0.0) - allowed[kind] for kind, v in totals.items() if kind in allowed
            }
            withheld = {kind: amount for kind, amount in rest.items() if amount > EPSILON}
            # The plan may lack a GPU that the worker has declared since.
            mine = gpu_amounts(dict.fromkeys(range(len(names)), 1.0))
            parts = [
                max(load, one - allowed.get(kind, one))
                for load, (kind, one) in zip(parts, mine.items(), strict=True)
            ]
        return {"used": used, "withheld": withheld, "gpu_loads": tuple(parts)}

    def note(self, name: str, demand: Mapping[str, Any] | None) -> None:
        """Take an experiment's demand between two exchanges; None if the experiment has ended.

        The experiment is notified if the plan changes what it may hold.
        """
        self.calls += 1
        if demand is None:
            self._forget(name)
        else:
            self._take_demand(name, demand)
            self._note_change()

    def summary(self) -> dict[str, Any]:
        """Return what each experiment has and waits for, as plain values.

        Returns
        -------
        dict
            ``totals``: the resources of the cluster that other programs do not use.
            ``experiments``: for each one its ``name``, ``weight`` and ``priority``; the ``group``
            whose share it divides, empty for none; what it holds (``held``), and the fraction of
            `totals` that this is (``share``); the fraction that is due to it (``due``), None while
            every experiment has all that it requests; the number of trials that wait (``waiting``),
            and for how many seconds some have waited (``waiting_s``), None if none waits.
        """
        totals, shown = self._summarize()
        return {"totals": totals, "experiments": list(shown.values())}

    def _summarize(self) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
        """Return the resources of the cluster, and the facts of each experiment by unique name."""
        now = self._timer()
        totals = total_amounts(self._capacity())
        shown = {}
        for one in self.experiments.values():
            is_silent = now - one.heard_at > _SILENT
            if is_silent and not self.records.of(one.name):
                continue
            waiting = 0 if is_silent else sum(request.trials for request in one.requests)
            held = sum_of(lease.needs for lease in self.records.of(one.name))
            shown[one.name] = {
                "name": one.label,
                "weight": one.weight,
                "priority": one.priority,
                "group": one.group,
                "held": held,
                "share": dominant_share(held, totals),
                "due": None if self.plan is None else one.due,
                "waiting": waiting,
                "waiting_s": now - one.waits_since if waiting else None,
            }
        return totals, shown

    def _recent_summary(self, name: str = "") -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
        """Return what `_summarize` returns, at most half a second old, and with this experiment.

        It is not made for each call: with many leases that takes milliseconds.
        """
        made_at, totals, shown = self._summary
        now = self._timer()
        if now - made_at > _SUMMARY_AGE or (name and name not in shown):
            totals, shown = self._summarize()
            self._summary = now, totals, shown
        return totals, shown

    def _shares_for(self, name: str) -> dict[str, Any]:
        """Return the shares for an experiment.

        Those of the last half second serve, too.
        """
        totals, shown = self._recent_summary(name)
        order = sorted(shown, key=lambda one: -shown[one]["share"])
        listed = order[:_MOST_LISTED]
        if name not in listed:
            listed[-1] = name
        experiments = [{**shown[one], "is_own": one == name} for one in listed]
        for one in experiments:
            # Drivers of earlier versions accept no further facts.
            del one["group"]
        return {"totals": totals, "experiments": experiments}

    def _take_demand(self, name: str, demand: Mapping[str, Any]) -> _SharingExperiment:
        one = self.experiments.get(name)
        if one is None:
            self._sum_shares()
            one = self.experiments[name] = _SharingExperiment(name)
            one.held = self._held_share(name)
            self._has_changed = True
        one.heard_at = self._timer()
        one.label, one.client = str(demand["label"]), str(demand["client"])
        one.weight = max(_LEAST_WEIGHT, _limited(demand, "weight"))
        one.priority = _limited(demand, "priority")
        one.group = str(demand["group"])
        # Drivers of earlier versions do not say what counts hosts.
        layouts = demand.get("layouts") or [(False, None)] * len(demand["requests"])
        requests = [
            ShareRequest(tuple(map(dict, bundles)), str(strategy), int(trials), *layout)
            for (bundles, strategy, trials), layout in zip(demand["requests"], layouts, strict=True)
        ]
        closed = frozenset(demand["closed"])
        if requests and one.requests and requests[0]._replace(trials=0) != one.requests[0]._replace(trials=0):
            # The room may be enough for these trials.
            one.void_seconds.clear()
        if bool(requests) != bool(one.requests) or closed != one.closed:
            self._has_changed = True
        if requests and not one.requests:
            one.waits_since = one.heard_at
        if requests and not one.has_requested:
            # The first trial of an experiment starts at the next end of a trial of another one.
            one.has_requested = True
            one.lag = CREDIT
        one.requests, one.closed = requests, closed
        return one

    def _others(self, one: _SharingExperiment) -> list[_SharingExperiment]:
        """Return the other experiments; those whose drivers have long been silent are forgotten."""
        now = self._timer()
        for name, other in list(self.experiments.items()):
            if now - other.heard_at > _FORGOTTEN and not self.records.of(name):
                del self.experiments[name]
        return [
            other
            for other in self.experiments.values()
            if other is not one and (self.records.of(other.name) or now - other.heard_at < _SILENT)
        ]

    def _forget(self, name: str) -> None:
        if self.experiments.pop(name, None) is not None:
            self._note_change()

    # Plans

    def _note_change(self) -> None:
        """Make a plan soon, if several experiments share the cluster."""
        self._has_changed = True
        if len(self.experiments) > 1 and not self._is_scheduled:
            self._is_scheduled = True
            # Later, because the scheduler is in the middle of its transitions, and more may come.
            self.scheduler.loop.call_later(self._pause(), self._plan_scheduled)

    def _plan_scheduled(self) -> None:
        self._is_scheduled = False
        if self._has_changed and len(self.experiments) > 1:
            try:
                self._make_plan()
            except Exception:
                # The last plan stays valid. A bug here must not disturb the scheduler.
                logger.exception("the cluster could not be shared between experiments")

    def _pause(self) -> float:
        """Return the seconds until the next plan may be made."""
        pause = max(_LEAST_PAUSE, self._last_seconds / _MOST_OF_LOOP)
        return max(0.0, self._planned_at + pause - self._timer())

    def _is_plan_due(self) -> bool:
        is_old = self._timer() - self._planned_at > _PERIOD
        return (self._has_changed or is_old) and not self._pause()

    def _make_plan(self, asker: _SharingExperiment | None = None) -> None:
        begun, now = self._stopwatch(), self._timer()
        self._sum_shares()
        self._has_changed = False
        contenders = [self._contender(one, now) for one in self.experiments.values()]
        is_enabled = dask.config.get("dasktune.sharing.enabled", True)
        plan, due = None, {}
        if is_enabled and any(one.requests for one in contenders):
            capacity = self._capacity()
            self._totals = total_amounts(capacity)
            due = due_shares(self._totals, contenders)
            plan = self._plan_shares(capacity, contenders, due)
        # A trial that has yielded waits a moment later. Without a plan its driver could take the
        # room back before the experiment for which it has yielded, and yield again.
        has_untaken_room = self.plan is not None and plan is not None and any(plan.startable.values())
        self.plan = plan if plan is not None and (plan.contended or has_untaken_room) else None
        for one in self.experiments.values():
            one.held = self._held_share(one.name)
            one.spread = [] if plan is None else plan.spread[one.name]
            if self.plan is None:
                one.unused.clear()
            else:
                one.due = due[one.name]
                self._check_use(one, self.plan, now)
        self._notify(plan, asker)
        self._planned_at, self._last_seconds = self._timer(), self._stopwatch() - begun
        self.plans += 1
        self.plan_seconds += self._last_seconds

    def _contender(self, one: _SharingExperiment, now: float) -> Contender:
        trials: dict[str, list[tuple[str, dict[str, float]]]] = {}
        for lease in self.records.of(one.name):
            trials.setdefault(lease.actor, []).append((lease.address, lease.held))
        one.expected = {actor: rest for actor, rest in one.expected.items() if rest[1] > now}
        for actor, (rest, _) in one.expected.items():
            trials.setdefault(actor, []).extend(rest.items())
        one.voided = {address: until for address, until in one.voided.items() if until > now}
        return Contender(
            one.name,
            weight=one.weight,
            priority=one.priority,
            lag=one.lag,
            holdings=list(trials.values()),
            requests=one.requests if now - one.heard_at < _SILENT else (),
            closed=one.closed.union(one.voided),
            group=one.group,
            group_weight=_group_weight(one.group),
        )

    def _capacity(self) -> dict[str, dict[str, float]]:
        """Return what each worker has for the experiments."""
        requests = (request for one in self.experiments.values() for request in one.requests)
        counts_memory = self.records.holds_memory or any(
            "memory" in bundle for request in requests for bundle in request.bundles
        )
        workers = self.scheduler.workers.values()
        return self.records.capacity(workers, self.experiments, counts_memory=counts_memory)

    def _held_share(self, name: str) -> float:
        leases = self.records.of(name)
        return sum(dominant_share(lease.needs, self._totals) for lease in leases)

    def _sum_shares(self) -> None:
        """Update the lags.

        This is called at the begin and the end of each lease. Sums at the times of the plans would
        be wrong: many plans are made at the moment between a lease's end and the next lease.
        """
        now = self._timer()
        seconds = min(now - self._summed_at, _LONGEST_SUM)
        self._summed_at = now
        for one in self.experiments.values():
            if self.plan is not None:
                one.lag = next_lag(one.lag, one.due, one.held, seconds, waits=bool(one.requests))
            else:
                # Every experiment has all that it requests, and the past is soon forgotten.
                one.lag *= max(0.0, 1 - seconds / _LONGEST_SUM)

    def _check_use(self, one: _SharingExperiment, plan: SharePlan, now: float) -> None:
        """Reserve nothing more where the driver has not used its room."""
        startable = plan.startable[one.name]
        one.unused = {address: one.unused.get(address, now) for address in startable}
        for address, since in list(one.unused.items()):
            # A driver that has not called since then does not know of the room.
            if now - since > _UNUSED and one.heard_at > since:
                del one.unused[address]
                seconds = min(_LONGEST_VOID, 2 * one.void_seconds.get(address, _VOID / 2))
                one.void_seconds[address] = seconds
                one.voided[address] = now + seconds
                self._has_changed = True

    def _notify(self, plan: SharePlan | None, asker: _SharingExperiment | None) -> None:
        """Notify the drivers that can start trials, are limited now, or hold too much.

        The asker gets the plan as its answer.
        """
        for one in self.experiments.values():
            before = one.planned
            startable = set() if plan is None else plan.startable[one.name]
            one.planned = _Planned(self.plan is not None, startable, self._excess(one))
            if not one.planned.excess or one.held <= one.due + EPSILON:
                one.over_since = None
            elif one.over_since is None:
                one.over_since = self._timer()
            if one is not asker and not one.is_notified and one.planned.is_news(before):
                one.is_notified = True
                self.scheduler.log_event(one.name, {"kind": "share-changed"})

    def _over(self, one: _SharingExperiment) -> tuple[list[str], float]:
        """Return the workers where trials should yield, and for how long it has held too much.

        The plan may give the others more than is due to them for a while, because they have waited.
        Trials that yield bring the experiment down to what is due to it, and not below.
        """
        if one.over_since is None:
            return [], 0.0
        addresses, share = [], one.held
        for address, over in one.planned.excess.items():
            if share > one.due + EPSILON:
                addresses.append(address)
            share -= dominant_share(over, self._totals)
        return addresses, self._timer() - one.over_since

    def _excess(self, one: _SharingExperiment) -> dict[str, dict[str, float]]:
        """Return what an experiment holds above what it may hold, by address."""
        if self.plan is None:
            return {}
        held: dict[str, dict[str, float]] = {}
        for lease in self.records.of(one.name):
            add(held.setdefault(lease.address, {}), lease.held)
        excess = {}
        for address, amounts in held.items():
            allowed = self.plan.allowed(one.name, address) or amounts
            over = {kind: v - allowed.get(kind, v) for kind, v in amounts.items()}
            if any(amount > EPSILON for amount in over.values()):
                excess[address] = over
        return excess


def _limited(demand: Mapping[str, Any], name: str) -> float:
    """Return a number of a demand, at most the administrator's limit for it."""
    # Dask finds the limit by its whole name only, if a variable of the environment sets it.
    wanted = float(demand[name])
    return min(wanted, float(dask.config.get(f"dasktune.sharing.max-{name}", wanted)))


def _group_weight(group: str) -> float:
    """Return the weight that the administrator has given to a group; 1 by default."""
    weights = dask.config.get("dasktune.sharing.groups", None) or {}
    return max(_LEAST_WEIGHT, float(weights.get(group, 1.0)))
