"""Unpickling beside other threads that import modules."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from dasktune.trainable.data.child_payload import open_code, open_config

#: What Python raises if two threads import modules that need each other.
DISTURBED = {
    "half": "ImportError(\"cannot import name 'A' from partially initialized module 'a' (a.py)\")",
    "deadlock": "sys.modules['_frozen_importlib']._DeadlockError('deadlock detected by a lock')",
    "attribute": "AttributeError(\"partially initialized module 'a' has no attribute 'b'\")",
}


PAUSES_S = (0.0, 0.0)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "users_module.py"


def pickle_from(module: Path, imported: str) -> bytes:
    """Pickle an object of a module, whose next imports are to run the given code first."""
    module.write_text("class Value:\n    pass\n")
    value = __import__(module.stem).Value()
    blob = pickle.dumps({"trainable": value, "config": value})
    del sys.modules[module.stem]
    (module.parent / "count").write_text("")
    module.write_text(
        "import pathlib, sys\n"
        "count = pathlib.Path(__file__).with_name('count')\n"
        "tries = len(count.read_text())\n"
        "count.write_text('.' * (tries + 1))\n"
        f"{imported}\n"
        "class Value:\n"
        "    pass\n"
    )
    return blob


@pytest.mark.parametrize("error", DISTURBED.values(), ids=DISTURBED)
def test_an_import_that_another_thread_disturbs_is_tried_again(module: Path, error: str):
    blob = pickle_from(module, f"if tries < 2:\n    raise {error}")
    try:
        assert type(open_code(blob, lambda name: None, pauses_s=PAUSES_S).trainable).__name__ == "Value"
        assert module.with_name("count").read_text() == "..."
    finally:
        sys.modules.pop(module.stem, None)


def test_a_circular_import_and_other_errors_are_reported(module: Path):
    blob = pickle_from(module, f"raise {DISTURBED['half']}")
    with pytest.raises(ImportError, match="partially initialized"):
        open_config(blob, pauses_s=PAUSES_S)
    assert module.with_name("count").read_text() == "..."
    blob = pickle_from(module, "raise ImportError('no such library')")
    with pytest.raises(ImportError, match="no such library"):
        open_config(blob, pauses_s=PAUSES_S)
    assert module.with_name("count").read_text() == "."
