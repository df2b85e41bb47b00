"""What a Tuner refuses before it touches a cluster."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dasktune as tune
from dasktune.errors import ConfigError, PreflightError, StorageError, TrialError
from dasktune.runner.build import build_experiment, first_resources
from dasktune.search import Searcher
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo
from dasktune.tuner.raise_trial_error import reraise_trial_error

LOCK = threading.Lock()


def train(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": config["x"]}


def uses_a_lock(config: dict[str, Any]) -> dict[str, Any]:
    with LOCK:
        return {"loss": 0.0}


# Only what stands in a script must travel at any price; a module may be there on the workers.
uses_a_lock.__module__ = "__main__"


def holds_a_variable() -> Callable[[dict[str, Any]], None]:
    connection = threading.Lock()

    def inner(config: dict[str, Any]) -> None:
        connection.acquire()

    return inner


async def coroutine(config: dict[str, Any]) -> None: ...


def two_arguments(config: dict[str, Any], data: list[int]) -> None: ...


class NoTrainable: ...


class NoStep(tune.Trainable): ...


class OneStep(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"loss": 1.0, "done": True}


class Unasked(Searcher):
    def suggest(self, trial_id: str) -> dict[str, Any]:
        raise AssertionError("asked before its time")


def tuner(
    tmp_path: Path, trainable: Any = train, space: Any = None, run: Any = None, **options: Any
) -> tune.Tuner:
    """Make a tuner that would fail if it ever reached its cluster."""
    return tune.Tuner(
        trainable,
        param_space={"x": tune.uniform(0, 1)} if space is None else space,
        tune_config=tune.TuneConfig(**{"metric": "loss", "mode": "min", **options}),
        run_config=tune.RunConfig(**{"storage_path": tmp_path, "name": "e", **(run or {})}),
        client=3.14,
    )


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        (42, "trainable must be a function or a subclass of Trainable, got 42"),
        (None, "trainable must be a function or a subclass of Trainable, got None"),
        (coroutine, "trainable must be a plain function, not a coroutine, got <function"),
        (two_arguments, r"exactly one positional argument, .* got two_arguments\(config: .*, data"),
        (lambda: 1, r"exactly one positional argument, the configuration, got <lambda>\(\)"),
        (NoTrainable, "trainable must be a subclass of Trainable, got <class"),
        (NoStep, r"a subclass of Trainable that defines step\(\), got <class"),
        (OneStep({}), "got <.*OneStep.*Pass the class and not an object"),
        ("never_registered", "trainable must be a registered name .*got 'never_registered'"),
    ],
)
def test_what_cannot_be_tuned_is_refused_at_once(trainable: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        tune.Tuner(trainable)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"param_space": [1]}, r"param_space must be a mapping .*, got \[1\]"),
        ({"tune_config": {"num_samples": 3}}, "tune_config must be a TuneConfig, got {'num_s"),
        ({"run_config": "name"}, "run_config must be a RunConfig, got 'name'"),
    ],
)
def test_arguments_of_another_kind_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        tune.Tuner(train, **arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples must be a positive int, or -1 for no end, got 0"),
        ({"mode": "maximum"}, "mode must be 'min' or 'max', got 'maximum'"),
        ({"mode": None}, "mode must be 'min' or 'max', got None. Say whether lower or"),
        ({"metric": None, "mode": None, "scheduler": "asha"}, "metric and mode must be set, got"),
        ({"scheduler": "ash"}, "must be .*got 'ash'"),
        ({"max_concurrent_trials": 0}, "max_concurrent_trials must be a positive int or None"),
    ],
)
def test_a_goal_or_a_search_that_makes_no_sense_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        tuner(tmp_path, **options)


@pytest.mark.parametrize("name", ["checkpoint_frequency", "checkpoint_at_end"])
def test_dasktune_saves_no_checkpoints_of_functions(name: str):
    config = tune.CheckpointConfig(**{name: True if name.endswith("end") else 1})
    with pytest.raises(ConfigError, match=f"{name} must be left out for a function"):
        tune.Tuner(train, run_config=tune.RunConfig(checkpoint_config=config))
    assert tune.Tuner(OneStep, run_config=tune.RunConfig(checkpoint_config=config))


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        (uses_a_lock, r"trainable must be picklable, got .*its global 'LOCK' \(a _thread.lock\)"),
        (holds_a_variable(), "its variable 'connection' of the enclosing function"),
    ],
)
def test_what_cannot_travel_in_a_trainable_is_named(tmp_path: Path, trainable: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        tuner(tmp_path, trainable).fit()


def test_what_cannot_travel_in_a_configuration_is_named_by_its_path(tmp_path: Path):
    space = {"a": {"b": threading.Lock()}}
    with pytest.raises(ConfigError, match=r"param_space\['a'\]\['b'\] must be picklable, got"):
        tuner(tmp_path, space=space).fit()
    assert list(tmp_path.rglob("*.json")) == []


def test_a_function_in_the_space_that_raises_is_found_before_there_is_a_cluster(tmp_path: Path):
    space = {"x": 1, "y": tune.sample_from(lambda config: config["no_such_name"])}
    with pytest.raises(ConfigError, match="no_such_name"):
        tuner(tmp_path, space=space).fit()


def test_a_request_that_raises_for_a_configuration_shows_it(tmp_path: Path):
    trainable = tune.with_resources(train, lambda config: {"cpu": config["cpus"]})
    with pytest.raises(ConfigError, match=r"resources must be .*KeyError\('cpus'\).*{'x': 4}"):
        tuner(tmp_path, trainable, space={"x": 4}).fit()


def test_a_request_that_is_none_is_refused(tmp_path: Path):
    trainable = tune.with_resources(train, lambda config: {"cpu": -1})
    with pytest.raises(ConfigError, match=r"must be .*got -1"):
        tuner(tmp_path, trainable).fit()


def test_a_request_is_left_open_if_only_a_searcher_knows_the_configuration(tmp_path: Path):
    by_config = tune.with_resources(train, lambda config: {"cpu": config["x"]})
    fixed = tune.with_resources(train, {"cpu": 2})
    for trainable, expected in ((by_config, None), (fixed, {"CPU": 2})):
        tuner(tmp_path, trainable, space={}, search_alg=Unasked())  # which refuses nothing
        experiment = build_experiment(tune.TuneConfig(search_alg=Unasked()), tune.RunConfig(), {})
        request = first_resources(trainable, experiment)
        assert (request and dict(request.required_resources)) == expected


@pytest.mark.parametrize("below", ["file/runs", "file"])
def test_a_storage_path_that_cannot_be_written_is_refused(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PreflightError, match=r"storage_path must be .*file.*, which failed with"):
        tuner(tmp_path, run={"storage_path": tmp_path / below}).fit()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_not_even_root_can_write_everywhere():
    with pytest.raises(PreflightError, match=r"storage_path must be .*, got '/proc/runs/e'"):
        tuner(Path("/proc/runs")).fit()


def test_a_protocol_that_is_unknown_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"storage_path must be .*nosuch://bucket"):
        tuner(tmp_path, run={"storage_path": "nosuch://bucket"}).fit()


def test_an_experiment_of_that_name_is_left_alone(tmp_path: Path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "experiment.json").write_text("{}")
    with pytest.raises(StorageError, match=r"name must be new to .*, got 'e'.*another"):
        tuner(tmp_path, run={"if_exists": "error"}).fit()
    assert [path.name for path in (tmp_path / "e").iterdir()] == ["experiment.json"]


def test_an_experiment_whose_driver_died_after_its_first_file_does_not_block_the_next_one(tmp_path: Path):
    storage = Storage(str(tmp_path / "e"))
    spec = {"dasktune": "0.3.0", "name": "e"}
    ExperimentStore(storage).create(spec)
    # It comes as far as a new experiment does.
    with pytest.raises(ConfigError, match=r"client must be a distributed.Client"):
        tuner(tmp_path).fit()
    with pytest.raises(StorageError, match="there is an experiment"):
        ExperimentStore(storage).create(spec)
    store = ExperimentStore(storage)
    store.remove_half_created()
    store.create(spec)


@pytest.mark.parametrize("name", ["tuner.json", "journal/000001-000000.jsonl"])
def test_an_experiment_that_has_begun_is_not_taken_for_a_half_created_one(tmp_path: Path, name: str):
    storage = Storage(str(tmp_path / "e"))
    ExperimentStore(storage).create({"dasktune": "0.3.0", "name": "e"})
    storage.write_bytes(name, b"")
    with pytest.raises(StorageError, match="name must be new"):
        tuner(tmp_path, run={"if_exists": "error"}).fit()
    ExperimentStore(storage).remove_half_created()
    assert storage.exists("experiment.json")


def test_a_client_that_names_no_cluster_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"client must be a distributed.Client, .*, got 3.14"):
        tuner(tmp_path).fit()


def test_a_tuner_is_used_once(tmp_path: Path):
    it = tuner(tmp_path)
    with pytest.raises(ConfigError, match="get_results"):
        it.get_results()
    with pytest.raises(ConfigError, match="client must be"):
        it.fit()
    with pytest.raises(ConfigError, match=r"fit\(\) must be called once for each Tuner"):
        it.fit()


def test_the_coroutine_raises_what_fit_raises(tmp_path: Path):
    with pytest.raises(ConfigError, match="client must be"):
        asyncio.run(tuner(tmp_path).fit_async())


class NotHere(Exception):
    """Like a class of a package that only the workers have."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("a_package_that_is_only_there",)


def test_an_exception_that_cannot_be_made_again_is_text():
    def raised(pickled: bytes) -> Exception:
        trial = Trial(trial_id="a", config={}, resources=PlacementGroupFactory([{"CPU": 1}]))
        trial.errors.append(ErrorInfo(message="KeyError: 'x'", traceback="the traceback", pickled=pickled))
        with pytest.raises((TrialError, KeyError)) as caught:
            reraise_trial_error(trial)
        return caught.value

    for blob in (pickle.dumps(NotHere()), pickle.dumps("no exception"), b""):
        assert isinstance(raised(blob), TrialError)
        assert "KeyError: 'x'" in str(raised(blob))
    assert isinstance(raised(pickle.dumps(KeyError("x"))), KeyError)


def test_a_space_that_contains_itself_is_refused_with_the_key(tmp_path):
    space = {"x": tune.uniform(0, 1), "model": {"layers": [1, 2]}}
    space["model"]["up"] = space
    with pytest.raises(ConfigError, match=r"param_space\['model'\]\['up'\] must .* got param_space,"):
        tune.Tuner(train, param_space=space)
    with pytest.raises(ConfigError, match=r"param_space\['model'\]\['up'\] must"):
        tune.Tuner.restore(tmp_path, train, param_space=space)
    with pytest.raises(ConfigError, match=r"categories\[0\]\['model'\]\['up'\] must"):
        tune.choice([space])


def test_a_ctrl_c_that_user_code_swallowed_is_not_lost(tmp_path, monkeypatch):
    @contextmanager
    def launched(*_):
        yield SimpleNamespace(close=lambda: None, wake=lambda: None, worker_resources=dict)

    def request(config):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return {"cpu": 1}

    monkeypatch.setattr("dasktune.cluster.driver.launch.launched", launched)
    before = signal.getsignal(signal.SIGINT)
    trainable = tune.with_resources(lambda config: 1, request)
    with pytest.raises(KeyboardInterrupt):
        tune.Tuner(trainable, run_config=tune.RunConfig(storage_path=tmp_path)).fit()
    assert signal.getsignal(signal.SIGINT) is before
