"""The examples, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.cluster

#: What Dask logs at length at the end: its scheduler was writing to a process that has left, or a
#: worker was sending a heartbeat to a scheduler that has left.
_DISCONNECTS = ("Closed comm", "Failed to communicate with scheduler during heartbeat")


def run_example(name: str, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    if not any(words in done.stderr for words in _DISCONNECTS):
        assert "Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_the_digits_are_learnt_and_early_stopping_saves_work(tmp_path):
    done = run_example("01_digits_asha.py", "--num-samples=6", f"--storage-path={tmp_path}")
    ended = r"6/6 trials done · 0 running · [1-5] stopped early · 0 errors · best accuracy 0\."
    assert re.search(ended, done.stderr)
    assert "Best configuration:\n  learning_rate " in done.stdout
    accuracy = re.search(r"test +([\d.]+)%", done.stdout)
    assert accuracy is not None
    # Guessing would be right in 10 % of the cases.
    assert float(accuracy[1]) > 50
    assert re.search(r"Early stopping saved [1-9]\d?% of the work", done.stdout)
    bars = re.findall(
        r"^ +(\d+) #+ +(\d+) (?:stopped by ASHA|trained to the end)$", done.stdout, re.MULTILINE
    )
    assert sum(int(count) for _, count in bars) == 6
    (report,) = tmp_path.glob("*/report.html")
    assert report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert f"  {report}\n" in done.stdout
    assert re.search(rf"^  \S*dasktune show {report.parent}$", done.stdout, re.MULTILINE)
    # Neither stream is a terminal.
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_killed_worker_costs_no_iteration():
    done = run_example("02_survive_a_killed_worker.py")
    assert "lost its worker" in done.stderr
    restarted = re.findall(r"^\S+ +(\d+) > (\d+) +1 to 30 +\d*[05] ", done.stdout, re.MULTILINE)
    assert len(restarted) == 1
    assert f"*** Killed process {restarted[0][0]}," in done.stdout
    assert "Every trial has each iteration once" in done.stdout


@pytest.mark.slow
def test_trees_of_a_forest_are_tasks_on_the_workers_of_its_trial(tmp_path):
    done = run_example("03_nested_dask.py", "--num-samples=4", f"--storage-path={tmp_path}")
    # Which trials are compared first is a matter of luck.
    stopped = r"( · [1-3] stopped early)?"
    ended = rf"4/4 trials done · 0 running{stopped} · 0 errors · best accuracy 0\."
    assert re.search(ended, done.stderr)
    accuracy = re.search(r"Its accuracy: ([\d.]+)%", done.stdout)
    assert accuracy is not None
    # Guessing would be right in 10 % of the cases.
    assert float(accuracy[1]) > 50
    assert re.search(r"^\d+ of 128 trees were fitted, each by a Dask task", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_a_cluster_without_workers_grows_for_the_trials(tmp_path):
    done = run_example("04_batch_system.py", cwd=tmp_path)
    assert "6/6 trials done · 0 running · 0 errors" in done.stderr
    assert "The best learning rate is 0.3" in done.stdout


@pytest.mark.slow
def test_a_killed_driver_is_followed_by_another_and_a_submitted_one_is_found_again():
    done = run_example("05_leave_and_come_back.py")
    recorded = re.search(r"Killed the driver when (\d+) of 80 results", done.stdout)
    assert recorded is not None
    assert 20 <= int(recorded[1]) < 80
    assert "4 of 4 trials have each" in done.stdout
    assert "Submitted: DetachedExperiment('submitted', running)" in done.stdout
    assert "Found again, and finished: 4 trials." in done.stdout


@pytest.mark.slow
def test_searches_of_scikit_learn_run_on_a_cluster():
    done = run_example("06_scikit_learn.py", "--num-candidates=9")
    accuracies = re.findall(r"accuracy on unseen pictures: ([\d.]+)%", done.stdout)
    assert len(accuracies) == 2
    assert all(float(accuracy) > 90 for accuracy in accuracies)
    assert "Halving:   9 candidates" in done.stdout


@pytest.mark.slow
def test_candidates_are_stopped_early_on_five_folds():
    done = run_example("07_early_stopping_cv.py", "--num-candidates=12")
    accuracies = re.findall(r"accuracy on .*: ([\d.]+)%", done.stdout)
    assert len(accuracies) == 2
    assert all(float(accuracy) > 85 for accuracy in accuracies)
    counted = re.search(r"(\d+) steps instead of 108", done.stdout)
    assert counted is not None
    assert int(counted[1]) < 108


@pytest.mark.slow
@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_boosted_trees_are_tuned_and_the_best_model_is_read_back(package, tmp_path):
    pytest.importorskip(package)
    done = run_example(
        "08_boosting.py", f"--package={package}", "--num-samples=8", f"--storage-path={tmp_path}"
    )
    accuracy = re.search(r"has never seen: ([\d.]+)%", done.stdout)
    assert accuracy is not None
    # Guessing the more frequent one would be right in 63 % of the cases.
    assert float(accuracy[1]) > 85
    assert re.search(r"Early stopping saved [1-9]\d?% of the work", done.stdout)


@pytest.mark.slow
def test_a_network_of_pytorch_learns_digits_and_is_loaded_from_its_checkpoint(tmp_path):
    pytest.importorskip("torch")
    done = run_example("09_pytorch_images.py", "--num-samples=6", f"--storage-path={tmp_path}")
    accuracy = re.search(r"has never seen: ([\d.]+)%", done.stdout)
    assert accuracy is not None
    # Guessing would be right in 10 % of the cases.
    assert float(accuracy[1]) > 80
    assert re.search(r"Early stopping saved [1-9]\d?% of the work", done.stdout)


@pytest.mark.slow
def test_a_pipeline_is_tuned_on_a_dask_data_frame():
    pytest.importorskip("pyarrow")
    done = run_example("10_dask_data_frame.py", "--num-candidates=6")
    accuracy = re.search(r"Accuracy on two other months: ([\d.]+)%", done.stdout)
    assert accuracy is not None
    # Always the more frequent answer would be right in less than 60 % of the cases.
    assert float(accuracy[1]) > 75
    counted = re.search(r"(\d+) steps instead of 54", done.stdout)
    assert counted is not None
    assert int(counted[1]) < 54
    assert "2 parts" in done.stdout


@pytest.mark.slow
def test_a_population_learns_to_balance_a_pole_with_changing_rates(tmp_path):
    done = run_example("11_population_agent.py", f"--storage-path={tmp_path}")
    medians = {
        name: float(steps)
        for name, steps in re.findall(r"^(with PBT|fixed) +an agent balances +([\d.]+) of", done.stdout, re.M)
    }
    # Half of the fixed agents have a rate with which they learn nothing.
    assert medians["with PBT"] > medians["fixed"]
    assert medians["with PBT"] > 100
    assert re.search(r"learning rates of the best agent: [\d.e-]+ > ", done.stdout)


@pytest.mark.slow
def test_two_objectives_have_a_front_from_small_to_accurate_networks(tmp_path):
    done = run_example("12_pareto_front.py", "--num-samples=20", f"--storage-path={tmp_path}")
    rows = re.findall(r"^ +(\d+) +([\d.]+)% +\d+ +\d+ +[12]$", done.stdout, re.MULTILINE)
    assert len(rows) > 2
    errors = [float(error) for _, error in rows]
    # A larger network is on the front only if it has fewer errors.
    assert errors == sorted(errors, reverse=True)
    assert [int(weights) for weights, _ in rows] == sorted(int(weights) for weights, _ in rows)
    assert errors[-1] < 15
    assert re.search(r"Early stopping saved [1-9]\d?% of the work", done.stdout)


@pytest.mark.slow
def test_a_shop_orders_better_than_a_person(tmp_path):
    done = run_example("13_simulated_shop.py", "--num-samples=30", f"--storage-path={tmp_path}")
    best = re.search(r"A day costs ([\d.]+) with it", done.stdout)
    person = re.search(r"left, a day costs ([\d.]+)\.", done.stdout)
    assert best is not None
    assert person is not None
    assert float(best[1]) < float(person[1])
    assert re.search(r"Early stopping saved [1-9]\d?% of the work", done.stdout)


def test_without_its_packages_the_example_of_boosting_says_what_to_install():
    # Stands in the way of whatever is installed.
    code = (
        "import runpy, sys\n"
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name: None if name in ('xgboost', 'lightgbm') else find(name)\n"
        "sys.argv = ['08_boosting.py']\n"
        f"runpy.run_path({str(EXAMPLES / '08_boosting.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "Nothing done: install xgboost or lightgbm first.\n"
