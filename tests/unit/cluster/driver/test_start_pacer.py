"""Starts of trials on workers that answer late."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from math import inf
from types import SimpleNamespace

import pytest
from wire_kit import run_virtually

from dasktune.cluster.driver.actor_handle import ActorCallFailed
from dasktune.cluster.driver.actor_pool import ActorPool, PoolLimits, WorkerSlow
from dasktune.cluster.driver.start_pacer import StartAttempt, StartPacer
from dasktune.placement import PlacedBundle, Placement


def pacer():
    return StartPacer(15.0, timer=asyncio.get_running_loop().time)


async def miss(pacer, address="a", seconds=15.0):
    """Let a start on a worker miss its deadline; return the worker's pause."""
    async with pacer.turn(address) as attempt:
        await asyncio.sleep(seconds)
        return pacer.on_missed(attempt, address)


async def start(pacer, address="a", seconds=1.0):
    async with pacer.turn(address) as attempt:
        await asyncio.sleep(seconds)
        pacer.on_started(attempt)


def test_a_worker_gets_twice_as_long_each_time_and_then_longer_and_longer_pauses():
    async def work():
        paced = pacer()
        seen = [(paced.factor("a"), await miss(paced)) for _ in range(9)]
        assert paced.factor("b") == 1.0
        return seen

    pauses = [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert run_virtually(work()) == [(1.0, 0.0), (2.0, 0.0), (4.0, 0.0), *((8.0, pause) for pause in pauses)]


def test_starts_that_miss_the_longest_deadline_together_cause_one_pause():
    async def work():
        paced = pacer()
        for _ in range(3):
            await miss(paced)
        together = await asyncio.gather(*(miss(paced) for _ in range(4)))
        left = paced.rest_of_pause("a"), paced.rest_of_pause("b")
        return together, left, await miss(paced)

    assert run_virtually(work()) == ([60.0] * 4, (60.0, 0.0), 120.0)


def test_a_worker_that_does_not_grant_resources_gets_a_warning_and_no_pause(caplog):
    async def work():
        paced = pacer()
        async with paced.turn("a") as attempt:
            # A lease on another worker than that of the attempt.
            answers = [paced.on_missed(attempt, "b", pauses=False) for _ in range(8)]
        return answers, paced.rest_of_pause("b"), paced.factor("b")

    assert run_virtually(work()) == ([0.0] * 8, 0.0, 8.0)
    assert caplog.text.count("worker b does not grant the resources of a trial") == 1


@pytest.mark.parametrize("ends", [start, lambda paced: forget(paced, "a"), lambda paced: forget(paced, None)])
def test_the_first_pause_is_short_again_after_a_start_that_succeeds_or_a_loss(ends):
    async def work():
        paced = pacer()
        for _ in range(6):
            await miss(paced)
        await ends(paced)
        paced.on_missed(StartAttempt(address="a", factor=4.0, begun_at=0.0), "a")
        return await miss(paced)

    assert run_virtually(work()) == 60.0


async def forget(paced, address):
    paced.forget_worker(address)


def test_starts_on_one_worker_that_are_late_together_count_once():
    async def work():
        paced = pacer()
        await asyncio.gather(*(miss(paced) for _ in range(10)))
        return paced.factor("a")

    assert run_virtually(work()) == 2.0


def test_a_worker_that_is_quick_again_has_its_usual_deadline_and_a_slow_one_keeps_its_own():
    async def work():
        paced = pacer()
        await miss(paced)
        await start(paced, seconds=20.0)
        kept = paced.factor("a")
        await start(paced, seconds=1.0)
        return kept, paced.factor("a")

    assert run_virtually(work()) == (2.0, 1.0)


def test_a_lost_worker_is_forgotten():
    async def work():
        paced = pacer()
        await asyncio.gather(miss(paced, "a"), miss(paced, "b"), miss(paced, "c"))
        paced.forget_worker("a")
        first = [paced.factor(one) for one in "abc"]
        paced.forget_worker(None)
        return first, [paced.factor(one) for one in "abc"]

    assert run_virtually(work()) == ([1.0, 2.0, 2.0], [1.0, 1.0, 1.0])


def test_half_as_many_start_at_a_time_after_all_were_late_at_once(caplog):
    async def work():
        paced = pacer()
        limits = [paced.limit]
        for _ in range(6):
            await asyncio.gather(*(miss(paced, f"w{number}") for number in range(100)))
            limits.append(paced.limit)
        return limits

    limits = run_virtually(work())
    assert limits[:2] == [inf, 50]
    assert sorted(limits, reverse=True) == limits
    assert limits[-1] == 4
    assert "is slow to start a trial" in caplog.text


def test_each_start_that_succeeds_admits_one_more():
    async def work():
        paced, most, running = pacer(), 0, 0
        await miss(paced)

        async def one(number):
            nonlocal most, running
            async with paced.turn(f"w{number}") as attempt:
                running += 1
                most = max(most, running)
                await asyncio.sleep(1.0)
                running -= 1
                paced.on_started(attempt)

        await asyncio.gather(*(one(number) for number in range(40)))
        return paced.limit, most

    limit, most = run_virtually(work())
    assert limit == 44
    assert 4 < most < 40


def test_workers_that_never_answer_hold_up_the_others_for_the_usual_time_only():
    async def work():
        paced = pacer()
        await miss(paced)
        hanging = [asyncio.ensure_future(miss(paced, "a", 1e6)) for _ in range(4)]
        await asyncio.sleep(0)
        begun = asyncio.get_running_loop().time()
        await start(paced, "b")
        for one in hanging:
            one.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await asyncio.gather(*(start(paced, f"w{number}") for number in range(4)))
        return asyncio.get_running_loop().time() - begun

    assert run_virtually(work()) == pytest.approx(17.0)


def test_a_start_that_is_cancelled_as_its_turn_comes_passes_it_on():
    async def work():
        paced = pacer()
        await miss(paced)
        running = [asyncio.ensure_future(start(paced, f"w{number}")) for number in range(4)]
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(start(paced, f"v{number}")) for number in range(3)]
        await asyncio.sleep(0)
        # One is cancelled while it waits, and one when its turn has come in the same pass.
        waiting[0].cancel()
        running[0].cancel()
        await asyncio.sleep(0)
        waiting[1].cancel()
        done = await asyncio.gather(*running, *waiting, return_exceptions=True)
        # No turn was lost: as many as before run at a time.
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*(start(paced) for _ in range(4)))
        return [type(one) for one in done], asyncio.get_running_loop().time() - begun

    kinds, seconds = run_virtually(work())
    assert kinds.count(asyncio.CancelledError) == 3
    assert seconds == pytest.approx(1.0)


# A hundred workers that share a machine.


class Machine:
    """Stands for a client of workers on one machine, which creates one actor after another."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.processor = asyncio.Lock()

    def as_current(self):
        return nullcontext()

    def map(self, *arguments, key, **options):
        return [Created(asyncio.ensure_future(self.create())) for _ in key]

    async def create(self):
        async with self.processor:
            await asyncio.sleep(self.seconds)


class Created:
    """As much of a Dask future as an actor's handle needs."""

    def __init__(self, task):
        self.task = task

    @property
    def status(self):
        if not self.task.done():
            return "pending"
        if self.task.cancelled():
            return "cancelled"
        return "error" if self.task.exception() else "finished"

    def __await__(self):
        return self.task.__await__()

    def cancelled(self):
        return self.task.cancelled()

    async def cancel(self):
        self.task.cancel()

    async def exception(self):
        await asyncio.wait([self.task])


def make_pool(machine):
    async def ensure_on(address, factor):
        pass

    return ActorPool(
        machine,
        name="x",
        plugin="x",
        actor_settings={},
        objects=SimpleNamespace(ensure_on=ensure_on),
        priority=0,
        leases=False,
        limits=PoolLimits(open_timeout=15.0, lease_timeout=10.0, idle_time=1.0, idle_lease_time=0.25),
        spawn=asyncio.ensure_future,
    )


@pytest.mark.parametrize("seconds", [0.01, 0.25, 1.0])
def test_a_hundred_workers_of_a_slow_machine_all_start_in_the_end(seconds):
    async def work():
        pool, retries = make_pool(Machine(seconds)), 0

        async def serve(number):
            nonlocal retries
            bundle = PlacedBundle(address=f"tcp://{number}", resources={"CPU": 1}, declared={})
            placement = Placement(number=number, bundles=(bundle,))
            while True:
                actor = pool.acquire(placement)
                try:
                    await pool.make_ready(actor, placement)
                    return
                except WorkerSlow:
                    retries += 1
                    await actor.close()
                    await asyncio.sleep(2.0)

        await asyncio.gather(*(serve(number) for number in range(100)))
        return retries, asyncio.get_running_loop().time()

    retries, passed = run_virtually(work())
    assert (retries == 0) == (seconds == 0.01)
    # At most a few times the work itself.
    assert passed < 4 * 100 * seconds + 60


def test_an_actor_that_is_never_created_is_a_slow_worker_and_no_failure(caplog):
    async def work():
        pool, pauses, seconds = make_pool(Machine(1e6)), [], []
        bundle = PlacedBundle(address="tcp://a", resources={"CPU": 1}, declared={})
        placement = Placement(number=1, bundles=(bundle,))
        for _ in range(5):
            actor = pool.acquire(placement)
            begun = asyncio.get_running_loop().time()
            with pytest.raises(WorkerSlow, match="did not create an actor within") as raised:
                await pool.make_ready(actor, placement)
            pauses.append(raised.value.pause_s)
            seconds.append(round(asyncio.get_running_loop().time() - begun))
            await actor.close()
            await asyncio.sleep(raised.value.pause_s)
        return pauses, seconds

    assert run_virtually(work()) == ([0, 0, 0, 60, 120], [15, 30, 60, 120, 120])
    assert caplog.text.count("worker tcp://a answers, but cannot start a trial") == 2


def test_starts_that_wait_for_their_turn_leave_a_worker_that_gets_a_pause():
    async def work():
        pool = make_pool(Machine(1e6))
        bundle = PlacedBundle(address="tcp://a", resources={"CPU": 1}, declared={})
        placement = Placement(number=1, bundles=(bundle,))

        async def start():
            with pytest.raises(WorkerSlow) as raised:
                await pool.make_ready(pool.acquire(placement), placement)
            return raised.value.pause_s

        for _ in range(3):
            await start()
        begun = asyncio.get_running_loop().time()
        # Of the starts that have a turn, four more begin each 15 s: the last ones after 105 s.
        pauses = await asyncio.gather(*(start() for _ in range(100)))
        return set(pauses), asyncio.get_running_loop().time() - begun

    pauses, seconds = run_virtually(work())
    assert pauses == {60.0}
    assert seconds == pytest.approx(225.0)


def test_an_actor_that_a_worker_refuses_fails_its_start():
    class Refusing(Machine):
        async def create(self):
            raise ValueError("as planned")

    async def work():
        pool = make_pool(Refusing(0.0))
        bundle = PlacedBundle(address="tcp://a", resources={"CPU": 1}, declared={})
        placement = Placement(number=1, bundles=(bundle,))
        with pytest.raises(ActorCallFailed, match="as planned") as raised:
            await pool.make_ready(pool.acquire(placement), placement)
        return raised.value.timed_out

    assert run_virtually(work()) is False
