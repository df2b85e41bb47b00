"""Experiments to look at: made by hand, and by the simulation with its real journal."""

from __future__ import annotations

import threading
from collections import deque
from math import inf, nan
from typing import Any

from dasktune.config import TuneConfig
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining
from dasktune.space import loguniform, uniform
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore, simulate

#: Every way into a page that is known, as a name.
PAYLOADS = (
    "<img src=x onerror=\"window.__xss='img'\">",
    "<script>window.__xss='script'</script></script>",
    "{{ 7 * 7 }}",
    "@{trial} $index @value{safe}",
    "$$\\href{javascript:window.__xss=1}{x}$$",
    "\\[x\\] '\"`",
    "line\nfeed\u200b\u202eevil\x1b[31m",
    "x" * 5_000,
    "</title><b>",
)


def suggested(trial_id: str, time: float = 0.0, **config: Any) -> dict[str, Any]:
    return {
        "event": "Suggested",
        "trial_id": trial_id,
        "config": config,
        "resources": DEFAULTS["resources"],
        "time": time,
        "status": "PENDING",
        # Later records are about its first start.
        "actions": [action("StartTrial", trial_id)],
    }


def started(trial_id: str, time: float, worker: str = "tcp://w1:1") -> dict[str, Any]:
    return about("TrialStarted", trial_id, time, status="RUNNING", worker=worker)


def restarted(trial_id: str, time: float, *first: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a start, after other actions."""
    actions = [*first, action("StartTrial", trial_id)]
    return about("ResourcesGranted", trial_id, time, status="PENDING", actions=actions)


def result(
    trial_id: str, iteration: int, time: float, status: str = "RUNNING", **more: Any
) -> dict[str, Any]:
    own = {key: more.pop(key) for key in ("actions", "awaits", "checkpoint") if key in more}
    metrics = {**more, "training_iteration": iteration}
    own.setdefault("awaits", False)
    return about("ResultReported", trial_id, time, status=status, metrics=metrics, **own)


def about(event: str, trial_id: str, time: float, **more: Any) -> dict[str, Any]:
    return {
        "event": event,
        "trial_id": trial_id,
        "incarnation": 1,
        "time": time,
        "reason": "",
        **more,
    }


#: What an action of the journal has where a test does not care.
DEFAULTS = {
    "incarnation": 1,
    "seq": 1,
    "reason": "",
    "iteration": 1,
    "old_config": {},
    "resources": {"bundles": [{"CPU": 1.0}], "strategy": "PACK"},
}


def action(do: str, trial_id: str, **more: Any) -> dict[str, Any]:
    return {"do": do, "trial_id": trial_id, **DEFAULTS, **more}


def saved(trial_id: str, index: int, iteration: int) -> dict[str, Any]:
    """Return the record of a checkpoint."""
    path = f"trials/{trial_id}/checkpoint_{index:06}_i01"
    return {"path": path, "index": index, "iteration": iteration, "metrics": {}}


def projection_of(*records: dict[str, Any], **goals: Any) -> ExperimentProjection:
    projection = ExperimentProjection(**{"metric": "loss", "mode": "min", **goals})
    projection.extend(records)
    assert projection.malformed == 0
    return projection


def falling(config: dict[str, Any]) -> Any:
    for epoch in range(1, 28):
        yield {"loss": config["x"] + 1 / epoch}, 1.0 + config["x"]


def asha_journal(
    store: MemoryStore | None = None, num_samples: int = 30, reduction_factor: float = 3
) -> list[dict[str, Any]]:
    store = store or MemoryStore()
    simulate(
        falling,
        param_space={"x": uniform(0, 1), "lr": loguniform(1e-4, 1)},
        tune_config=TuneConfig(
            metric="loss",
            mode="min",
            num_samples=num_samples,
            seed=0,
            scheduler=ASHAScheduler(max_t=27, reduction_factor=reduction_factor),
        ),
        slots=4,
        store=store,
    )
    return [decode(line) for line in store.journal.splitlines()]


def climbing(config: dict[str, Any], checkpoint: Any) -> Any:
    height, step = checkpoint or (0.0, 0)
    while step < 20:
        height, step = height + config["rate"], step + 1
        yield {"loss": -height}, 10.0, (height, step)


def pbt_journal() -> list[dict[str, Any]]:
    store = MemoryStore()
    simulate(
        climbing,
        param_space={"rate": uniform(0, 1)},
        tune_config=TuneConfig(
            metric="loss",
            mode="min",
            num_samples=8,
            seed=0,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=4,
                hyperparam_mutations={"rate": uniform(0, 1)},
            ),
        ),
        slots=3,
        store=store,
    )
    return [decode(line) for line in store.journal.splitlines()]


def hostile_records() -> list[dict[str, Any]]:
    """Return an experiment of which everything that users name is an attack."""
    records = []
    for i, evil in enumerate(PAYLOADS):
        config = {name: f"{name}{i % 2}" for name in PAYLOADS} | {"lr": 10.0**-i}
        records.append(suggested(evil, float(i), **config))
        records.append(started(evil, float(i), worker=evil))
        metrics = {PAYLOADS[0]: float(i), PAYLOADS[1]: nan if i == 3 else -float(i)}
        wait = {"awaits": True, "checkpoint": saved(f"t{i}", 0, 1)}
        begin = action("StartTrial", evil, milestones=[[evil, 1], ["training_iteration", 1]])
        records[-1]["actions"] = [begin]
        stop = action("StopTrial", evil, reason=evil, rung=1.0, cutoff=3.0)
        records.append(result(evil, 1, i + 1.0, actions=[stop], **wait, **metrics))
        records.append(result(evil, 2, i + 2.0, **{PAYLOADS[0]: inf, PAYLOADS[1]: 2.0}))
        error = {"message": evil, "traceback": f"Traceback\n{evil}"}
        records.append(about("TrialFailed", evil, i + 3.0, status="ERROR", error=error))
    exploit = action(
        "ExploitTrial",
        PAYLOADS[0],
        donor=PAYLOADS[1],
        config={PAYLOADS[0]: PAYLOADS[1]},
        reason=PAYLOADS[1],
        checkpoint=saved("t1", 0, 1),
    )
    records.append({"event": "TimePassed", "time": 20.0, "actions": [exploit]})
    return records


def hostile_projection(**goals: Any) -> ExperimentProjection:
    goals = {"metric": list(PAYLOADS[:2]), "mode": ["min", "max"], "name": PAYLOADS[0], **goals}
    return projection_of(*hostile_records(), **goals)


class FailingStorage(Storage):
    """A directory whose names cannot be listed while the event `is_down` is set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__["is_down"] = threading.Event()

    def with_retry(self, seconds: float, still_needed: Any = None) -> FailingStorage:
        return self

    def names(self, *parts: str) -> list[str]:
        if self.__dict__["is_down"].is_set():
            raise PermissionError("no access")
        return super().names(*parts)


class RecordFeed:
    """Tells a live experiment what it is given, without a journal."""

    always_follow = True
    read_share = None

    def __init__(self, before=list):
        self._waiting = before
        self.now = None
        self.state = "driver is running"
        self._more = deque()

    def put(self, record):
        self._more.append(record)

    def pass_time(self, now):
        self.now = now

    def poll(self):
        return False, self._records()

    def _records(self):
        before, self._waiting = self._waiting, list
        yield from before()
        for _ in range(len(self._more)):
            yield self._more.popleft()
