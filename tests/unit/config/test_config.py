from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import SeedSequence

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.config.found_past import FoundPast, notes_of
from dasktune.errors import ConfigError
from dasktune.trial.retention import Retention


class Policy:
    pass


def test_all_configs_stand_without_arguments():
    assert TuneConfig().num_samples == 1
    assert RunConfig().checkpoint_config == CheckpointConfig()
    assert RunConfig().failure_config == FailureConfig()


@pytest.mark.parametrize("config", [TuneConfig(), RunConfig(), CheckpointConfig(), FailureConfig()])
def test_a_config_is_a_value(config):
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(FrozenInstanceError):
        setattr(config, fields(config)[0].name, None)


def test_a_mode_alone_optimises_the_bare_number():
    assert TuneConfig(mode="min").metric == "_metric"


def test_a_metric_alone_leaves_open_which_way():
    with pytest.raises(ConfigError, match=r"mode must be .*got None\. Say whether lower"):
        TuneConfig(metric="loss")


def test_several_goals_are_no_single_one():
    several = TuneConfig(metric=["loss", "size"], mode=["min", "max"])
    assert several.single_goal == (None, None)
    assert TuneConfig(metric="loss", mode="min").single_goal == ("loss", "min")


@pytest.mark.parametrize(
    "wrong",
    [
        {"metric": 3, "mode": "min"},
        {"metric": "", "mode": "min"},
        {"metric": "loss", "mode": "low"},
        {"metric": "loss", "mode": ["min"]},
        {"metric": ["loss", "size"], "mode": "min"},
        {"metric": ["loss", "size"], "mode": ["min"]},
        {"metric": ["loss", "loss"], "mode": ["min", "max"]},
        {"metric": ["loss", 3], "mode": ["min", "max"]},
        {"metric": ["loss", "size"], "mode": None},
        {"metric": [], "mode": []},
        {"mode": ["min"]},
        {"num_samples": 0},
        {"num_samples": -2},
        {"num_samples": 1.5},
        {"num_samples": True},
        {"search_alg": Policy},
        {"search_alg": ""},
        {"learn_from": "", "metric": "loss", "mode": "min"},
        {"learn_from": [], "metric": "loss", "mode": "min"},
        {"learn_from": ["a", 3], "metric": "loss", "mode": "min"},
        {"learn_from": "a", "search_alg": "random", "metric": "loss", "mode": "min"},
        {"learn_from": "a"},
        {"learn_from": "a", "metric": ["loss", "size"], "mode": ["min", "max"]},
        {"scheduler": Policy},
        {"max_concurrent_trials": 0},
        {"max_concurrent_trials": "4"},
        {"time_budget_s": 0},
        {"time_budget_s": True},
        {"time_budget_s": float("nan")},
        {"time_budget_s": "1h"},
        {"time_budget_s": timedelta(seconds=-1)},
        {"reuse_actors": 1},
        {"seed": -1},
        {"seed": 1.0},
    ],
)
def test_a_wrong_tune_config_names_argument_rule_and_value(wrong):
    with pytest.raises(ConfigError, match=f"^({'|'.join(wrong)}) must be .*, got "):
        TuneConfig(**wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"num_samples": -1},
        {"num_samples": np.int64(3)},
        {"search_alg": "random", "scheduler": "asha"},
        {"learn_from": "s3://bucket/a", "mode": "min"},
        {"learn_from": [PurePosixPath("a"), "b"], "mode": "min", "scheduler": "asha"},
        {"learn_from": FoundPast(("a",), "learns"), "mode": "min", "search_alg": Policy()},
        {"search_alg": Policy(), "scheduler": Policy()},
        {"max_concurrent_trials": 1},
        {"seed": 0},
        {"seed": SeedSequence(3)},
    ],
)
def test_a_right_tune_config_is_taken(right):
    config = TuneConfig(**right)
    assert all(getattr(config, name) is value for name, value in right.items())


def test_a_time_budget_comes_out_in_seconds():
    assert TuneConfig().time_budget is None
    assert TuneConfig(time_budget_s=1.5).time_budget == 1.5
    assert TuneConfig(time_budget_s=timedelta(minutes=2)).time_budget == 120.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_to_keep": 0},
        {"num_to_keep": 1.0},
        {"checkpoint_score_attribute": ""},
        {"checkpoint_score_order": "best"},
        {"checkpoint_frequency": -1},
        {"checkpoint_at_end": "yes"},
    ],
)
def test_a_wrong_checkpoint_config_names_argument_rule_and_value(wrong):
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} must be .*, got "):
        CheckpointConfig(**wrong)


def test_a_checkpoint_config_says_what_is_kept():
    config = CheckpointConfig(
        num_to_keep=2,
        checkpoint_score_attribute="loss",
        checkpoint_score_order="min",
        checkpoint_at_end=True,
    )
    assert config.retention == Retention(num_to_keep=2, score_attribute="loss", score_order="min")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_failures": -2},
        {"max_failures": 0.5},
        {"fail_fast": "yes"},
        {"fail_fast": 1},
        {"max_worker_losses": -1},
    ],
)
def test_a_wrong_failure_config_names_argument_rule_and_value(wrong):
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} must be .*, got "):
        FailureConfig(**wrong)


@pytest.mark.parametrize("fail_fast", [True, "raise"])
def test_failing_fast_leaves_no_room_for_retries(fail_fast):
    assert FailureConfig(fail_fast=fail_fast).max_failures == 0
    with pytest.raises(ConfigError, match="max_failures must be 0 with fail_fast"):
        FailureConfig(fail_fast=fail_fast, max_failures=-1)


@pytest.mark.parametrize(
    "name",
    [
        "mnist",
        "train_2024-01-02_03-04-05",
        "a b",
        "v1.2",
        "größe",
        "_",
        "学習",
        "हिन्दी",
        "עִבְרִית",
        "β→δ ½",
        "🚀 run",
        "…",
        "é" * 100,
    ],
)
def test_an_experiment_may_be_called(name):
    assert RunConfig(name=name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a..b",
        "/abs",
        "~",
        "a*",
        "s3:x",
        "a\n",
        "a ",
        ".a",
        "x" * 201,
        "é" * 101,
        3,
        "a\u0000b",
        "a\u0085b",
        "a\u200bb",
        "a\u202eb",
        "a\u2028b",
        "a\u3000b",
        "\ufeffa",
        "\ud800",
        "\ue000",
        "\u0301a",
        "a\u037eb",
    ],
)
def test_an_experiment_may_not_be_called(name):
    with pytest.raises(ConfigError, match="name must be a safe file name"):
        RunConfig(name=name)


def test_the_forms_of_a_name_are_one_name():
    assert RunConfig(name="gro\u0308ße").name == RunConfig(name="größe").name == "größe"


@given(st.text())
def test_an_accepted_name_is_one_component_of_a_path(name):
    try:
        RunConfig(name=name)
    except ConfigError:
        return
    assert PurePosixPath("root", name).parts == ("root", name)
    assert PureWindowsPath("root", name).parts == ("root", name)


def test_the_storage_path_may_be_given_in_any_way(tmp_path):
    assert RunConfig().storage_url == "~/dasktune_results"
    assert RunConfig(storage_path="s3://bucket/x").storage_url == "s3://bucket/x"
    assert RunConfig(storage_path=tmp_path).storage_url == str(tmp_path)


def test_credentials_are_never_shown():
    assert "hunter2" not in repr(RunConfig(storage_options={"secret": "hunter2"}))
    with pytest.raises(ConfigError, match="storage_options must be a mapping") as raised:
        RunConfig(storage_options=[("secret", "hunter2")])
    assert "hunter2" not in str(raised.value)


def test_none_is_the_default_of_each_part():
    config = RunConfig(checkpoint_config=None, failure_config=None)
    assert config == RunConfig()


@pytest.mark.parametrize(
    "wrong",
    [
        {"storage_path": ""},
        {"storage_path": 3},
        {"checkpoint_config": {"num_to_keep": 1}},
        {"failure_config": CheckpointConfig()},
        {"verbose": -1},
        {"verbose": "1"},
        {"dashboard": 70_000},
        {"dashboard": 0},
        {"dashboard": "yes"},
        {"dashboard_controls": True},
        {"dashboard_controls": 1, "dashboard": True},
        {"server_port": -1},
        {"server_port": 70_000},
        {"server_port": "4321"},
        {"public_metrics": True},
        {"public_metrics": True, "server_port": False},
        {"public_metrics": 1, "server_port": True},
        {"heartbeat_timeout": 0},
        {"driver_ttl": -1.0},
        {"driver_ttl": float("inf")},
        {"stop_grace": -1},
        {"stop_grace": "10"},
        {"scheduler_wait": None},
        {"code": "value"},
        {"isolation": "container"},
        {"isolation": None},
        {"queue_trials": "yes"},
        {"stop": 10},
    ],
)
def test_a_wrong_run_config_names_argument_rule_and_value(wrong):
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} must be .*, got "):
        RunConfig(**wrong)


def test_a_ray_users_run_config_is_taken():
    config = RunConfig(
        name="first",
        stop={"training_iteration": 10},
        checkpoint_config=CheckpointConfig(num_to_keep=1),
        failure_config=FailureConfig(max_failures=-1),
        verbose=2,
        queue_trials=True,
        stop_grace=0,
    )
    assert config.stop == {"training_iteration": 10}


class TestLogToFile:
    @pytest.mark.parametrize(
        ("given", "files"),
        [
            (False, None),
            (True, ("stdout", "stderr")),
            ("words.txt", ("words.txt", "words.txt")),
            (("out", "err"), ("out", "err")),
            (["out", "err"], ("out", "err")),
        ],
    )
    def test_it_names_the_files_of_both_streams(self, given, files):
        assert RunConfig(log_to_file=given).log_files == files

    @pytest.mark.parametrize(
        "given",
        [
            None,
            1,
            "",
            "a/b",
            "..",
            ("out",),
            ("a", "b", "c"),
            ("out", 1),
            "error.txt",
            "result.json",
        ],
    )
    def test_what_is_no_name_or_has_another_use_is_refused(self, given):
        with pytest.raises(ConfigError, match="log_to_file must be True, False, the name of a file"):
            RunConfig(log_to_file=given)


class TestDirectoryOfATrial:
    def test_it_needs_a_process_for_each_trial(self):
        assert RunConfig(chdir_to_trial_dir=True, isolation="process").chdir_to_trial_dir
        with pytest.raises(ConfigError, match="isolation must be 'process' with chdir_to_trial_dir"):
            RunConfig(chdir_to_trial_dir=True)

    def test_it_must_be_on_a_disk(self):
        with pytest.raises(ConfigError, match="storage_path must be on a disk"):
            RunConfig(chdir_to_trial_dir=True, isolation="process", storage_path="s3://bucket/results")


@pytest.mark.parametrize("given", [5, "", ["a"], b"a"])
def test_what_trials_begin_from_is_a_checkpoint_or_its_place(given):
    with pytest.raises(ConfigError, match="restore must be a Checkpoint, or the path or URL"):
        RunConfig(restore=given)


def test_formats_are_lowered_and_may_be_the_users_own():
    assert RunConfig(export_formats=["ONNX", "our-own"]).export_formats == ("onnx", "our-own")
    assert RunConfig(export_formats=[" H5 ", "own"]).export_formats == ("h5", "own")
    assert RunConfig(export_formats=[]).export_formats == ()


@pytest.mark.parametrize("given", ["model", ["a/b"], [""], [1], {"model": 1}])
def test_formats_are_a_list_of_names(given):
    with pytest.raises(ConfigError, match="export_formats must be a list of names"):
        RunConfig(export_formats=given)


def test_the_first_argument_needs_no_name():
    assert FailureConfig(2) == FailureConfig(max_failures=2)
    assert CheckpointConfig(1) == CheckpointConfig(num_to_keep=1)
    assert RunConfig("first").name == "first"
    with pytest.raises(TypeError):
        FailureConfig(0, True)  # type: ignore[misc]


def test_a_searcher_beside_a_past_is_refused_with_a_remedy():
    with pytest.raises(ConfigError, match=r"search_alg must be None with learn_from.*WarmStart\(past=\["):
        TuneConfig(learn_from="a", search_alg="optuna", mode="min")


def test_only_a_past_that_was_read_has_a_note():
    assert notes_of(FoundPast(("a",), "learns from it")) == ["learns from it"]
    assert notes_of("a") == notes_of(None) == []
