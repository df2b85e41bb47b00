"""What all pages say agrees with what there is, whether or not a test runs it."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from page_kit import PAGES, ROOT, Reader, blocks, told

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_can_be_compiled_and_names_what_there_is(page):
    reader = Reader()
    for block in blocks(page):
        try:
            ast.parse(block)
        except SyntaxError as error:
            pytest.fail(f"{page}: {error}\n{block}")
        reader.read(block)
    assert reader.wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_the_prose_of_a_page_names_what_there_is(page):
    assert [code for code, holds in told(page) if not holds] == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("from dasktune.search import Nothing", "there is no dasktune.search.Nothing"),
        ("tune.nothing()", "there is no tune.nothing"),
        ("tune.Tuner(train, spaces={})", "'spaces'"),
        ("tune.Tuner(train).fit(3)", "too many positional"),
        ("results.get_best_result('loss', order='min')", "'order'"),
        ("print(results.get_best_result('loss').metric)", ".metric"),
        ("def train(config):\n    tune.report({}, checkpoints=None)", "'checkpoints'"),
        ("plain(2 * len([tune.TuneConfig(metrics='loss')]))", "'metrics'"),
        ("with tune.attach('x') as one:\n    one.results()", "there is no one.results"),
    ],
)
def test_the_reader_sees_what_is_wrong(line, told):
    reader = Reader()
    reader.read("import dasktune as tune\nresults = tune.Tuner(train).fit()\n")
    assert reader.calls == 2
    assert reader.wrong == []
    reader.read(line)
    (wrong,) = reader.wrong
    assert told in wrong


@pytest.mark.slow
@pytest.mark.cluster
def test_the_quickstart_of_the_readme_runs_as_it_stands(tmp_path, monkeypatch):
    # Its results must not lie among the user's.
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "quickstart.py"
    with script.open("w") as file:
        command = [sys.executable, str(ROOT / ".ci" / "quickstart.py"), str(ROOT / "README.md")]
        subprocess.run(command, stdout=file, check=True)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'lr': 0.")
