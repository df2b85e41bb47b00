from __future__ import annotations

import importlib
import pickle
from functools import reduce

import pytest

from dasktune.schedulers import ASHAScheduler
from dasktune.schedulers.pareto import ParetoFronts
from dasktune.storage.fs.unpickling import MOVED_MODULES, MOVED_NAMES, first_name, loads

MOVED = [(f"dasktune.{old}", f"dasktune.{new}") for old, new in MOVED_MODULES.items()]


@pytest.mark.parametrize(("old", "new"), MOVED, ids=[old for old, _ in MOVED])
def test_every_old_module_leads_to_one_that_is_there(old, new):
    pytest.importorskip("sklearn")
    assert old != new
    importlib.import_module(new)


@pytest.mark.parametrize(("old", "new"), MOVED_NAMES.items(), ids=str)
def test_every_old_name_leads_to_one_that_is_there(old, new):
    pytest.importorskip("sklearn")
    module = importlib.import_module(f"dasktune.{new[0]}")
    kind = reduce(getattr, new[1].split("."), module)
    assert loads(f"cdasktune.{old[0]}\n{old[1]}\n.".encode()) is kind
    assert first_name(kind) == (f"dasktune.{old[0]}", old[1])


def test_what_has_not_moved_is_found_where_it_is():
    assert loads(pickle.dumps([ASHAScheduler, ParetoFronts, dict])) == [
        ASHAScheduler,
        ParetoFronts,
        dict,
    ]
    assert first_name(ASHAScheduler) == ("dasktune.schedulers.asha", "AsyncHyperBandScheduler")
    assert first_name(test_what_has_not_moved_is_found_where_it_is)[0] == __name__
    assert first_name("".join)[0] is None
