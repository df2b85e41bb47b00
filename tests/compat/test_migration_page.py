"""The whole program on the page for users of Ray Tune runs as a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "migrating-from-ray-tune.md"

pytestmark = pytest.mark.cluster


def run(script: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(script.parent)}
    return subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=script.parent, capture_output=True, text=True
    )


def whole_program() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    [program] = [block for block in blocks if "__main__" in block]
    return program


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_program_of_the_page_runs(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(whole_program(), encoding="utf-8")
    done = run(script)
    assert "best accuracy: 0." in done.stdout, done.stderr
    assert (tmp_path / "dasktune_results" / "first" / "experiment.json").exists()


@pytest.mark.timeout(120)
def test_without_the_guard_the_error_shows_where_to_write_it(tmp_path):
    script = tmp_path / "program.py"
    guard = re.compile(r'^if __name__ == "__main__":.*\n +main\(\)$', re.MULTILINE)
    without, count = guard.subn("main()", whole_program())
    assert count == 1
    script.write_text(without, encoding="utf-8")
    done = run(script)
    assert done.returncode
    assert 'must be under `if __name__ == "__main__":`' in done.stderr
