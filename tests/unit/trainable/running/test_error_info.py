from __future__ import annotations

import copyreg
import pickle
import threading

from dasktune.trainable.running.error_info import MAX_PICKLED, error_info


class CannotPrint(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class CannotLoad(Exception):
    def __init__(self, a, b):
        super().__init__(a)


class ExitsWhenPickled(Exception):
    def __reduce__(self):
        raise SystemExit(3)


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return error_info(caught)


def test_message_and_traceback_say_what_was_raised_where():
    info = raised(ValueError("no such loss"))
    assert info.message == "ValueError: no such loss"
    assert info.traceback.startswith("Traceback")
    assert "raise error" in info.traceback
    assert isinstance(pickle.loads(info.pickled), ValueError)


def test_an_exception_without_text_is_its_name():
    assert error_info(KeyboardInterrupt()).message == "KeyboardInterrupt"


def test_an_exception_that_cannot_be_printed_is_described_all_the_same():
    info = raised(CannotPrint())
    assert info.message == "CannotPrint: <str() of the exception failed>"
    assert "CannotPrint" in info.traceback


def test_only_what_survives_the_round_trip_is_pickled(monkeypatch):
    # Once distributed is imported, exceptions that were known by then can be pickled by more ways.
    for kind in (ValueError, CannotLoad, ExitsWhenPickled):
        monkeypatch.delitem(copyreg.dispatch_table, kind, raising=False)
    holds_lock = ValueError("x")
    holds_lock.lock = threading.Lock()
    for error in (holds_lock, CannotLoad(1, 2), ExitsWhenPickled("x")):
        info = raised(error)
        assert info.pickled == b""
        assert type(error).__name__ in info.message


def test_a_huge_exception_stays_on_the_worker():
    assert error_info(ValueError("x" * (MAX_PICKLED // 2))).pickled
    assert error_info(ValueError("x" * MAX_PICKLED)).pickled == b""


class CannotBeFormatted(Exception):
    @property
    def __cause__(self):
        raise RecursionError("too deep")


def test_a_traceback_that_cannot_be_formatted_is_said_so():
    info = raised(CannotBeFormatted("x"))
    assert info.traceback == "CannotBeFormatted: x\n(no traceback: RecursionError while formatting it)\n"


def test_a_module_that_the_worker_lacks_is_named_with_what_to_do():
    info = raised(ModuleNotFoundError("No module named 'a.b'", name="a.b"))
    assert info.message == "ModuleNotFoundError: No module named 'a.b'"
    assert "lacks 'a'. If it is a module of your own, import it at the top" in info.traceback
    assert "client.upload_file('a.py')" in info.traceback
    # A stranger's package may have the name of the user's module.
    assert "PipInstall" not in info.traceback
    # One that has the module is of no other interest.
    assert "lacks" not in raised(ImportError("cannot import name 'x' from 'json'")).traceback
