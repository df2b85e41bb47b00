"""What reaches a scheduler that has no dasktune."""

from __future__ import annotations

import subprocess
import sys

import cloudpickle
import pytest

from dasktune.cluster.connection.by_value import by_value
from dasktune.placement import Claim


@pytest.mark.parametrize("given", [(Claim,), (id, Claim(resources={}))])
def test_a_process_without_dasktune_unpickles_it(given):
    program = (
        "import pickle, sys; sys.modules['dasktune'] = None;"
        "assert callable(pickle.loads(sys.stdin.buffer.read()))"
    )
    blob = cloudpickle.dumps(by_value(*given))
    subprocess.run([sys.executable, "-c", program], input=blob, check=True)
