"""The pages that beginners read first: their code, block by block, in a notebook."""

from __future__ import annotations

import ast
import re
from codeop import compile_command
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.cluster


def blocks(page: str) -> list[str]:
    """Return the Python of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_page(page: str, tmp_path: Path, monkeypatch: Any, *, last: str) -> str:
    """Run a page as its reader would, then `last`; return what was printed."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("sklearn")
    # Its results must not lie among the user's.
    monkeypatch.setenv("HOME", str(tmp_path))
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in (*blocks(page), last)]
    client = nbclient.NotebookClient(
        notebook,
        timeout=280,
        # By default 60 s for the kernel; and 4 s for what a cell has printed, else it is lost.
        startup_timeout=280,
        iopub_timeout=280,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    streams = (one for cell in notebook.cells for one in cell.outputs)
    return "".join(one.text for one in streams if one.output_type == "stream")


def test_the_blocks_of_the_tutorial_can_be_pasted_at_a_prompt():
    for block in blocks("tutorial.md"):
        statement: list[str] = []
        for line in [*block.splitlines(), ""]:
            statement.append(line)
            # A prompt takes each statement by itself: an empty line ends one with a block.
            if compile_command("\n".join(statement)) is not None:
                statement = []
        assert statement == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_leads_from_a_loop_to_a_tuned_model(tmp_path, monkeypatch):
    told = run_page(
        "tutorial.md",
        tmp_path,
        monkeypatch,
        last="print('TEST', model.score(X_test, y_test), search.score(X_test, y_test))",
    )
    epochs = re.search(r"(\d+) epochs instead of 648", told)
    assert epochs is not None
    # What the page says of it: less than the eight trials of before, of 27 epochs each.
    assert int(epochs[1]) < 216
    assert "10 trials" in told
    scores = re.search(r"TEST ([\d.]+) ([\d.]+)", told)
    assert scores is not None
    # Guessing would be right in 10 % of the cases.
    assert all(float(score) > 0.7 for score in scores.groups())
    assert (tmp_path / "digits.html").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_of_all_features_run_as_they_stand(tmp_path, monkeypatch):
    told = run_page(
        "features.md",
        tmp_path,
        monkeypatch,
        last="print('BEST', best.metrics['loss'], len(analysis.trials), len(results))",
    )
    found = re.search(r"BEST ([\d.e-]+) 20 100", told)
    assert found is not None
    assert float(found[1]) < 1.0


#: What the code of a page prints.
PRINTED = {
    "index.md": r"\{'lr': 0\.\d+\}",
    "quickstart.md": r"\{'lr': 0\.\d+\}",
    "choosing.md": r"none +loss [\d.]+ by 2700 epochs\nASHA +loss [\d.]+ by [3-9]\d\d epochs\nmedian +loss",
    "early-stopping-savings.md": r"None: 16200 epochs, 4050 h .*ASHAScheduler\(max_t=81.*: 1?\d\d\d epochs",
    "from-optuna.md": r"\{'kind': '(sgd|adam)', 'rate': [\d.]+.*\} 0\.\d+",
    "from-dask-ml.md": r"'alpha': .*'penalty': 'l[12]'\} 0\.[89].*dask\.array<",
    "large-data.md": r"0\.000\d{3}\n.*0\.000\d{3}\n",
    "many-gpus.md": r"one for each trial:  .*'0'.*'1'.*half of one: .*two for each trial:  .*'0,1'",
    "shared-cluster.md": r"mine 20 0\n.*urgent 20 0\n.*later 20 0\n",
    "faq.md": r"\{'x': 0\.\d+\} .*dasktune_results/questions",
    "troubleshooting.md": r"TERMINATED.*ERROR.*ValueError: x must be at most 2, got 3\n.*\n0\n",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PRINTED)
def test_the_code_of_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    if page == "from-optuna.md":
        pytest.importorskip("optuna")
    printed = run_page(page, tmp_path, monkeypatch, last="")
    assert re.search(PRINTED[page], printed, re.DOTALL), printed


def test_the_messages_on_the_page_of_failures_are_those_of_the_code():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(messages) > 20
    code = " ".join(texts_of_the_code())
    for message in messages:
        # What differs from case to case is an ellipsis.
        parts = [part.strip(" .,;:()") for part in " ".join(message.split()).split("…")]
        parts = [part for part in parts if len(part) > 3]
        assert parts
        assert [part for part in parts if part not in code] == []


def texts_of_the_code() -> Iterator[str]:
    """Yield the texts in dasktune's code; what is filled in is left out."""
    for path in (DOCS.parent / "dasktune").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.split(r"%[sdg]|%\.\d[fg]|\{\w*\}", node.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_the_recipe_that_searches_features_leaves_some_out():
    pytest.importorskip("sklearn")
    pytest.importorskip("optuna")
    (recipe,) = (text for text in blocks("estimators.md") if "class FeatureGroups" in text)
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(recipe, "estimators.md", "exec"), names)
    search = names["search"]
    known = search.best_estimator_[:-1].transform(names["features"])
    assert known.shape == (569, search.best_params_["best__k"])
    # Two thirds of the samples are of one class.
    assert search.best_score_ > 0.9
    assert search.stopped_early_.any()
    assert {params["groups__mean"] for params in search.cv_results_["params"]} == {True, False}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_on_distributed_trials_runs(tmp_path, monkeypatch):
    told = run_page(
        "distributed-trials.md", tmp_path, monkeypatch, last="print('BEST', best.metrics['loss'])"
    )
    found = re.search(r"BEST ([\d.e-]+)", told)
    assert found is not None
    # The optimum is the mean over both shards: a rank alone would end at 3 or 5.
    assert float(found[1]) < 0.1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_on_the_costs_of_early_stopping_runs(tmp_path, monkeypatch):
    last = "print('TEST', what_if.num_curves, what_if.recommended.iterations.value)"
    told = run_page("whatif.md", tmp_path, monkeypatch, last=last)
    assert "40 full curves of up to 27 iterations" in told
    found = re.search(r"TEST 40 ([\d.]+)", told)
    assert found is not None
    # The losses fall steadily, so some scheduler saves something.
    assert float(found[1]) < 0.9
