"""What reaches a scheduler that has no dasktune."""

from __future__ import annotations

import subprocess
import sys

import cloudpickle
import pytest

from dasktune.cluster.connection.by_value import by_value
from dasktune.cluster.sharing.due_shares import Contender, ShareRequest
from dasktune.cluster.sharing.fair_share import plan_shares
from dasktune.cluster.sharing.share_reporter import TRAVELLING
from dasktune.placement import Claim


@pytest.mark.parametrize("given", [(Claim,), (id, Claim(resources={}))])
def test_a_process_without_dasktune_unpickles_it(given):
    program = (
        "import pickle, sys; sys.modules['dasktune'] = None;"
        "assert callable(pickle.loads(sys.stdin.buffer.read()))"
    )
    blob = cloudpickle.dumps(by_value(*given))
    subprocess.run([sys.executable, "-c", program], input=blob, check=True)


def test_a_process_without_dasktune_places_a_trial_on_several_workers() -> None:
    pair = ShareRequest(({"CPU": 1, "GPU": 0.5},) * 2, "STRICT_SPREAD", 1)
    capacity = {address: {"CPU": 1, "GPU": 1, "GPU/0": 0.5} for address in "xyz"}
    for module in TRAVELLING:
        cloudpickle.register_pickle_by_value(module)
    try:
        blob = cloudpickle.dumps((plan_shares, capacity, [Contender("a", requests=[pair])]))
    finally:
        for module in TRAVELLING:
            cloudpickle.unregister_pickle_by_value(module)
    program = (
        "import pickle, sys; sys.modules['dasktune'] = None;"
        "plan_shares, *given = pickle.loads(sys.stdin.buffer.read());"
        "assert plan_shares(*given).startable == {'a': {'x', 'y'}}"
    )
    subprocess.run([sys.executable, "-c", program], input=blob, check=True)
