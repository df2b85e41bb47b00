"""scikit-learn's own tests of its searches, with ours in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sklearn = pytest.importorskip("sklearn")

SKLEARN = Path(sklearn.__file__).parent
SEARCHES = [
    "model_selection/tests/test_search.py",
    "model_selection/tests/test_successive_halving.py",
]
METAESTIMATORS = [
    "tests/test_metaestimators.py",
    "tests/test_metaestimators_metadata_routing.py",
]

#: Tests that look at what a fit has done to an object of the test itself. A cluster gives each fit
#: a copy, so no search on one can pass them.
SHARED_STATE = {
    "test_searchcv_raise_warning_with_non_finite_score": "its scorer counts its calls",
    "test_multi_metric_search_forwards_metadata": "its scorer keeps what it was given in a list",
    "test_search_callbacks_receive_search_instance": "its callback compares searches with `is`",
    "test_cv_results": "its estimators draw their scores from one generator of the test",
    "test_base_estimator_inputs": "its estimator appends what it was given to a list of the test",
    "test_metadata_is_routed_correctly_to_scorer": "its scorer keeps what it was given in a list",
}

#: Of worker processes only.
OTHER_PROCESS = {
    "test_search_cv_verbose_3": "it reads what fits print from the standard output of this process",
    "test_search_callbacks_with_partial_fit_failures": (
        "the queue of its callbacks is pickled by the standard library, without the test's class"
    ),
}

EXCUSED = {
    "process": {},
    "threads": SHARED_STATE,
    "processes": SHARED_STATE | OTHER_PROCESS,
}


def run_theirs(files, *options, on, tmp_path):
    """Run scikit-learn's tests, and return how many fits ran where, and what came of each test."""
    told = tmp_path / "told.json"
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "swapped", "-p", "no:cacheprovider"]
    # Its own rules, not ours: scikit-learn's tests let warnings pass.
    command += ["-p", "no:logging", "-c", os.devnull, f"--rootdir={SKLEARN}", "-W", "ignore"]
    command += [f"--searches-on={on}", f"--tell={told}", *options]
    done = subprocess.run(
        [*command, *(str(SKLEARN / file) for file in files)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-5000:] + done.stderr[-5000:]
    result = json.loads(told.read_text())
    return result["fits"], result["outcomes"], done.stdout


def check(fits, outcomes, output, *, on, least):
    excused = EXCUSED[on]
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    unexpected = {name for name in failed if name.partition("[")[0] not in excused}
    assert not unexpected, output[-20000:]
    assert sum(outcome == "passed" for outcome in outcomes.values()) >= least - len(failed)
    elsewhere = "cluster" if on == "process" else "here"
    assert elsewhere not in fits
    assert fits["here" if on == "process" else "cluster"] > 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "on",
    [
        "process",
        pytest.param("threads", marks=pytest.mark.cluster),
        pytest.param("processes", marks=pytest.mark.cluster),
    ],
)
def test_the_searches_pass_the_tests_of_those_that_they_replace(on, tmp_path):
    # 243 of scikit-learn 1.9 pass with its own classes where no other array library is installed.
    check(*run_theirs(SEARCHES, on=on, tmp_path=tmp_path), on=on, least=200)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("on", ["process", pytest.param("threads", marks=pytest.mark.cluster)])
def test_the_searches_pass_the_tests_of_metaestimators(on, tmp_path):
    told = run_theirs(METAESTIMATORS, "-k", "SearchCV", on=on, tmp_path=tmp_path)
    check(*told, on=on, least=30)
