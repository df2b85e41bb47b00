"""``import dasktune`` stays light: a worker pays for it, and so does every notebook."""

from __future__ import annotations

import json
import subprocess
import sys

#: All third parties that importing dasktune may load: not dask, not distributed, not pandas. A name
#: more is a decision, not an accident.
ALLOWED = {"cloudpickle", "fsspec", "numpy"}

PROBE = """
import json, sys
before = set(sys.modules)
import dasktune
# What has no spec was not imported: compiled modules put helpers of their own into the table.
new = [name for name in set(sys.modules) - before if getattr(sys.modules[name], "__spec__", None)]
loaded = {name.partition(".")[0] for name in new}
print(json.dumps(sorted(loaded - sys.stdlib_module_names - {"dasktune"})))
"""


def test_importing_dasktune_loads_no_third_party_but_those_that_were_agreed_on():
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(json.loads(done.stdout)) <= ALLOWED
