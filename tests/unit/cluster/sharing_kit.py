"""A stand-in for Dask's scheduler and its clock, as far as the plugin of the shares uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from dasktune.cluster.sharing.fair_share import SharePlan, plan_shares
from dasktune.cluster.sharing.share_plugin import SharePlugin
from dasktune.placement.placement import MEMORY, SHARES

CPU = {"CPU": 1}


class Scheduler:
    """Workers, leases, timers and notifications, as far as the plugin looks at them."""

    def __init__(self, **cpus: Any) -> None:
        self.now = 1000.0
        # Plans take no time.
        self.stopwatch: Callable[[], float] = lambda: 0.0
        self.plan: Callable[..., SharePlan] = plan_shares
        self.workers: dict[str, Any] = {}
        self.tasks: dict[Any, Any] = {}
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.notified: list[str] = []
        self.events: list[tuple[float, Any]] = []
        self.loop = SimpleNamespace(call_later=self.call_later)
        for address, amount in cpus.items():
            self.add_worker(address, amount)
        self.plugin = SharePlugin(
            timer=lambda: self.now, stopwatch=lambda: self.stopwatch(), plan=lambda *given: self.plan(*given)
        )
        self.plugin.scheduler = self

    def add_worker(
        self, address: str, cpus: float, *, gpus: Sequence[str] = (), memory_limit: int = 0
    ) -> None:
        resources = {"CPU": cpus, "GPU": len(gpus)} if gpus else {"CPU": cpus}
        self.workers[address] = SimpleNamespace(
            address=address,
            resources=resources,
            used_resources=dict.fromkeys(resources, 0.0),
            memory_limit=memory_limit,
            extra={"dasktune-gpus": {"owned": list(gpus)}} if gpus else {},
        )

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        self.timers.append((self.now + delay, function))

    def log_event(self, topic: str, message: dict[str, Any]) -> None:
        assert message == {"kind": "share-changed"}
        self.notified.append(topic)

    def advance(self, seconds: float) -> list[str]:
        """Let time pass, run the timers, and return the experiments that were notified."""
        self.now += seconds
        due = [function for when, function in self.timers if when <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for function in due:
            function()
        told, self.notified = self.notified, []
        return told

    def hold(
        self,
        experiment: str,
        address: str,
        number: int = 1,
        needs: Any = CPU,
        *,
        memory: float = 0,
        devices: Sequence[Sequence[str]] = (),
    ) -> str:
        """Begin a lease, and let the worker report its GPUs: one sequence for each bundle."""
        key = f"{experiment}-actor-{number}-lease-{address}"
        shares = [needs["GPU"] / len(devices)] * len(devices) if devices else []
        self.tasks[key] = SimpleNamespace(
            processing_on=self.workers[address],
            resource_restrictions=needs,
            annotations={MEMORY: memory, SHARES: shares},
        )
        for kind, amount in needs.items():
            self.workers[address].used_resources[kind] += amount
        self.plugin.transition(key, "waiting", "processing", stimulus_id="s")
        if devices:
            event = {"kind": "lease-granted", "lease": key, "devices": devices, "worker": address}
            self.events.append((self.now, event))
            self.plugin.log_event(experiment, event)
        return key

    def get_events(self, topic: str) -> tuple[tuple[float, Any], ...]:
        return tuple(one for one in self.events if one[1]["lease"].startswith(topic))

    def release(self, key: str) -> None:
        task = self.tasks.pop(key)
        for kind, amount in task.resource_restrictions.items():
            task.processing_on.used_resources[kind] -= amount
        self.plugin.transition(key, "processing", "released", stimulus_id="s")
        self.plugin.transition(key, "released", "forgotten", stimulus_id="s")

    def read(self, experiment: str, waits: int = 0, **options: Any) -> dict[str, Any]:
        """Return the answer to an experiment, with what each worker has free for it."""
        answer = self.plugin.exchange(experiment, demand(experiment, waits, **options))
        others = {
            address: worker.used_resources["CPU"]
            - sum(lease.address == address for lease in self.plugin.records.of(experiment))
            for address, worker in self.workers.items()
        }
        limits = {
            address: self.plugin.limits(experiment, worker, {"CPU": others[address]})
            for address, worker in self.workers.items()
        }
        withheld = {address: one.get("withheld", {}).get("CPU", 0) for address, one in limits.items()}
        return {**answer, "withheld": {address: cpus for address, cpus in withheld.items() if cpus}}


def demand(name: str, waits: int = 0, **options: Any) -> dict[str, Any]:
    return {
        "label": name.upper(),
        "client": f"client of {name}",
        "weight": 1.0,
        "priority": 0,
        "group": "",
        "requests": [([CPU], "PACK", waits)] if waits else [],
        "closed": [],
        **options,
    }
