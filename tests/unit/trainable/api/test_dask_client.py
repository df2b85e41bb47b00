"""``get_client()``, as far as it knows nothing of Dask."""

from __future__ import annotations

import contextvars
import pickle
import threading
from typing import Any

import pytest
from trial_run_kit import Driver, make_spec

import dasktune as tune
from dasktune.errors import TuneError
from dasktune.trainable.api.dask_client import offer_pickled_client, set_client_factory
from dasktune.trainable.running.thread_run import ThreadRun


class Source:
    """Stands for what makes clients."""

    def get(self) -> object:
        return self


def in_a_new_context(work: Any) -> Any:
    return contextvars.Context().run(work)


def test_outside_of_a_trial_there_is_none() -> None:
    with pytest.raises(TuneError, match="outside of a trial"):
        in_a_new_context(tune.get_client)


def test_what_is_offered_to_a_thread_is_there_in_it_and_nowhere_else() -> None:
    def offered() -> object:
        set_client_factory(lambda: "client")
        return tune.get_client()

    assert in_a_new_context(offered) == "client"
    with pytest.raises(TuneError):
        in_a_new_context(tune.get_client)


def test_a_pickled_one_is_opened_once() -> None:
    def offered() -> tuple[object, object]:
        offer_pickled_client(pickle.dumps(Source()))
        return tune.get_client(), tune.get_client()

    one, two = in_a_new_context(offered)
    assert one is two


def test_an_interrupt_does_not_strike_while_the_client_is_made() -> None:
    made = threading.Event()

    def opener() -> Any:
        def slow() -> str:
            driver.run.interrupt()
            made.set()
            return "client"

        set_client_factory(slow)
        return lambda config: {"client": tune.get_client()}, {}

    driver = Driver.__new__(Driver)
    driver.bell, driver.messages = threading.Semaphore(0), []
    driver.run = ThreadRun(make_spec(), opener, driver.bell.release)
    driver.run.start()
    assert type(driver.end()).__name__ == "Stopped"
    assert made.is_set()
    assert driver.results == []
