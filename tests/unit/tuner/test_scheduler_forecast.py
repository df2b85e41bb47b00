from __future__ import annotations

import io
from typing import Any

import pytest

import dasktune as tune
from dasktune.errors import ConfigError, StorageError
from dasktune.results.trial_forecast import stays_of
from dasktune.schedulers import ASHAScheduler, PromotingASHAScheduler
from dasktune.space import uniform
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.experiment.tuner_json import TunerFile, entries_of
from dasktune.storage.fs.storage import Storage
from dasktune.testing import simulate
from dasktune.tuner.saved_setup import setup_of
from dasktune.tuner.scheduler_forecast import _ProgressLine, whatif


def train(config: dict[str, Any]) -> Any:
    for epoch in range(1, 10):
        yield {"loss": config["x"] + 1 / epoch, "accuracy": -config["x"]}, 60.0


def experiment(store: Any = None, scheduler: Any = None, metric: Any = "loss", mode: Any = "min") -> Any:
    return simulate(
        train,
        param_space={"x": uniform(0, 1)},
        tune_config=tune.TuneConfig(metric=metric, mode=mode, num_samples=24, scheduler=scheduler, seed=0),
        slots=3,
        store=store,
    )


@pytest.fixture(scope="module")
def results() -> Any:
    return experiment()


@pytest.fixture(scope="module")
def place(tmp_path_factory: Any) -> str:
    return stored(tmp_path_factory.mktemp("stored") / "exp")


def stored(path: Any, search_alg: Any = None, scheduler: Any = None) -> str:
    storage = Storage(path)
    store = ExperimentStore(storage)
    store.create({"format": 1, "dasktune": "0.2.0", "name": "exp", "metric": "loss", "mode": "min"})
    TunerFile(entries_of({"tune_config.search_alg": search_alg})).write(storage)
    experiment(store, scheduler)
    store.close()
    return storage.url


def test_an_experiment_is_read_from_its_directory_with_its_number_of_workers(place):
    found = whatif(place, ["asha"], orders=20)
    assert (found.metric, found.mode, found.num_curves, found.max_t) == ("loss", "min", 24, 9)
    assert found.workers == 3
    # 24 trials of nine minutes, three at a time.
    assert found.rows[0].hours.value == pytest.approx(8 * 9 / 60)
    assert [row.scheduler for row in found.rows] == ["FIFOScheduler", "asha"]
    assert found.recommended.scheduler == "asha"


def test_results_and_their_directory_say_the_same(place, results):
    grid = tune.ExperimentAnalysis(place)
    by_grid, by_path = (whatif(one, ["asha"], orders=20) for one in (grid, place))
    assert by_grid == by_path == whatif(grid.to_grid(), ["asha"], orders=20)
    assert whatif(results, ["asha"], workers=3, orders=20).rows == by_path.rows


def test_the_number_of_workers_can_be_another_one(place):
    one, many = (whatif(place, ["asha"], orders=20, workers=workers) for workers in (1, 24))
    assert one.rows[0].hours.value == pytest.approx(24 * 9 / 60)
    assert many.rows[0].hours.value == pytest.approx(9 / 60)


def test_without_a_directory_the_number_of_workers_must_be_given(results):
    with pytest.raises(ConfigError, match=r"workers must be given .* got None"):
        whatif(results, ["asha"])


def test_trials_that_a_scheduler_has_stopped_are_censored(tmp_path):
    place = stored(tmp_path / "asha", scheduler=ASHAScheduler(max_t=9, reduction_factor=3))
    with pytest.raises(ConfigError, match=r"at least 20 full learning curves, got \d of 24 trials"):
        whatif(place)
    found = whatif(place, ["asha"], max_t=1, orders=20)
    assert (found.num_curves, found.max_t, found.censored) == (24, 1, {})


@pytest.mark.parametrize("searcher", ["optuna", "bohb", print])
def test_the_trials_of_a_searcher_that_learns_are_replayed_only_on_request(tmp_path, searcher):
    place = stored(tmp_path / "learned", search_alg=searcher)
    name = searcher if isinstance(searcher, str) else "builtin_function_or_method"
    with pytest.raises(ConfigError, match=f"got '{name}', which learns from results"):
        whatif(place, ["asha"])
    assert whatif(place, ["asha"], orders=20, ignore_searcher=True).num_curves == 24


@pytest.mark.parametrize("searcher", ["random", "quasi_random", tune.create_searcher("quasi_random")])
def test_other_searchers_need_no_request(tmp_path, searcher):
    assert whatif(stored(tmp_path / "exp", search_alg=searcher), ["asha"], orders=20).num_curves == 24


@pytest.mark.parametrize(("inner", "learns"), [("quasi_random", False), ("bohb", True)])
def test_a_limit_of_concurrent_trials_changes_nothing_about_the_searcher(tmp_path, inner, learns):
    limited = tune.search.ConcurrencyLimiter(tune.create_searcher(inner), max_concurrent=3)
    place = stored(tmp_path / "limited")
    setup = setup_of(tune.TuneConfig(metric="loss", mode="min", search_alg=limited), tune.RunConfig(), {})
    setup.write(Storage(place))
    if learns:
        with pytest.raises(ConfigError, match="got 'TuneBOHB', which learns from results"):
            whatif(place, ["asha"])
    else:
        assert whatif(place, ["asha"], orders=20).num_curves == 24


def test_trials_that_wait_for_their_promotion_do_not_count_as_running(tmp_path):
    halving = PromotingASHAScheduler(max_t=9, reduction_factor=3)
    place = stored(tmp_path / "promoted", scheduler=halving)
    assert whatif(place, ["asha"], max_t=1, orders=20).workers == 3


def test_a_stay_ends_with_the_last_record_of_a_driver_that_has_died():
    def record(time: float, status: str | None, event: str = "TrialStarted") -> dict[str, Any]:
        told = {"trial_id": "a", "status": status} if status else {}
        return {"event": event, "time": time, **told}

    records = [
        record(1.0, "PENDING"),
        record(2.0, "RUNNING"),
        record(5.0, "RUNNING"),
        record(60.0, None, "SessionBegan"),
        record(61.0, "PENDING"),
        record(70.0, "RUNNING"),
        record(72.0, "TERMINATED"),
    ]
    assert stays_of(records) == {"a": [(2.0, 5.0), (70.0, 72.0)]}


def test_a_damaged_file_with_the_searcher_is_no_proof_that_it_learns_nothing(tmp_path):
    place = stored(tmp_path / "damaged")
    Storage(place).write_bytes("tuner.json", b'{"format": 9}')
    with pytest.raises(StorageError, match=r"tuner\.json"):
        whatif(place, ["asha"])
    assert whatif(place, ["asha"], orders=20, ignore_searcher=True).num_curves == 24


def test_clones_have_no_learning_curves(tmp_path):
    def descend(config: Any, checkpoint: Any) -> Any:
        for epoch in range(checkpoint or 0, 9):
            yield {"loss": config["x"]}, 1.0, epoch + 1

    pbt = tune.create_scheduler(
        "pbt",
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"x": uniform(0, 1)},
    )
    store = ExperimentStore(Storage(tmp_path))
    store.create({"format": 1, "metric": "loss", "mode": "min"})
    simulate(
        descend,
        param_space={"x": uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=24, scheduler=pbt, seed=0),
        slots=24,
        store=store,
    )
    store.close()
    with pytest.raises(ConfigError, match=r"without clones of population based training, got '\d+ clones'"):
        whatif(tmp_path)


def test_one_of_several_objectives_is_chosen():
    several = experiment(metric=["loss", "accuracy"], mode=["min", "max"])
    with pytest.raises(ConfigError, match=r"metric must be .* one of \['loss', 'accuracy'\]"):
        whatif(several, workers=3)
    found = whatif(several, ["asha"], metric="accuracy", workers=3, orders=20)
    assert (found.metric, found.mode) == ("accuracy", "max")
    assert found.rows[1].kept.value == 1


def test_metric_and_mode_can_be_others(results):
    found = whatif(results, ["asha"], metric="accuracy", mode="max", workers=3, orders=20)
    assert (found.metric, found.mode) == ("accuracy", "max")
    with pytest.raises(ConfigError, match="mode must be"):
        whatif(results, metric="accuracy", mode="best", workers=3)
    with pytest.raises(ConfigError, match="mode must be 'min' or 'max', got None"):
        whatif(experiment(metric=None, mode=None), metric="loss", workers=3)


def test_a_metric_that_no_trial_reports_is_refused_with_those_that_are_reported(results):
    message = r"metric must be a metric that the trials report, got 'other'\. .*: accuracy, loss\.$"
    with pytest.raises(ConfigError, match=message):
        whatif(results, metric="other", workers=3)
    with pytest.raises(ConfigError, match=r"got None\. Give both, for example metric="):
        whatif(experiment(metric=None, mode=None), workers=3)


def test_the_default_schedulers_come_with_the_arguments_that_their_labels_leave_out(results):
    found = whatif(results, workers=3, orders=20)
    assert "max_t=9 and reduction_factor=3, MedianStoppingRule with time_attr='training_iteration'" in str(
        found
    )
    assert whatif(results, ["asha"], workers=3, orders=20).notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orders": 19}, "orders must be"),
        ({"seed": -1}, "seed must be"),
        ({"workers": 0}, "workers must be"),
        ({"max_t": 0}, "max_t must be"),
        ({"min_kept": 0}, "min_kept must be"),
        ({"min_kept": 1.1}, "min_kept must be"),
        ({"min_kept": "most"}, "min_kept must be a number"),
    ],
)
def test_arguments_out_of_range_are_refused(results, options, message):
    with pytest.raises(ConfigError, match=message):
        whatif(results, **{"workers": 3, **options})


def test_what_is_no_experiment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="experiment must be the path"):
        whatif(3)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="no experiment is stored"):
        whatif(tmp_path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_terminal_shows_the_progress_until_the_end(monkeypatch, stream, shown):
    monkeypatch.setattr("sys.stderr", stream)
    times = iter([0.0, 0.1, 0.3, 0.3])
    line = _ProgressLine(lambda: next(times))
    for done in (1, 2000, 4000):
        line(done, 4000)
    assert stream.getvalue() == ("\r2,000 of 4,000 replays (50%)\r\x1b[K" if shown else "")
