"""scikit-learn's own tests of its searches, with ours in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sklearn = pytest.importorskip("sklearn")

pytestmark = pytest.mark.slow

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
    "test_multi_metric_search_forwards_metadata": (
        ["GridSearchCV-param_grid", "RandomizedSearchCV-param_distributions"],
        "its scorer keeps what it was given in a list of the test",
    ),
    "test_search_callbacks_receive_search_instance": (
        ["search0", "search1", "search2", "search3"],
        "its callback compares searches with `is`",
    ),
    "test_base_estimator_inputs": (
        ["HalvingGridSearchCV", "HalvingRandomSearchCV"],
        "its estimator appends what it was given to a list of the test",
    ),
}

#: The same, but with luck in which fits run on which worker they pass.
UNSETTLED = {
    "test_searchcv_raise_warning_with_non_finite_score": (
        [
            "GridSearchCV-specialized_params0-False",
            "GridSearchCV-specialized_params0-True",
            "RandomizedSearchCV-specialized_params1-False",
            "RandomizedSearchCV-specialized_params1-True",
        ],
        "every fifth call of its scorer gives no number, and each copy counts its own",
    ),
    "test_cv_results": (
        ["HalvingGridSearchCV", "HalvingRandomSearchCV"],
        "it must see no score twice, and each copy of the generator draws the same",
    ),
}

#: Of worker processes only.
OTHER_PROCESS = {
    "test_search_cv_verbose_3": (
        ["False", "True"],
        "it reads what fits print from the standard output of this process",
    ),
    "test_search_callbacks_with_partial_fit_failures": (
        [],
        "the queue of its callbacks is pickled by the standard library, without the test's class",
    ),
}

#: Of the tests of metaestimators.
ROUTED_SCORER = {
    "test_metadata_is_routed_correctly_to_scorer": (
        ["GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV"],
        "its scorer keeps what it was given in a list of the test",
    ),
}


def listed(*families):
    """Return the names of tests, as pytest has them."""
    return {
        f"{family}[{case}]" if case else family
        for one in families
        for family, (cases, _) in one.items()
        for case in cases or [""]
    }


#: What fails, and what may.
FAILING = {
    "process": (set(), set()),
    "processes": (listed(SHARED_STATE, OTHER_PROCESS), listed(UNSETTLED)),
}

#: How many tests scikit-learn has that can be run, by its version; of others at least so many.
RUNNABLE = {"1.9": (243, 48)}
FEWEST = (200, 30)


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


def check(told, *, on, failing, may_fail, part):
    fits, outcomes, output = told
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed - may_fail == failing & set(outcomes), output[-20000:]
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    version = ".".join(sklearn.__version__.split(".")[:2])
    if version in RUNNABLE:
        # More are run where further array libraries are installed; none of those that are listed is
        # missing.
        assert failing <= set(outcomes)
        assert passed + len(failed) >= RUNNABLE[version][part]
    else:
        assert passed >= FEWEST[part]
    elsewhere = "cluster" if on == "process" else "here"
    assert elsewhere not in fits
    assert fits["here" if on == "process" else "cluster"] > 0


def test_no_more_is_excused_than_no_search_on_a_cluster_can_pass():
    for on, count in (("process", 0), ("processes", 17)):
        assert sum(map(len, FAILING[on])) == count
    for reasons in (SHARED_STATE, UNSETTLED, OTHER_PROCESS, ROUTED_SCORER):
        assert all(reason for _, reason in reasons.values())


ON = ["process", pytest.param("processes", marks=[pytest.mark.cluster, pytest.mark.exhaustive])]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("on", ON)
def test_the_searches_pass_the_tests_of_those_that_they_replace(on, tmp_path):
    failing, may_fail = FAILING[on]
    told = run_theirs(SEARCHES, on=on, tmp_path=tmp_path)
    check(told, on=on, failing=failing, may_fail=may_fail, part=0)


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_workers_that_are_threads_of_the_caller_share_no_state_with_it_either(tmp_path):
    families = {**SHARED_STATE, **UNSETTLED, **OTHER_PROCESS}
    _, outcomes, output = run_theirs(SEARCHES, "-k", " or ".join(families), on="threads", tmp_path=tmp_path)
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed - listed(UNSETTLED) == listed(SHARED_STATE), output[-20000:]
    assert {name for name, outcome in outcomes.items() if outcome == "passed"} >= listed(OTHER_PROCESS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("on", ON)
def test_the_searches_pass_the_tests_of_metaestimators(on, tmp_path):
    told = run_theirs(METAESTIMATORS, "-k", "SearchCV", on=on, tmp_path=tmp_path)
    failing = set() if on == "process" else listed(ROUTED_SCORER)
    check(told, on=on, failing=failing, may_fail=set(), part=1)
