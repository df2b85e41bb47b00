"""User code of a local module, in a process that cannot import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dasktune.cluster.protocol.pickling import dumps_user_code


def test_a_local_module_travels_to_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_travelling_helper.py").write_text("def plain(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("a_travelling_helper")
    monkeypatch.setitem(sys.modules, "a_travelling_helper", module)
    blob = dumps_user_code({"trainable": module.plain})
    command = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['trainable'](41))"
    result = subprocess.run([sys.executable, "-c", command], input=blob, capture_output=True)
    assert result.stdout.strip() == b"42"
