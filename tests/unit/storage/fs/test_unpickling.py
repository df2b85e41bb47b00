from __future__ import annotations

import importlib
import pickle
from functools import reduce

import pytest

from dasktune.schedulers import ASHAScheduler
from dasktune.storage.fs import unpickling
from dasktune.storage.fs.unpickling import MOVED, first_name, loads
from dasktune.trial.metrics import with_nested_names


@pytest.mark.parametrize("new", MOVED.values())
def test_every_old_name_leads_to_one_that_is_there(new):
    module, _, name = new.partition(":")
    reduce(getattr, filter(None, name.split(".")), importlib.import_module(f"dasktune.{module}"))


@pytest.mark.parametrize(
    ("old", "kind"),
    [("trial.nested_metrics:with_nested_names", with_nested_names), ("gone:Old", ASHAScheduler)],
)
def test_what_has_moved_is_found_and_keeps_its_first_name(old, kind, monkeypatch):
    new = f"{kind.__module__}:{kind.__qualname__}".removeprefix("dasktune.")
    monkeypatch.setitem(unpickling.MOVED, "gone:Old", new)
    monkeypatch.setitem(unpickling._FIRST, new, old)
    module, name = old.split(":")
    assert loads(f"cdasktune.{module}\n{name}\n.".encode()) is kind
    assert first_name(kind) == (f"dasktune.{module}", name)


def test_what_has_not_moved_is_found_where_it_is():
    assert loads(pickle.dumps([ASHAScheduler, dict])) == [ASHAScheduler, dict]
    assert first_name(ASHAScheduler) == (ASHAScheduler.__module__, "AsyncHyperBandScheduler")
    assert first_name(test_what_has_not_moved_is_found_where_it_is)[0] == __name__
    assert first_name("".join)[0] is None
