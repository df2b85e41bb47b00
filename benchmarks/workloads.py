"""The size of each workload, for both sides.

Ray runs fewer trials where each takes it a second. The start of the experiment is then spread over
fewer trials; the `steady` figures leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks._measure import Size

__all__ = ["CHECKPOINT_BYTES", "OURS", "RAY", "STEP_SECONDS", "scaled", "searched", "valley"]

#: Bytes of a checkpoint, in one file.
CHECKPOINT_BYTES = 1_000_000

#: Seconds of a step of the trial whose worker is killed.
STEP_SECONDS = 0.1

OURS = {
    "noop": Size(trials=1_000),
    "function": Size(trials=4, steps=2_000),
    "class": Size(trials=4, steps=2_000),
    "checkpoint": Size(trials=2, steps=200),
    "first": Size(trials=1),
    "slots": Size(trials=64, slots=16),
    "threads": Size(trials=8, slots=8),
    "many": Size(trials=1_000, steps=20, slots=1_000),
    "recovery": Size(trials=1, steps=30),
}

RAY = {
    "noop": Size(trials=16),
    "noop_reuse": Size(trials=300),
    "function": Size(trials=4, steps=2_000),
    "class": Size(trials=4, steps=2_000),
    "checkpoint": Size(trials=2, steps=200),
    "first": Size(trials=1),
    "slots": Size(trials=64, slots=16),
    "slots_reuse": Size(trials=64, slots=16),
    "recovery": Size(trials=1, steps=30),
    "searched": Size(trials=100),
    "searched_reuse": Size(trials=100),
}

#: Workloads whose rates hardly depend on their size; the others cannot be shortened.
_SCALABLE = frozenset({"noop", "noop_reuse", "function", "class", "checkpoint"})


def scaled(name: str, size: Size, factor: float) -> Size:
    """Return `size` with its steps multiplied by `factor`, or its trials if each has one step."""
    if name not in _SCALABLE:
        return size
    if size.steps > 1:
        return replace(size, steps=max(2, round(size.steps * factor)))
    return replace(size, trials=max(2, round(size.trials * factor)))


def searched(tune: Any) -> dict[str, Any]:
    """Return a search space made of the domains of `tune`, which is dasktune or Ray Tune."""
    return {
        "x": tune.uniform(0, 1),
        "lr": tune.loguniform(1e-4, 1),
        "layers": tune.randint(1, 9),
        "kind": tune.choice(["a", "b", "c"]),
    }


def valley(config: Mapping[str, Any]) -> float:
    """Return the objective of that space, to be minimised."""
    kind = "abc".index(config["kind"])
    return float((config["x"] - 0.3) ** 2 + abs(config["lr"] - 0.01) + config["layers"] + kind)
