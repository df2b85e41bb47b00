"""Scripts that every worker process would run again are refused before one is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dasktune.cluster.connection.local_cluster import unguarded_statement

HEAD = """
import dasktune as tune

def train(config):
    return {"loss": config["x"]}

tuner = tune.Tuner(
    train,
    param_space={"x": 1.0},
    run_config=tune.RunConfig(storage_path="results"),
)
"""


def ended(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    (directory / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "call",
    [
        "print(tuner.fit())",
        "import asyncio\nresults = asyncio.run(tuner.fit_async())",
        "def main():\n    tuner.fit()\nmain()",
    ],
    ids=["fit", "fit_async", "main"],
)
def test_a_script_without_the_guard_fails_once_and_starts_no_process(tmp_path: Path, call: str):
    script = ended(tmp_path, HEAD + call)
    assert script.returncode == 1
    assert script.stderr.count("Traceback") == 1
    assert "dasktune.errors.ClusterError: the top-level code of script.py" in script.stderr
    last = call.splitlines()[-1]
    assert f'    if __name__ == "__main__":\n        {last}\n' in script.stderr
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


def found(directory: Path, text: str, line: int) -> bool:
    script = directory / "some.py"
    script.write_text(text)
    return unguarded_statement(script, line) is not None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tuner.fit()", 1),
        ("import x\nresults = x.Tuner(\n    train,\n).fit()", 3),
        ("for name in names:\n    x.run(name)", 2),
        ("results: object = x.run(train)", 1),
    ],
)
def test_what_every_process_does_is_found(tmp_path: Path, text: str, line: int):
    assert found(tmp_path, text, line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('if __name__ == "__main__":\n    tuner.fit()', 2),
        ('if __name__ != "__main__":\n    raise SystemExit\ntuner.fit()', 3),
        ("def main():\n    if __name__ == '__main__':\n        tuner.fit()\nmain()", 4),
        ("if first:\n    tuner.fit()", 2),
        (
            "def run():\n    try:\n        tuner.fit()\n    except OSError:\n        pass\nrun()",
            6,
        ),
        ("import multiprocessing as mp\nmp.parent_process() or tuner.fit()", 2),
        ("from multiprocessing import parent_process as p\np() or tuner.fit()", 2),
        ("from contextlib import suppress as s\nwith s(Exception):\n    tuner.fit()", 3),
        ("tuner.fit(", 1),
        ("tuner.fit()", 7),
    ],
)
def test_a_script_that_may_have_a_guard_is_not_named(tmp_path: Path, text: str, line: int):
    assert not found(tmp_path, text, line)


def test_a_script_that_cannot_be_read_is_left_alone(tmp_path: Path):
    assert unguarded_statement(tmp_path / "gone.py", 1) is None
