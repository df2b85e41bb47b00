"""Blocking work in daemon threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dasktune.cluster.connection.daemon_thread import DaemonThreads, run_in_daemon_thread


def refuse() -> None:
    raise PermissionError("as planned")


def test_a_free_thread_is_used_again() -> None:
    async def work() -> tuple[list[str], list[threading.Thread]]:
        threads = DaemonThreads()
        names = [(await threads.run(threading.current_thread)).name for _ in range(3)]
        used = [await threads.run(threading.current_thread) for _ in range(3)]
        with pytest.raises(PermissionError, match="as planned"):
            await threads.run(refuse)
        used.append(await threads.run(threading.current_thread))
        threads.close()
        return names, used

    names, used = asyncio.run(work())
    assert names == ["dasktune-preflight"] * 3
    assert len(set(used)) == 1
    used[0].join(60)
    assert not used[0].is_alive()


def test_work_that_hangs_holds_up_no_other_work() -> None:
    async def work() -> list[int]:
        threads = DaemonThreads()
        hanging = [asyncio.ensure_future(threads.run(free.wait)) for _ in range(20)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(threads.run(free.wait), 0.01)
        done = await asyncio.gather(*(threads.run(abs, -number) for number in range(20)))
        threads.close()
        for one in hanging:
            one.cancel()
        return done

    free, before = threading.Event(), set(threading.enumerate())
    assert asyncio.run(work()) == list(range(20))
    # The end of a call does no harm if its caller and its loop are gone.
    free.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_the_thread_of_a_single_call_ends() -> None:
    thread = asyncio.run(run_in_daemon_thread(threading.current_thread))
    assert thread.daemon
    thread.join(60)
    assert not thread.is_alive()
