"""What ls, show, trials, best, errors and report say about experiments."""

from __future__ import annotations

import base64
import csv
import json
import pickle
import re
from statistics import fmean

import pytest
from cli_fixtures import SPEC
from projection_kit import about, action, started

from dasktune.cli.experiment_overview import read_experiment
from dasktune.config import RunConfig, TuneConfig
from dasktune.config.found_past import FoundPast
from dasktune.schedulers import ASHAScheduler, HyperBandForBOHB
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.tuner.saved_setup import setup_of


def suggested(trial_id, **config):
    about = {"event": "Suggested", "trial_id": trial_id, "config": config, "status": "PENDING"}
    return {**about, "time": 100.0, "finished": False, "actions": [action("StartTrial", trial_id)]}


def reported(trial_id, iteration, time=101.0, **metrics):
    metrics["training_iteration"] = iteration
    about = {"event": "ResultReported", "trial_id": trial_id, "incarnation": 1, "status": "RUNNING"}
    return {**about, "time": time, "metrics": metrics, "awaits": False}


def ended(trial_id):
    about = {"trial_id": trial_id, "incarnation": 1, "status": "TERMINATED"}
    return {"event": "TrialEnded", "time": 102.0, **about}


def test_ls_lists_all_experiments_below(path, tmp_path, written, dasktune):
    written(tmp_path / "deep" / "other", suggested("t1", x=1), total_trials=2)
    written(tmp_path / "too" / "deep" / "third")
    code, out, err = dasktune("ls", str(tmp_path))
    head, *rows = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["name", "state", "trials", "best", "started", "duration"]
    assert [row.split()[:2] for row in rows] == [["deep/other", "interrupted"], ["exp", "finished"]]
    assert "TERMINATED" in rows[1]
    assert "ERROR" in rows[1]
    assert "third" in dasktune("ls", str(tmp_path), "--depth", "3")[1]


def test_what_ls_lists_by_default_can_be_named_so(written, tmp_path, monkeypatch, dasktune):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    place = written(tmp_path / "dasktune_results" / "mine")
    assert place in dasktune("show", "mine")[1]
    # What lies here comes first.
    here = written(tmp_path / "mine")
    assert f" {here}\n" in dasktune("show", "mine")[1]
    code, _, err = dasktune("show", "other")
    assert (code, f"no experiment is stored at {tmp_path}/other" in err) == (2, True)


def test_an_unknown_name_is_answered_with_the_nearest_ones(written, tmp_path, monkeypatch, dasktune):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "No experiment is there: give the directory" in dasktune("show", "digits")[2]
    written(tmp_path / "dasktune_results" / "digits_asha")
    written(tmp_path / "dasktune_results" / "team" / "Digits-2")
    written(tmp_path / "dasktune_results" / "boosting")
    for command in ("show", "trials", "best", "errors", "report", "repair", "dashboard"):
        code, out, err = dasktune(command, "digits_ash")
        assert (code, out) == (2, "")
        assert "none in ~/dasktune_results is called 'digits_ash'. Did you mean 'digits_asha'" in err
    assert "'team/Digits-2'" in dasktune("show", "digits-2")[2]
    assert "Did you mean" not in dasktune("show", "xyz")[2]
    assert "`dasktune ls` lists those" in dasktune("show", "xyz")[2]


def test_the_address_of_a_dashboard_is_no_experiment(dasktune):
    code, out, err = dasktune("show", "http://127.0.0.1:9/dasktune#c3330a06ea1974ca")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "If it is the address of a dashboard, give the directory that its pages show" in err
    code, out, err = dasktune("ls", "--address", "http://127.0.0.1:8787/status")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "That is the address of a page, such as Dask's dashboard" in err


def test_ls_of_an_experiment_is_that_experiment_alone(path, results, dasktune):
    code, out, _ = dasktune("ls", path, "--format", "json")
    [facts] = json.loads(out)
    best = results.get_best_result(scope="all")
    assert code == 0
    assert (facts["name"], facts["state"], facts["trials"]) == ("exp", "finished", 12)
    assert facts["ERROR"] == results.num_errors > 0
    assert facts["best"] == min(row["loss"] for row in best.history)
    assert facts["best_trial_id"] == best.trial_id


def test_ls_lists_what_is_damaged_and_all_else(path, tmp_path, dasktune):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "experiment.json").write_text("no json \x1b[31m")
    code, out, err = dasktune("ls", str(tmp_path))
    assert code == 1
    assert "exp " in out
    assert err.count("\n") == 1
    assert "experiment.json" in err
    assert "\x1b" not in err


def test_ls_of_nothing_says_so(tmp_path, dasktune):
    assert dasktune("ls", str(tmp_path / "no")) == (0, f"no experiments in {tmp_path}/no\n", "")


def test_urls_are_read_as_directories_are(written, dasktune):
    written("memory://cli-test/exp", suggested("t1", x=1), reported("t1", 1, loss=0.5), ended("t1"))
    code, out, _ = dasktune("ls", "memory://cli-test")
    assert code == 0
    assert out.splitlines()[1].startswith("exp   interrupted  1 TERMINATED  loss 0.5")
    assert "t1" in dasktune("trials", "memory://cli-test/exp")[1]


def test_a_driver_that_runs_makes_an_experiment_live_and_a_dead_one_does_not(path, dasktune):
    with LeaderLock(Storage(path)) as lock:
        code, out, _ = dasktune("show", path)
        assert code == 0
        assert "live (pid " in out
        assert "The experiment is running." in out
        lease = Storage(path).read_bytes("driver/000001.json")
    assert lock.epoch == 1
    assert read_experiment(Storage(path)).state == "finished"
    # It died without a word: its lease says that it leads, and its lock is free.
    Storage(path).write_bytes("driver/000001.json", lease)
    assert read_experiment(Storage(path)).state == "finished"


@pytest.mark.parametrize(("expires", "state"), [("2999", "live"), ("2001", "finished")])
def test_of_a_driver_on_another_machine_its_lease_tells(path, expires, state):
    with LeaderLock(Storage(path)):
        lease = json.loads(Storage(path).read_bytes("driver/000001.json"))
    lease.update(released=False, machine="another", expires=f"{expires}-01-01T00:00:00+00:00")
    Storage(path).write_bytes("driver/000001.json", json.dumps(lease).encode())
    assert read_experiment(Storage(path)).state == state


def test_an_experiment_is_finished_when_nothing_is_left_to_do(tmp_path, written):
    def state(name, *records, **spec):
        return read_experiment(Storage(written(tmp_path / name, *records, **spec))).state

    one = [suggested("a", x=1), ended("a")]
    dry = {"event": "Suggested", "trial_id": "b", "config": None, "finished": True, "time": 103.0}
    stop = {"event": "StopRequested", "reason": "enough", "time": 103.0}
    assert state("all", *one, total_trials=1) == "finished"
    assert state("some", *one, total_trials=2) == "interrupted"
    assert state("dry", *one, dry, total_trials=2) == "finished"
    assert state("stopped", *one, stop, total_trials=None) == "finished"
    assert state("endless", *one, total_trials=None) == "interrupted"
    assert state("waiting", suggested("a", x=1), total_trials=1) == "interrupted"


def test_show_has_settings_the_best_trial_failures_and_how_to_resume(path, results, dasktune):
    code, out, err = dasktune("show", path)
    best = results.get_best_result(scope="all")
    assert (code, err) == (0, "")
    assert "loss (min)" in out
    assert "state          finished" in out
    assert f"trial       {best.trial_id}" in out
    assert "ValueError: lr" in out
    # Nothing says where its trainable is.
    assert f"Resume  dasktune.Tuner.restore({path!r}, train, restart_errored=True).fit()\n" in out


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "/my code/train.py:run",
            ["Resume  dasktune resume {path} '/my code/train.py:run'\n", "{call} in /my code/train.py\n"],
        ),
        (
            "lab.models:Net.train",
            [
                "Resume  dasktune resume {path} lab.models:Net.train\n",
                "in lab.models\n        (on a cluster: --address ADDRESS, or client=ADDRESS)\n",
            ],
        ),
        (None, ["Resume  {call}\n", "in the program or notebook that defines run\n"]),
        (7, ["Resume  {call}\n"]),
    ],
)
def test_show_prints_a_call_that_resumes_the_experiment(tmp_path, written, dasktune, code, words):
    path = written(tmp_path / "exp", suggested("a", x=1), trainable="run", code=code)
    out = dasktune("show", path)[1]
    call = f"dasktune.Tuner.restore({path!r}, run).fit()"
    for one in words:
        assert one.format(path=path, call=call) in out
    assert "SCRIPT" not in out


def test_show_names_no_variable_for_a_lambda(tmp_path, written, dasktune):
    path = written(tmp_path / "exp", suggested("a", x=1), trainable="lambda", code=None)
    assert f"Tuner.restore({path!r}, trainable).fit()" in dasktune("show", path)[1]


def test_show_has_the_commands_of_users_with_who_issued_them(tmp_path, dasktune):
    storage = Storage(tmp_path / "commanded")
    store = ExperimentStore(storage)
    store.create({**SPEC, "name": "commanded"})
    store.begin()
    store.append({"event": "TrialPauseRequested", "trial_id": "a", "reason": "", "time": 1.0})
    store.append({"event": "TrialStopRequested", "trial_id": "b", "time": 2.0, "by": "ann@node7 (HTTP)\x1b"})
    store.append({"event": "ShareRequested", "weight": 2.0, "priority": None, "time": "x", "by": "bob"})
    for _ in range(18):
        store.append({"event": "HoldRequested", "time": 3.0, "by": "carl"})
    # Any program may have written the journal.
    store.append({"event": "ShareRequested", "weight": 10**400, "time": 10**400, "by": "eve"})
    store.append({"event": "InterruptRequested", "time": 4.0, "by": "dan@node7 (SIGINT)"})
    store.close()
    code, out, err = dasktune("show", str(storage))
    assert (code, err) == (0, "")
    assert "Commands, the last 20 of 22" in out
    assert "end the run" in out
    rows = json.loads(dasktune("show", str(storage), "--format", "json")[1])["commands"]
    assert len(rows) == 20
    assert [row["by"] for row in rows] == ["carl"] * 18 + ["eve", "dan@node7 (SIGINT)"]
    assert rows[-2] == {"time": "", "command": "set share weight inf", "by": "eve"}
    assert rows[-1]["command"] == "end the run"


@pytest.mark.parametrize(
    ("scheduler", "shown"),
    [
        (None, "FIFOScheduler, the default"),
        ("asha", "asha"),
        (ASHAScheduler(max_t=9, grace_period=3), "ASHAScheduler(max_t=9, grace_period=3)"),
        (
            HyperBandForBOHB(max_t=27, reduction_factor=3),
            "HyperBandForBOHB(max_t=27, reduction_factor=3)",
        ),
    ],
)
def test_show_names_the_scheduler_with_its_arguments(path, scheduler, shown, dasktune):
    setup_of(TuneConfig(scheduler=scheduler), RunConfig(), {}).write(Storage(path))
    assert re.search(rf"^  scheduler +{re.escape(shown)}$", dasktune("show", path)[1], re.MULTILINE)
    settings = json.loads(dasktune("show", path, "--format", "json")[1])["settings"]
    assert settings.get("scheduler") == (None if scheduler is None else shown)


def test_show_says_what_the_searcher_learns_from(path, dasktune):
    found = FoundPast(("a",), "learns from 1 experiment with 30 trials: first (30)")
    setup_of(TuneConfig(mode="min", learn_from=found), RunConfig(), {}).write(Storage(path))
    assert f"  learn_from   {found.text}\n" in dasktune("show", path)[1]
    settings = json.loads(dasktune("show", path, "--format", "json")[1])["settings"]
    assert settings["learn_from"] == found.text


def test_show_as_json_has_the_same(path, results, dasktune):
    facts = json.loads(dasktune("show", path, "--format", "json")[1])
    assert facts["counts"]["ERROR"] == len(facts["errors"]) == results.num_errors
    assert facts["best"]["config"].keys() == {"lr", "opt"}
    assert facts["settings"] == {"num_samples": 12}


def test_trials_can_be_filtered_sorted_and_cut_to_columns(path, results, dasktune):
    wanted = "loss < 0.05 and lr > 1e-4"
    columns = ["--columns", "trial_id,loss,lr", "--format", "json"]
    code, out, _ = dasktune("trials", path, "--filter", wanted, "--sort", "loss", *columns)
    rows = json.loads(out)
    expected = [
        (one.trial_id, one.metrics["loss"], one.config["lr"])
        for one in results
        if one.metrics.get("loss", 1) < 0.05 and one.config["lr"] > 1e-4
    ]
    assert code == 0
    assert 0 < len(rows) < 12
    assert [tuple(row.values()) for row in rows] == sorted(expected, key=lambda row: row[1])
    assert list(rows[0]) == ["trial_id", "loss", "config/lr"]


def test_trials_without_a_value_come_last_in_both_directions(path, dasktune):
    for flags in ([], ["--desc"]):
        out = dasktune("trials", path, "--sort", "loss", *flags, "--format", "json")[1]
        missing = [row["loss"] is None for row in json.loads(out)]
        assert any(missing)
        assert missing == sorted(missing)


def test_a_table_of_trials_says_how_many_there_are_besides(path, dasktune):
    out = dasktune("trials", path, "--filter", "status == 'TERMINATED'", "--limit", "2")[1]
    assert out.splitlines()[0].split()[:3] == ["trial_id", "status", "iteration"]
    assert len(out.splitlines()) == 4
    assert out.splitlines()[-1].startswith("2 shown; ")
    assert out.splitlines()[-1].endswith(" of 12 trials")


def test_trials_as_csv_have_all_columns(path, dasktune):
    rows = list(csv.DictReader(dasktune("trials", path, "--format", "csv")[1].splitlines()))
    assert len(rows) == 12
    assert {"trial_id", "loss", "nested/step", "config/lr", "config/opt", "error"} <= set(rows[0])
    assert {row["config/opt"] for row in rows} == {"sgd", "adam"}


def test_an_unknown_column_is_answered_with_those_that_there_are(path, dasktune):
    for flags in (["--filter", "los < 1"], ["--sort", "los"], ["--columns", "los"]):
        code, out, err = dasktune("trials", path, *flags)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert ("Columns: trial_id" if "--filter" in flags else "one of trial_id, status") in err
        assert "config/lr" in err
        assert re.search("Did you mean ['\"]loss['\"]", err)


@pytest.mark.parametrize("scope", ["last", "all", "avg", "last-5-avg", "last-10-avg"])
def test_the_best_trial_is_that_of_the_results_by_every_scope(path, results, scope, dasktune):
    code, out, _ = dasktune("best", path, "--scope", scope, "--format", "json")
    best, told = results.get_best_result(scope=scope), json.loads(out)
    assert code == 0
    assert (told["trial_id"], told["config"]) == (best.trial_id, best.config)
    losses = [row["loss"] for row in best.history]
    values = {
        "last": losses[-1],
        "all": min(losses),
        "avg": fmean(losses),
        "last-5-avg": fmean(losses[-5:]),
        "last-10-avg": fmean(losses[-10:]),
    }
    assert told["value"] == pytest.approx(values[scope])


def test_the_best_trial_can_be_that_of_another_metric(path, results, dasktune):
    flags = ["--metric", "nested/step", "--mode", "max"]
    told = json.loads(dasktune("best", path, *flags, "--format", "json")[1])
    assert told["trial_id"] == results.get_best_result("nested/step", "max").trial_id
    assert dasktune("best", path, *flags)[1].startswith(f"trial_id            {told['trial_id']}")


def test_nan_and_what_was_taken_back_is_never_best(tmp_path, written, dasktune):
    reopened = {"do": "ReopenTrial", "trial_id": "c", "incarnation": 1, "fresh": True}
    where = written(
        tmp_path / "exp",
        *[suggested(name, x={"deep": name}) for name in "abcd"],
        *[reported("a", 1, loss=0.1), reported("a", 2, loss=float("nan"))],
        *[reported("b", 1, loss=0.5), reported("b", 2, other=1)],
        reported("c", 1, loss=0.01),
        {
            "event": "TrialReopenRequested",
            "trial_id": "c",
            "time": 103.0,
            "fresh": True,
            "actions": [reopened],
        },
        {"event": "nonsense"},
    )
    told = json.loads(dasktune("best", where, "--format", "json")[1])
    assert (told["trial_id"], told["value"], told["config"]) == ("b", 0.5, {"x": {"deep": "b"}})


def test_best_says_what_is_missing(tmp_path, path, written, dasktune):
    code, _, err = dasktune("best", path, "--metric", "los")
    assert code == 2
    assert "no trial" in err
    assert "reported: " in err
    goalless = written(tmp_path / "goalless", metric=None, mode=None)
    assert "--metric must be given" in dasktune("best", goalless)[2]
    several = written(tmp_path / "several", metric=["a", "b"], mode=["min", "max"])
    assert "--metric must be one of the objectives ['a', 'b']" in dasktune("best", several)[2]


def test_errors_shows_tracebacks_of_all_or_all_of_one(path, results, dasktune):
    failed = [one.trial_id for one in results if one.error is not None]
    code, out, _ = dasktune("errors", path)
    assert code == 0
    assert [f"{name} (ERROR): ValueError: lr" in out for name in failed] == [True] * len(failed)
    assert "Traceback (most recent call last)" in out
    # The file has all failures of a trial, the journal the last one.
    Storage(path).write_bytes(f"trials/{failed[0]}/error.txt", b"Failure # 1 \x1b[31m\nof two\n")
    assert dasktune("errors", path, failed[0])[1] == "Failure # 1 ?[31m\nof two\n"
    fine = next(one.trial_id for one in results if one.error is None)
    assert dasktune("errors", path, fine)[1] == f"trial {fine} has not failed\n"
    code, _, err = dasktune("errors", path, "absent")
    assert (code, "TRIAL must be one of" in err) == (2, True)


def test_errors_names_failures_before_a_restore_apart(written, tmp_path, dasktune):
    error = {"message": "ValueError: no", "traceback": "Traceback\nValueError: no"}
    records = []
    for name in ("a", "b"):
        records += [
            suggested(name),
            started(name, 0.0),
            about("TrialFailed", name, 1.0, status="ERROR", error=error),
        ]
    again = [action("ReopenTrial", "a", fresh=True), action("StartTrial", "a")]
    more = [
        about("TrialReopenRequested", "a", 2.0, status="PENDING", fresh=True, actions=again),
        started("a", 3.0),
        about("TrialEnded", "a", 4.0, status="TERMINATED"),
    ]
    place = written(tmp_path / "once", *records, *more)
    hint = "1 trial failed before a restore: `dasktune errors EXPERIMENT a` shows why\n"
    told = dasktune("errors", place)[1]
    assert told.startswith("b (ERROR): ValueError: no\n")
    assert told.endswith(f"\n\n{hint}")
    place = written(tmp_path / "mended", *records[:3], *more)
    assert dasktune("errors", place)[1] == f"no trial failed\n\n{hint}"


def test_a_dashboard_is_served_for_a_name_of_the_results_directory(written, tmp_path, monkeypatch, dasktune):
    from dasktune.dashboard.server import serve as module

    served = []

    def serve(path, **more):
        served.append(str(path))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "serve", serve)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "dasktune_results" / "digits")
    dasktune("dashboard", "digits")
    dasktune("dashboard", "dasktune_results")
    dasktune("dashboard", "~/dasktune_results/digits")
    assert served == [
        str(tmp_path / "dasktune_results" / "digits"),
        "dasktune_results",
        "~/dasktune_results/digits",
    ]


def test_a_dashboard_of_nothing_is_refused(tmp_path, dasktune):
    code, _, err = dasktune("dashboard", str(tmp_path))
    assert (code, "no experiment is stored at" in err) == (2, True)


class Bomb:
    def __reduce__(self):
        return (exit, ("unpickled",))


def test_hostile_names_do_nothing_and_nothing_is_unpickled(tmp_path, written, dasktune):
    evil = "x\x1b]0;owned\x07\u202e\x9b2J"
    failed = {"event": "TrialFailed", "trial_id": "t", "status": "ERROR", "time": 102.0}
    where = written(
        tmp_path / "exp",
        suggested("t", **{evil: evil}),
        reported("t", 1, **{"loss": 1.0, evil: 2.0}),
        {**failed, "error": {"message": evil, "traceback": f"trace\n{evil}"}},
        trainable=evil,
        metric="loss",
        dasktune=evil,
    )
    bomb = base64.b64encode(pickle.dumps(Bomb())).decode()
    entries = {"tune_config.scheduler": {"type": evil, "pickle": bomb}, evil: {"value": evil}}
    setup = json.dumps({"format": 1, "entries": entries})
    (tmp_path / "exp" / "tuner.json").write_text(setup)
    for command in (
        ["ls"],
        ["show"],
        ["trials"],
        ["trials", "--columns", "all"],
        ["best"],
        ["errors"],
    ):
        code, out, err = dasktune(command[0], where, *command[1:])
        assert (code, err) == (0, "")
        assert all(char.isprintable() or char in "\n\t" for char in out)
    code, _, err = dasktune("trials", where, "--sort", "nothing")
    assert code == 2
    assert all(char.isprintable() or char == "\n" for char in err)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["bogus"],
        ["ls", "--depth", "-1"],
        ["ls", "--depth", "x"],
        ["show"],
        ["show", "/nowhere/at/all"],
        ["show", "nonsense://x"],
        ["trials", "/nowhere/at/all", "--desc"],
        ["ls", ".", "--storage-option", "nonsense"],
        ["stop", "exp"],
        ["doctor", "--address", "nonsense"],
        ["doctor", "--timeout", "0"],
    ],
)
def test_a_users_mistake_costs_one_line_and_exit_code_2(argv, dasktune):
    code, out, err = dasktune(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("dasktune: ")
    assert err.count("\n") == 1


def test_a_table_of_hundreds_of_trials_is_right(tmp_path, written, dasktune):
    trials = [f"t{number:05d}" for number in range(500)]
    records = (
        record
        for number, name in enumerate(trials)
        for record in (
            suggested(name, lr=number / 500, layers=number % 7),
            *(reported(name, step, loss=number / step) for step in range(1, 6)),
            ended(name),
        )
    )
    where = written(tmp_path / "exp", *records, total_trials=500)
    flags = ["--filter", "loss < 50 and lr > 1e-4", "--sort", "loss", "--desc", "--format", "csv"]
    code, out, _ = dasktune("trials", where, *flags)
    assert code == 0
    names = [line.partition(",")[0] for line in out.splitlines()]
    assert names == ["trial_id", *reversed(trials[1:250])]
