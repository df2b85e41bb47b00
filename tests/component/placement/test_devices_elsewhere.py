"""The module that deals GPUs, on a machine without dasktune."""

from __future__ import annotations

import subprocess
import sys

import dasktune.placement.devices


def test_this_travels_to_machines_without_dasktune() -> None:
    code = (
        "import runpy, sys; names = runpy.run_path(sys.argv[1]);"
        "print(names['assign_devices']('01', taken=()), 'dasktune' in sys.modules)"
    )
    path = dasktune.placement.devices.__file__
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "('0', '1') False"
