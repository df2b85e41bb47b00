from __future__ import annotations

import threading

import pytest

from dasktune.trainable.interrupt import Interrupter, TrialInterrupted


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
    interrupter, running = Interrupter(), threading.Event()

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
    interrupter, running, caught = Interrupter(), threading.Event(), threading.Event()

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
    interrupter, shielded, go_on = Interrupter(), threading.Event(), threading.Event()
    steps = []

    def user_code():
        interrupter.shield()
        try:
            shielded.set()
            assert go_on.wait(30)
            steps.append("shielded work done")
        finally:
            interrupter.unshield()
        steps.append("not reached")

    thread, raised = run_in_thread(interrupter, user_code)
    assert shielded.wait(30)
    interrupter.interrupt()
    go_on.set()
    thread.join(30)
    assert raised == [TrialInterrupted]
    assert steps == ["shielded work done"]


def test_an_interrupt_that_came_between_two_calls_ends_the_next_one():
    interrupter = Interrupter()
    interrupter.interrupt()
    with pytest.raises(TrialInterrupted):
        interrupter.call(pytest.fail, "must not run")
    assert interrupter.call(lambda: 1) == 1


def test_an_interrupt_that_was_settled_is_forgotten():
    interrupter = Interrupter()
    interrupter.interrupt()
    interrupter.settle()
    assert interrupter.call(lambda x: x, 2) == 2


def test_an_interrupt_that_did_not_strike_in_user_code_does_not_strike_outside():
    interrupter = Interrupter()

    def interrupts_itself_and_is_shielded():
        with interrupter._lock:
            interrupter._set = True  # as if it had been set and not struck yet
        interrupter.shield()
        interrupter.unshield()
        return "went on"

    assert interrupter.call(interrupts_itself_and_is_shielded) == "went on"


def test_a_strike_between_user_code_and_the_lock_ends_nothing_else(monkeypatch):
    interrupter = Interrupter()
    real, strikes = interrupter._leave, [TrialInterrupted]

    def leave():
        if strikes:
            raise strikes.pop()
        real()

    monkeypatch.setattr(interrupter, "_leave", leave)
    assert interrupter.call(lambda: 3) == 3
    assert not interrupter._armed


def test_the_shield_of_another_thread_changes_nothing():
    interrupter = Interrupter()

    def user_code():
        helper = threading.Thread(target=lambda: (interrupter.shield(), interrupter.unshield()))
        helper.start()
        helper.join()
        return interrupter._armed

    assert interrupter.call(user_code)
