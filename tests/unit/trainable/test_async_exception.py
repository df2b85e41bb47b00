from __future__ import annotations

import contextlib
import sys
import threading
import time

import pytest

from dasktune.trainable.async_exception import AsyncRaise, TrialInterrupted


def run_in_thread(interrupter, function):
    """Call `function` in another thread; return the thread and the list of what it raised."""
    raised = []

    def body():
        try:
            interrupter.call(function)
        except BaseException as error:
            raised.append(type(error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, raised


def test_a_busy_loop_is_interrupted():
    interrupter, running = AsyncRaise(), threading.Event()

    def loop():
        running.set()
        while True:
            try:
                pass
            except Exception:
                continue

    thread, raised = run_in_thread(interrupter, loop)
    assert running.wait(30)
    interrupter.interrupt()
    thread.join(30)
    assert raised == [TrialInterrupted]


def test_user_code_that_catches_everything_can_be_interrupted_again():
    interrupter, running, caught = AsyncRaise(), threading.Event(), threading.Event()

    def stubborn():
        try:
            running.set()
            while True:
                pass
        except BaseException:
            caught.set()
        while True:
            pass

    thread, raised = run_in_thread(interrupter, stubborn)
    assert running.wait(30)
    interrupter.interrupt()
    assert caught.wait(30)
    interrupter.interrupt()
    thread.join(30)
    assert raised == [TrialInterrupted]


def test_nothing_strikes_behind_the_shield_and_everything_at_its_end():
    interrupter, shielded, gate = AsyncRaise(), threading.Event(), threading.Event()
    steps = []

    def user_code():
        interrupter.mask()
        try:
            shielded.set()
            assert gate.wait(30)
            steps.append("shielded work done")
        finally:
            interrupter.unmask()
        steps.append("not reached")

    thread, raised = run_in_thread(interrupter, user_code)
    assert shielded.wait(30)
    interrupter.interrupt()
    gate.set()
    thread.join(30)
    assert raised == [TrialInterrupted]
    assert steps == ["shielded work done"]


def test_an_interrupt_that_came_between_two_calls_ends_the_next_one():
    interrupter = AsyncRaise()
    interrupter.interrupt()
    with pytest.raises(TrialInterrupted):
        interrupter.call(pytest.fail, "must not run")
    assert interrupter.call(lambda: 1) == 1


def test_an_interrupt_that_was_settled_is_forgotten():
    interrupter = AsyncRaise()
    interrupter.interrupt()
    interrupter.discard_pending()
    assert interrupter.call(lambda x: x, 2) == 2


def test_an_interrupt_in_the_last_moment_of_user_code_ends_the_next_call():
    interrupter, outcome = AsyncRaise(), []

    def user_code():
        try:
            interrupter.interrupt()
        finally:
            outcome.append("left")

    with pytest.raises(TrialInterrupted):
        interrupter.call(user_code)
    assert outcome == ["left"]
    assert interrupter.call(lambda: 5) == 5


def test_an_interrupt_at_any_moment_is_raised_once_and_only_by_a_call():
    """Calls begin and end all the time: interrupts also come just before, in and after both."""
    interrupter, requests, acknowledged = AsyncRaise(), threading.Semaphore(0), threading.Semaphore(0)
    rounds, interval = 300, sys.getswitchinterval()

    def interrupt_each_round():
        for _ in range(rounds):
            assert requests.acquire(timeout=30)
            interrupter.interrupt()
            acknowledged.release()

    def user_code():
        interrupter.mask()
        interrupter.unmask()

    def call_until_interrupted():
        calls = 0
        while True:
            calls += 1
            assert calls < 10_000_000
            try:
                interrupter.call(user_code)
            except TrialInterrupted:
                return

    def be_interrupted_each_round():
        for _ in range(rounds):
            requests.release()
            call_until_interrupted()
            assert acknowledged.acquire(timeout=30)
            # It is over: no second exception waits for the next call.
            interrupter.call(user_code)
        completed.set()

    completed = threading.Event()
    threads = [
        threading.Thread(target=target, daemon=True)
        for target in (interrupt_each_round, be_interrupted_each_round)
    ]
    # An exception in coverage's own code would leave its lock locked for ever.
    traced = threading.gettrace()
    threading.settrace(None)
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        assert completed.wait(120)
    finally:
        sys.setswitchinterval(interval)
        threading.settrace(traced)
    for thread in threads:
        thread.join(30)


def test_an_interrupt_that_user_code_has_swallowed_does_not_strike_again():
    interrupter = AsyncRaise()

    def user_code():
        with contextlib.suppress(TrialInterrupted):
            interrupter.interrupt()
        interrupter.mask()
        interrupter.unmask()
        return "continued"

    assert interrupter.call(user_code) == "continued"
    assert interrupter.call(lambda: 6) == 6


def test_the_shield_of_another_thread_changes_nothing():
    interrupter, running = AsyncRaise(), threading.Event()

    def user_code():
        helper = threading.Thread(target=interrupter.mask)
        helper.start()
        helper.join()
        running.set()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            pass

    thread, raised = run_in_thread(interrupter, user_code)
    assert running.wait(30)
    interrupter.interrupt()
    thread.join(40)
    assert raised == [TrialInterrupted]


def test_interrupts_without_a_pause_never_strike_what_follows_a_call():
    """Two of them may come around the end of a call; a pause would let it find no second one."""
    interrupter, over, strikes = AsyncRaise(), threading.Event(), []

    def interrupt_all_the_time():
        while not over.is_set():
            interrupter.interrupt()

    def call_all_the_time():
        try:
            for _ in range(2000):
                with contextlib.suppress(TrialInterrupted):
                    interrupter.call(lambda: None)
                # As long as this runs, a switch of threads lets many interrupts come.
                for _ in range(50):
                    pass
        except TrialInterrupted:
            strikes.append("struck")
        over.set()

    threads = [threading.Thread(target=interrupt_all_the_time, daemon=True) for _ in range(2)]
    caller = threading.Thread(target=call_all_the_time, daemon=True)
    traced, interval = threading.gettrace(), sys.getswitchinterval()
    threading.settrace(None)
    sys.setswitchinterval(1e-6)
    try:
        for thread in (*threads, caller):
            thread.start()
        caller.join(60)
    finally:
        over.set()
        sys.setswitchinterval(interval)
        threading.settrace(traced)
    for thread in threads:
        thread.join(30)
    assert not caller.is_alive()
    assert strikes == []
