"""The trainables of the workloads: they do as little as possible, so that dasktune is measured."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import dasktune as tune
from benchmarks.workloads import CHECKPOINT_BYTES, STEP_SECONDS, valley

__all__ = [
    "Endless",
    "Model",
    "Steps",
    "checkpoints",
    "dies_once",
    "noop",
    "saves",
    "searched",
    "second",
    "steps",
    "waits_for_decisions",
]


def noop(config: dict[str, Any]) -> float:
    return float(config["x"])


def searched(config: dict[str, Any]) -> float:
    """Sleep for ``config["seconds"]``, and return the value of `workloads.valley`."""
    time.sleep(config["seconds"])
    return valley(config)


def steps(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        tune.report({"loss": step + config["x"]})


class Steps(tune.Trainable):
    """The same as a class."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x, self.last = config["x"], config["steps"]

    def step(self) -> dict[str, Any]:
        return {"loss": self.iteration + self.x, "done": self.iteration + 1 == self.last}


class Model(Steps):
    """The same, with weights to save."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.weights = os.urandom(config["size"])

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "model").write_bytes(self.weights)

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.weights = Path(checkpoint, "model").read_bytes()


@cache
def _random_bytes(size: int) -> bytes:
    return os.urandom(size)


class Endless(Model):
    """Trains until it is stopped, because a clone continues from its donor's iteration."""

    def setup(self, config: dict[str, Any]) -> None:
        # Drawing fifty million random bytes for each clone would take longer than the exploit.
        self.x, self.weights = config["x"], _random_bytes(config["size"])

    def step(self) -> dict[str, Any]:
        return {"loss": self.x}


def checkpoints(config: dict[str, Any]) -> None:
    checkpoint = tune.Checkpoint.temporary()
    Path(checkpoint.path, "model").write_bytes(os.urandom(CHECKPOINT_BYTES))
    for step in range(config["steps"]):
        tune.report({"loss": step}, checkpoint=checkpoint)


def saves(config: dict[str, Any]) -> None:
    """Train for a while, then report a checkpoint and the seconds of the previous report."""
    checkpoint = tune.Checkpoint.temporary()
    Path(checkpoint.path, "model").write_bytes(os.urandom(config["size"]))
    took = 0.0
    for _ in range(config["steps"]):
        time.sleep(config["step_s"])
        begun = time.monotonic()
        tune.report({"waited_s": took}, checkpoint=checkpoint)
        took = time.monotonic() - begun


def second(config: dict[str, Any]) -> float:
    time.sleep(1.0)
    return float(config["x"])


def waits_for_decisions(config: dict[str, Any]) -> None:
    """Report once a second, with the seconds that the previous report waited for its decision."""
    waited = 0.0
    for _ in range(config["steps"]):
        time.sleep(1.0)
        begun = time.monotonic()
        tune.report({"waited_s": waited})
        waited = time.monotonic() - begun


def dies_once(config: dict[str, Any]) -> None:
    """Kill the trial's process halfway, once, and write the time to the marker file."""
    marker = Path(config["marker"])
    for step in range(config["steps"]):
        time.sleep(STEP_SECONDS)
        if step == config["steps"] // 2 and not marker.exists():
            marker.write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        tune.report({"loss": step})
