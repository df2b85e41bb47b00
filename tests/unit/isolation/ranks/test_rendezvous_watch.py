"""Ranks that wait in a rendezvous of their training package."""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from dasktune.isolation.ranks.rendezvous_watch import RendezvousWatch, is_in_rendezvous

PATIENCE = 60.0


def package(file: str, name: str) -> Callable[[Callable[[], None]], None]:
    """Return a function with this name, of a module in this file, that calls another one."""
    namespace: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(compile(f"def {name}(work):\n    work()\n", f"/packages/{file}", "exec"), namespace)
    return namespace[name]


TORCH = package("torch/distributed/distributed_c10d.py", "init_process_group")
JAX = package("jax/_src/distributed.py", "initialize")
OTHER = package("torch/distributed/distributed_c10d.py", "all_reduce")


def test_only_the_time_in_a_rendezvous_counts_and_only_without_a_break() -> None:
    now = 0.0
    watch = RendezvousWatch(10.0, lambda: now)

    def look(*stack: FrameType) -> bool:
        return watch.look(stack)

    def frame(inside: Callable[[Callable[[], None]], None]) -> FrameType:
        found: list[FrameType] = []
        inside(lambda: found.append(sys._getframe()))
        return found[0]

    waiting, training = frame(TORCH), frame(OTHER)
    assert not look(waiting)
    now = 9.0
    assert not look(training, waiting)
    assert not look(training)
    now = 18.0
    assert not look(frame(JAX))
    now = 27.0
    assert not look(waiting)
    now = 28.0
    assert look(waiting)
    assert not RendezvousWatch(None, lambda: now).look([waiting])


@pytest.mark.parametrize(("inside", "expected"), [(TORCH, True), (JAX, True), (OTHER, False)])
def test_a_rendezvous_is_found_in_the_stacks_of_a_process(
    inside: Callable[[Callable[[], None]], None], expected: bool
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    thread = threading.Thread(target=inside, args=(wait,))
    thread.start()
    assert begun.wait(PATIENCE)
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        go_on.set()
        file.seek(0)
        assert is_in_rendezvous(file.read().decode()) is expected
    thread.join()
