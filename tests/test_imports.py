"""``import dasktune`` stays light: a worker pays for it, and so does every notebook."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

import dasktune

#: All third parties that importing dasktune may load: not dask, not distributed, not pandas. A name
#: more is a decision, not an accident.
ALLOWED = {"cloudpickle", "fsspec", "numpy"}

PROBE = """
import json, sys
before = set(sys.modules)
import dasktune
for name in set(dasktune.__all__) - {"PreemptionNotices"}:  # a plugin of Dask's workers
    getattr(dasktune, name)
# What has no spec was not imported: compiled modules put helpers of their own into the table.
new = [name for name in set(sys.modules) - before if getattr(sys.modules[name], "__spec__", None)]
loaded = {name.partition(".")[0] for name in new}
print(json.dumps(sorted(loaded - sys.stdlib_module_names - {"dasktune"})))
"""


def run(probe):
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_importing_dasktune_loads_no_third_party_but_those_that_were_agreed_on():
    assert set(run(PROBE)) <= ALLOWED


def test_the_process_of_a_trial_starts_without_what_only_the_driver_needs():
    loaded = run("import json, sys, dasktune.isolation.child\nprint(json.dumps(sorted(sys.modules)))")
    heavy = {"numpy", "dasktune.experiment", "dasktune.tuner.result_grid", "dasktune.tuner.tuner"}
    assert not heavy.intersection(loaded)


def test_a_worker_prepares_for_ordinary_trials_without_what_only_ranks_or_the_driver_need():
    # Both are imported on each worker before the first trial, which waits for that.
    modules = "dasktune.cluster.worker.trial_actor, dasktune.cluster.worker.examination"
    loaded = run(f"import json, sys, {modules}\nprint(json.dumps(sorted(sys.modules)))")
    others = (
        "cluster.checks",
        "cluster.driver",
        "experiment",
        "isolation.ranks",
        "runner",
        "space",
        "stopper",
    )
    others += ("trial.actions", "trial.events", "tuner")
    assert [name for name in loaded if name.startswith(tuple(f"dasktune.{one}" for one in others))] == []


def test_the_package_of_the_estimators_imports_none_of_its_modules():
    # Else two threads of a worker could wait for each other, see dasktune/sklearn/__init__.py.
    loaded = run("import json, sys, dasktune.sklearn\nprint(json.dumps(sorted(sys.modules)))")
    assert [name for name in loaded if name.startswith(("dasktune.sklearn.", "sklearn"))] == []
    import dasktune.sklearn

    assert sorted(dasktune.sklearn._HOME_OF) == dasktune.sklearn.__all__
    for name in dasktune.sklearn.__all__:
        assert getattr(dasktune.sklearn, name).__name__ == name
        assert name in dir(dasktune.sklearn)
    with pytest.raises(AttributeError, match=r"dasktune\.sklearn' has no attribute 'GridSearch'"):
        dasktune.sklearn.GridSearch  # noqa: B018


def test_all_public_names_are_there_although_they_are_imported_when_they_are_needed():
    for name in dasktune.__all__:
        assert getattr(dasktune, name) is vars(dasktune)[name]
        assert name in dir(dasktune)
    assert "schedulers" in dir(dasktune)
    assert dasktune.schedulers.__name__ == "dasktune.schedulers"
    assert run("import dasktune, json\nprint(json.dumps(dasktune.search.__name__))")
    with pytest.raises(AttributeError, match="module 'dasktune' has no attribute 'tunr'"):
        dasktune.tunr  # noqa: B018


def test_the_package_is_found_under_the_name_of_ray_tune():
    from dasktune import tune

    assert tune is dasktune
    assert tune.tune.Tuner is dasktune.Tuner


def test_a_trial_is_found_where_ray_tune_has_it():
    from dasktune.callback import TrialView
    from dasktune.experiment import Experiment, Trial

    assert dasktune.Trial is Trial is TrialView
    assert Experiment is dasktune.Experiment
    assert (Trial.PENDING, Trial.RUNNING, Trial.PAUSED) == ("PENDING", "RUNNING", "PAUSED")
    assert (Trial.TERMINATED, Trial.ERROR) == ("TERMINATED", "ERROR")
    with pytest.raises(AttributeError, match=r"'dasktune\.experiment' has no attribute 'Trail'"):
        dasktune.experiment.Trail  # noqa: B018


def test_integrations_are_attributes_that_are_imported_when_they_are_needed():
    probe = "import dasktune, json, sys\nmodule = dasktune.integration\n"
    names = "\nprint(json.dumps([n for n in sys.modules if n.startswith('dasktune.integration.')]))"
    assert run(f"{probe}{names}") == []
    assert "dasktune.integration.xgboost" in run(f"{probe}module.xgboost{names}")
    folder = Path(dasktune.integration.__file__).parent
    shared = {"__init__", "reporting", "tracked_run"}
    there = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    # None of them is imported yet.
    listed = run(f"{probe}print(json.dumps([*set(dir(module)) - set(vars(module))]))")
    assert set(listed) == there - shared
    with pytest.raises(AttributeError, match=r"dasktune\.integration' has no attribute 'comet'"):
        dasktune.integration.comet  # noqa: B018


def test_the_names_that_type_checkers_see_are_those_that_are_imported():
    tree = ast.parse(Path(dasktune.__file__).read_text())
    [seen] = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {
        node.module: sorted(alias.name for alias in node.names)
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
    }
    for home, names in shown.items():
        for name in names:
            assert getattr(dasktune, name) is getattr(import_module(home), name)
    assert sorted(dasktune.__all__) == sorted([*chain.from_iterable(shown.values()), "__version__"])
