"""How many threads the numerical libraries use."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dasktune.numeric_threads import single_threaded

#: The environment is read when a library is loaded, so the tests set the number by themselves.
USUAL = 2


@pytest.fixture(autouse=True)
def _two_threads():
    with threadpool_limits(USUAL):
        yield


def num_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@single_threaded("numpy.linalg")
def limited(inside=num_threads):
    return inside()


def test_a_function_uses_one_thread_and_what_follows_as_many_as_before():
    assert num_threads() == {USUAL}
    assert limited() == {1}
    assert num_threads() == {USUAL}


def test_a_function_in_a_function_leaves_the_number_to_the_outer_one():
    assert limited(lambda: [limited(), num_threads()]) == [{1}, {1}]
    assert num_threads() == {USUAL}


def test_an_error_restores_the_number():
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 / 0)
    assert num_threads() == {USUAL}


class Library:
    """A library whose number of threads holds for the whole process, as that of most."""

    def __init__(self):
        self.num_threads = USUAL

    @contextmanager
    def limit(self, limits):
        before, self.num_threads = self.num_threads, limits
        yield
        self.num_threads = before


def test_two_threads_take_turns_so_that_the_last_one_restores_the_number(monkeypatch):
    library = Library()
    threadpoolctl = SimpleNamespace(ThreadpoolController=lambda: library)
    monkeypatch.setitem(sys.modules, "threadpoolctl", threadpoolctl)
    # Modules of its own, because the libraries are found once for the same modules.
    limited = single_threaded("numpy.linalg", "numpy.fft")(lambda inside: inside())
    begun, may_end = Event(), Event()

    def first():
        begun.set()
        assert may_end.wait(60)
        return library.num_threads

    with ThreadPoolExecutor() as threads:
        one = threads.submit(limited, first)
        assert begun.wait(60)
        other = threads.submit(limited, lambda: library.num_threads)
        # Without turns the second one would be over by now, and the first one would restore 1.
        assert not wait([other], timeout=0.05).done
        may_end.set()
        assert (one.result(60), other.result(60)) == (1, 1)
    assert library.num_threads == USUAL


def test_without_threadpoolctl_the_number_stays(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert single_threaded("numpy.linalg", "numpy.random")(num_threads)() == {USUAL}
