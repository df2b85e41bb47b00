"""An experiment whose driver dies, again and again, ends as it would have ended without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cloudpickle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mortal_store import Died, MortalStore
from test_replay import CASES, Descent, configs, curve, marks

from dasktune.callback import TrialStorage
from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.config.resume_config import ResumeConfig
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.errors import ConfigError, ReportError, StorageError, TrialError
from dasktune.experiment import ExperimentMachine
from dasktune.results.journal_trials import load_trials
from dasktune.runner import RunInline, TrialRunner
from dasktune.runner.build import build_callbacks, build_experiment
from dasktune.schedulers import ASHAScheduler
from dasktune.search import BasicVariantGenerator
from dasktune.space import uniform
from dasktune.stopper import MaximumIterationStopper
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.json_lines import encode
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.tuner.raise_trial_error import raise_first_error
from dasktune.tuner.restore import RestoredExperiment, restore_experiment
from dasktune.tuner.saved_setup import setup_of
from dasktune.tuner.submitted_driver import SubmittedOrigin, restored_session, run_driver

pytestmark = pytest.mark.usefixtures("quick_bandit")

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


class Lab:
    """A cluster, a storage and a clock that outlive the drivers."""

    #: Seconds between two snapshots.
    checkpoint_period = 100.0

    #: What the drivers write into the storage with.
    store_kind: type[MortalStore] = MortalStore

    def __init__(self, storage: Storage, trainable: Any = curve, **parts: Any) -> None:
        self.storage, self.trainable, self.parts = storage, trainable, parts
        self.name = storage.url.rpartition("/")[2]
        #: Where trials run.
        self.places: dict[str, Any] = {"slots": 3}
        self.checkpoints: dict[str, Any] = {}
        self.clock = ManualClock()

    def drive(
        self,
        experiment: ExperimentMachine,
        *,
        session: RestoredExperiment | None = None,
        lives: int = 10**9,
    ) -> ExperimentMachine:
        store = self.store_kind(self.storage, lives)
        if session is None:
            store.begin()
            setup_of(**self.parts).write(self.storage)
        else:
            store.begin(after=session.end)
        executor = SimulatedTrialExecutor(
            self.trainable, clock=self.clock, checkpoints=self.checkpoints, **self.places
        )
        tune_config, run_config = self.configs(session)
        self.run_config = run_config
        self.callbacks = build_callbacks(
            tune_config,
            run_config,
            experiment,
            TrialStorage.of(store, "curve"),
            None if session is None else session.missed,
        )
        runner = TrialRunner(
            experiment,
            executor,
            store=store,
            clock=self.clock,
            resources_for=lambda config: ONE_CPU,
            checkpoint_period=self.checkpoint_period,
            callbacks=self.callbacks,
            background=self.background(experiment),
        )
        if session is not None:
            session.begin(runner)
        runner.run()
        return experiment

    def configs(self, session: RestoredExperiment | None) -> tuple[TuneConfig, RunConfig]:
        if session is None:
            return self.parts["tune_config"], self.parts["run_config"]
        return session.tune_config, session.run_config

    def background(self, experiment: ExperimentMachine) -> Any:
        return RunInline

    def begin(self, lives: int = 10**9) -> ExperimentMachine:
        return self.drive(build_experiment(*self.parts.values()), lives=lives)

    def restore(self, resume: ResumeConfig | None = None, **changes: Any) -> RestoredExperiment:
        nothing = {"tune_config": None, "run_config": None, "param_space": None}
        session = restore_experiment(self.storage, resume=resume or ResumeConfig(), **{**nothing, **changes})
        session.check_journal_unchanged()
        return session

    def resume(self, lives: int = 10**9, **arguments: Any) -> ExperimentMachine:
        session = self.restore(**arguments)
        return self.drive(session.experiment, session=session, lives=lives)


def parts_of(scheduler: str, search: str) -> dict[str, Any]:
    parts = configs(scheduler, search)
    return {name: parts[name] for name in ("tune_config", "run_config", "param_space")}


def lab(name: str, scheduler: str = "fifo", search: str = "variants", **kwargs: Any) -> Lab:
    storage = Storage(f"memory://restored/{name}")
    storage.remove_tree()
    return Lab(storage, **{**parts_of(scheduler, search), **kwargs})


def ends(experiment: ExperimentMachine) -> dict[str, tuple[Any, ...]]:
    """How each trial ended; virtual times differ where a driver was lost."""
    return {
        key: (trial.public_status, [row["loss"] for row in trial.history], trial.config)
        for key, trial in experiment.trials.items()
    }


def once_each(experiment: ExperimentMachine) -> None:
    for trial in experiment.trials.values():
        iterations = [row["training_iteration"] for row in trial.history]
        if trial.ancestry:  # a clone begins where its donor was
            assert iterations == sorted(set(iterations))
        else:
            assert iterations == list(range(1, len(iterations) + 1))
        assert trial.status.is_final


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives=st.lists(st.integers(0, 120), max_size=4))
def test_however_often_its_driver_dies_fifo_has_the_same_end(lives: list[int]):
    undisturbed = ends(lab("calm").begin())
    place = lab("stormy")
    experiment = driven(place, lives)
    assert ends(experiment) == undisturbed
    once_each(experiment)


def driven(place: Lab, lives: list[int]) -> ExperimentMachine:
    """Run to the end, with drivers that die after so many records."""
    begun = False
    for limit in lives:
        try:
            return place.resume(limit) if begun else place.begin(limit)
        except Died:
            begun = True
    return place.resume() if begun else place.begin()


@pytest.mark.parametrize(("scheduler", "search"), [pytest.param(*case, marks=marks(case)) for case in CASES])
def test_every_policy_resumes_where_its_driver_died(scheduler: str, search: str):
    undisturbed = lab("calm", scheduler, search).begin()
    for limit in (0, 1, 17, 40, 77):
        place = lab(f"{scheduler}-{search}-{limit}", scheduler, search)
        experiment = driven(place, [limit, 60])
        once_each(experiment)
        assert len(experiment.trials) == len(undisturbed.trials)


def test_a_second_session_knows_what_the_first_one_knew_at_its_last_record():
    place = lab("same-state", "asha")
    first, known = build_experiment(*place.parts.values()), []

    class Noting(MortalStore):
        """Notes what the driver knew at each record."""

        def append(self, record: Any) -> int:
            position = super().append(record)
            known.append(encode(first.state_dict()))
            return position

    place.store_kind = Noting
    with pytest.raises(Died):
        place.drive(first, lives=90)
    # What was not durable yet when the driver died is lost.
    position = len(list(read_journal(place.storage)))
    assert 0 < position <= 90
    for _ in range(2):
        assert encode(place.restore().experiment.state_dict()) == known[position - 1]


def test_a_finished_experiment_can_be_given_more_samples():
    place = lab("more", "asha")
    first = ends(place.begin())
    more = TuneConfig(
        metric="loss",
        mode="min",
        num_samples=16,
        scheduler=ASHAScheduler(max_t=9, reduction_factor=3, brackets=2),
    )
    experiment = place.resume(tune_config=more)
    assert len(experiment.trials) == len(first) + 4 * 2  # each with both points of the grid
    assert {key: ends(experiment)[key] for key in first} == first


def test_finished_trials_train_with_another_stop():
    def endless(config: dict[str, Any], checkpoint: Any) -> Any:
        step = checkpoint or 0
        while True:
            step += 1
            yield {"loss": config["x"] / step}, 1.0, step

    parts = {
        "tune_config": TuneConfig(metric="loss", mode="min", num_samples=3, seed=1),
        "run_config": RunConfig(stop={"training_iteration": 4}),
        "param_space": {"x": 1.0},
    }
    storage = Storage("memory://restored/another-stop")
    storage.remove_tree()
    place = Lab(storage, endless, **parts)
    place.begin()
    experiment = place.resume(
        run_config=RunConfig(stop={"training_iteration": 7}), resume=ResumeConfig(finished="resume")
    )
    once_each(experiment)
    assert [len(trial.history) for trial in experiment.trials.values()] == [7, 7, 7]


@pytest.mark.parametrize(
    ("wish", "steps", "statuses"),
    [
        ("skip", 4, {"TERMINATED", "ERROR"}),
        ("resume", 8, {"TERMINATED"}),
        ("restart", 8, {"TERMINATED"}),
    ],
)
def test_failed_trials_are_left_resume_or_restart(wish: str, steps: int, statuses: set[str]):
    broken = {"now": True}
    begun: list[Any] = []

    def fails_at_first(config: dict[str, Any], checkpoint: Any) -> Any:
        begun.append(checkpoint)
        for step in range(checkpoint or 0, 8):
            if step == 4 and broken["now"] and config["x"]:
                raise ValueError("broken")
            yield {"loss": float(step)}, 1.0, step + 1

    parts = {
        "tune_config": TuneConfig(metric="loss", mode="min", num_samples=1, seed=1),
        "run_config": RunConfig(),
        "param_space": {"x": {"grid_search": [True, False, True]}},
    }
    storage = Storage(f"memory://restored/failed-{wish}")
    storage.remove_tree()
    place = Lab(storage, fails_at_first, **parts)
    place.begin()
    broken["now"], begun[:] = False, []
    experiment = place.resume(resume=ResumeConfig(errored=wish))
    once_each(experiment)
    trials = list(experiment.trials.values())
    assert [len(trial.history) for trial in trials] == [steps, 8, steps]
    assert {trial.public_status.value for trial in trials} == statuses
    assert begun == {"skip": [], "resume": [4, 4], "restart": [None, None]}[wish]


def test_unfinished_trials_can_be_left_out():
    place = lab("left-out")
    with pytest.raises(Died):
        place.begin(40)
    experiment = place.resume(resume=ResumeConfig(unfinished="skip"))
    reasons = {trial.reason for trial in experiment.trials.values()}
    assert "skipped when the experiment was restored" in reasons
    assert all(trial.status.is_final for trial in experiment.trials.values())


def test_trials_resume_in_the_old_order():
    place = lab("order")
    with pytest.raises(Died):
        place.begin(60)
    session = place.restore()
    store = ExperimentStore(place.storage)
    store.begin(after=session.end)
    runner = TrialRunner(
        session.experiment,
        SimulatedTrialExecutor(curve, clock=ManualClock(), slots=3),
        store=store,
        clock=place.clock,
        resources_for=lambda config: ONE_CPU,
    )
    runner.resume(session.requests)
    pending = list(session.experiment.trial_index.pending)
    assert len(pending) > 1
    assert pending == sorted(pending)
    assert not session.experiment.trial_index.active


def test_another_driver_that_resumed_meanwhile_is_noticed():
    place = lab("meanwhile")
    with pytest.raises(Died):
        place.begin(40)
    session = place.restore()
    place.resume()
    with pytest.raises(StorageError, match="has resumed"):
        session.check_journal_unchanged()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "accuracy"}, "metric must be 'loss' as at the start, got 'accuracy'"),
        ({"mode": "max"}, "mode must be 'min' as at the start, got 'max'"),
        ({"seed": 8}, "seed must be None or 7 as at the start, got 8"),
        ({"search_alg": Descent()}, "search_alg must be a BasicVariantGenerator as at the start"),
    ],
)
def test_what_everything_rests_on_cannot_be_changed(changes: dict[str, Any], message: str):
    place = lab("fixed")
    with pytest.raises(Died):
        place.begin(40)
    given: dict[str, Any] = {"metric": "loss", "mode": "min", **changes}
    with pytest.raises(ConfigError, match=message):
        place.restore(tune_config=TuneConfig(num_samples=12, **given))


def test_a_searcher_of_the_script_may_be_given_again():
    # Its class is pickled by value, so the stored one has another class object.
    first, again = (type("OfScript", (Descent,), {"__module__": "__main__"}) for _ in range(2))
    place = lab("script", search="searcher")
    place.parts["tune_config"] = replace(place.parts["tune_config"], search_alg=first())
    place.begin()
    more = replace(place.parts["tune_config"], search_alg=again(), num_samples=14)
    assert len(place.resume(tune_config=more).trials) == 14


@pytest.mark.parametrize(
    ("kind", "method"), [(ASHAScheduler, "on_trial_result"), (BasicVariantGenerator, "next_trial")]
)
def test_a_policy_that_raises_is_named_and_its_journal_is_not_called_damaged(
    kind: Any, method: str, monkeypatch: pytest.MonkeyPatch
):
    place = lab("raises", "asha")
    with pytest.raises(Died):
        place.begin(40)

    monkeypatch.setattr(kind, method, lambda it, *arguments: {}["val_loss"])
    message = rf"{kind.__name__} must be able to follow .* got KeyError\('val_loss'\) at record \d+"
    with pytest.raises(ConfigError, match=message) as raised:
        place.restore()
    assert "--keep" not in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", ["bohb", "hyperopt", "gp", "bayesopt"])
def test_a_model_refuses_a_further_parameter_even_if_a_snapshot_lacks_it(kind: str):
    space = {"lr": uniform(0, 0.9), "depth": uniform(1, 2)}
    place = lab("wider", param_space=space)
    place.checkpoint_period = 2.0
    place.parts["tune_config"] = replace(place.parts["tune_config"], search_alg=kind)
    place.begin()
    assert place.storage.names("snapshots")
    with pytest.raises(ConfigError, match=r"^\w+ must be able to follow .* a value at 'new'.* unchanged"):
        place.restore(param_space={**space, "new": uniform(0, 1)})
    assert len(place.restore(param_space=space).experiment.trials) == 12


def test_a_damaged_snapshot_costs_nothing_but_time(caplog: pytest.LogCaptureFixture):
    place = lab("damaged", "asha")
    with pytest.raises(Died):
        place.begin(100)
    intact = place.restore().experiment.state_dict()
    names = place.storage.names("snapshots")
    assert names
    for name in names:
        place.storage.write_bytes(f"snapshots/{name}", b"{")
    assert place.restore().experiment.state_dict() == intact
    assert "a snapshot of" in caplog.text


@pytest.mark.parametrize("search", ["variants", "searcher"])
def test_no_more_trials_run_at_a_time_than_wanted_if_some_are_opened_again(search: str):
    few, more = (
        replace(configs("fifo", search)["tune_config"], num_samples=n, max_concurrent_trials=2)
        for n in (5, 8)
    )
    place = lab(f"few-{search}", "fifo", search, tune_config=few)
    before = place.begin()
    assert all(trial.status.is_final for trial in before.trials.values())
    position = len(list(read_journal(place.storage)))
    after = place.resume(tune_config=more, resume=ResumeConfig(finished="restart", errored="restart"))
    once_each(after)
    assert len(after.trials) > len(before.trials)
    running: set[str] = set()
    most = 0
    for record in read_journal(place.storage, start=position):
        if record["event"] == "TrialStarted":
            running.add(record["trial_id"])
        elif record.get("status") in ("TERMINATED", "ERROR", "PENDING"):
            running.discard(record["trial_id"])
        most = max(most, len(running))
    assert most == 2


def test_an_error_that_every_trial_would_have_ends_and_is_raised_until_the_code_is_corrected():
    form = {"is": "wrong"}

    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        if form["is"] == "wrong":
            raise ReportError("metrics must be a dict, got list")
        yield {"loss": config["x"]}, 1.0

    storage = Storage("memory://restored/form")
    storage.remove_tree()
    goal = TuneConfig(metric="loss", mode="min", max_concurrent_trials=1, seed=1)
    space = {"x": {"grid_search": [1, 2, 3]}}
    place = Lab(storage, train, tune_config=goal, run_config=RunConfig(), param_space=space)
    first = place.begin()
    form["is"] = "right"
    for experiment in (first, place.resume()):
        assert len(experiment.trials) == 1
        with pytest.raises(TrialError, match="ReportError: metrics must be a dict, got list"):
            raise_first_error(experiment)
    experiment = place.resume(resume=ResumeConfig(errored="resume"))
    raise_first_error(experiment)
    assert [trial.public_status.value for trial in experiment.trials.values()] == ["TERMINATED"] * 3


def test_what_failed_fast_stays_ended_until_something_is_done_about_it(
    caplog: pytest.LogCaptureFixture,
):
    broken = {"now": True}

    def fragile(config: dict[str, Any], checkpoint: Any) -> Any:
        yield {"loss": config["x"]}, 1.0
        if config["x"] == 2 and broken["now"]:
            raise ValueError("no luck")

    fast = FailureConfig(fail_fast="raise")
    parts = {
        "tune_config": TuneConfig(metric="loss", mode="min", max_concurrent_trials=1, seed=1),
        "run_config": RunConfig(failure_config=fast),
        "param_space": {"x": {"grid_search": [1, 2, 3]}},
    }
    storage = Storage("memory://restored/fast")
    storage.remove_tree()
    place = Lab(storage, fragile, **parts)
    first = ends(place.begin())
    broken["now"] = False
    # No exception travels in a journal; what it was does.
    for _ in range(2):
        experiment = place.resume()
        assert ends(experiment) == first
        with pytest.raises(TrialError) as told:
            raise_first_error(experiment)
        assert told.value.message == "ValueError: no luck"
        assert 'raise ValueError("no luck")' in told.value.traceback
        assert "which ended the experiment. Restore" in caplog.text
        caplog.clear()
    experiment = place.resume(resume=ResumeConfig(errored="restart"))
    once_each(experiment)
    raise_first_error(experiment)
    assert [trial.public_status.value for trial in experiment.trials.values()] == ["TERMINATED"] * 3


@pytest.mark.parametrize("unfinished", ["resume", "restart", "skip"])
@pytest.mark.parametrize("what", ["it is tried again", "it ends nothing any more"])
def test_what_was_ended_for_the_failure_of_another_resumes_when_that_does(what: str, unfinished: str):
    broken = {"now": True}

    def fragile(config: dict[str, Any], checkpoint: Any) -> Any:
        for epoch in range(checkpoint or 0, 3):
            if config["x"] == 4 and epoch == 1 and broken["now"]:
                raise ValueError("no luck")
            yield {"loss": config["x"]}, float(config["x"]), epoch + 1

    parts = {
        "tune_config": TuneConfig(metric="loss", mode="min", seed=1),
        "run_config": RunConfig(failure_config=FailureConfig(fail_fast=True)),
        "param_space": {"x": {"grid_search": [1, 4, 2.5, 0.9, 7]}},
    }
    storage = Storage(f"memory://restored/cut-off-{what}-{unfinished}")
    storage.remove_tree()
    place = Lab(storage, fragile, **parts)
    # One has come to its end, one fails, two are in their second steps and one is pending.
    assert [len(one.history) for one in place.begin().trials.values()] == [3, 1, 1, 1, 0]
    broken["now"] = False
    if what == "it is tried again":
        resume, config, own = ResumeConfig(unfinished=unfinished, errored="resume"), None, 3
    else:
        resume, config, own = ResumeConfig(unfinished=unfinished), RunConfig(), 1
    experiment = place.resume(resume=resume, run_config=config)
    once_each(experiment)
    others = [1, 1, 0] if unfinished == "skip" else [3, 3, 3]
    assert [len(one.history) for one in experiment.trials.values()] == [3, own, *others]


def train(config: dict[str, Any]) -> None:
    """Never called: its experiments are over, or simulated."""


def submitted(place: Lab, resume: ResumeConfig | None = None) -> dict[str, Any]:
    """Return what travels to the cluster."""
    origin = None
    if resume is not None:
        origin = SubmittedOrigin(place.storage, resume, place.restore().end.position)
    run_config = replace(place.parts["run_config"], storage_path="memory://restored", name=place.name)
    return {**place.parts, "run_config": run_config, "trainable": train, "origin": origin}


def fragile(config: dict[str, Any]) -> Any:
    yield {"loss": config["x"]}, 1.0
    if config["x"] == 2:
        raise ValueError("no luck")


def failed(name: str, **failure: Any) -> Lab:
    parts = {
        "tune_config": TuneConfig(metric="loss", mode="min", seed=1),
        "run_config": RunConfig(failure_config=FailureConfig(**failure)),
        "param_space": {"x": {"grid_search": [1, 2, 3]}},
    }
    storage = Storage(f"memory://restored/{name}")
    storage.remove_tree()
    place = Lab(storage, fragile, **parts)
    place.begin()
    return place


def test_what_is_wished_of_the_trials_of_a_submitted_experiment_is_done_once():
    place = failed("once")
    parts = submitted(place, ResumeConfig(errored="restart"))
    for wish in ("restart", "skip", "skip"):
        session = restored_session(parts, place.storage, parts["origin"], "")
        assert session is not None
        assert session.resume.errored == wish
        place.drive(session.experiment, session=session)
    failures = [one for one in read_journal(place.storage) if one["event"] == "TrialFailed"]
    assert len(failures) == 2


def test_a_submitted_driver_that_died_after_the_end_only_says_what_came_of_it():
    place = failed("over")
    position = place.restore().end.position
    results = run_driver(cloudpickle.dumps(submitted(place)), "")
    assert [result.status.value for result in results] == ["TERMINATED", "ERROR", "TERMINATED"]
    assert place.restore().end.position == position


def test_a_submitted_driver_that_died_after_a_failure_raises_it():
    place = failed("over-fast", fail_fast="raise")
    with pytest.raises(TrialError, match="ValueError: no luck"):
        run_driver(cloudpickle.dumps(submitted(place)), "")


def test_an_experiment_that_failed_fast_resumes_without_it():
    place = failed("fast-without", fail_fast=True)
    experiment = place.resume(run_config=RunConfig(), resume=ResumeConfig(finished="resume"))
    statuses = [trial.public_status.value for trial in experiment.trials.values()]
    assert statuses == ["TERMINATED", "ERROR", "TERMINATED"]


def test_a_trial_whose_newest_checkpoint_is_gone_resumes_from_the_one_before(caplog):
    undisturbed = ends(lab("whole").begin())
    keep_all = replace(parts_of("fifo", "variants")["run_config"], checkpoint_config=CheckpointConfig())
    place = lab("gone", run_config=keep_all)
    with pytest.raises(Died):
        place.begin(66)
    before = place.restore().experiment
    unfinished = [one for one in before.trials.values() if not one.status.is_final]
    trial = next(one for one in unfinished if len(one.checkpoints) > 1)
    gone, older = trial.checkpoints[-1], trial.checkpoints[-2]
    del place.checkpoints[gone.path]
    position = len(list(read_journal(place.storage)))
    experiment = place.resume()
    assert ends(experiment) == undisturbed
    once_each(experiment)
    [damage] = [one for one in read_journal(place.storage) if one["event"] == "RestoreFailed"]
    assert (damage["trial_id"], damage["path"]) == (trial.trial_id, gone.path)
    starts = [
        action["checkpoint"]["path"]
        for one in read_journal(place.storage, start=position)
        for action in one.get("actions", ())
        if action["do"] == "RestoreTrial" and action["trial_id"] == trial.trial_id
    ]
    assert starts[:2] == [gone.path, older.path]
    assert f"trial {trial.trial_id} cannot resume from its checkpoint" in caplog.text
    assert f"resumes from the one of iteration {older.iteration}" in caplog.text
    assert place.restore().experiment.state_dict()["trials"] == experiment.state_dict()["trials"]
    names = [one.path for one in load_trials(place.storage)[int(trial.trial_id[-5:])].checkpoints]
    assert gone.path not in names


@pytest.mark.parametrize("scheduler", ["hyperband", "pbt", "median"])
def test_another_scheduler_is_refused_while_trials_are_unfinished(scheduler: str):
    place = lab(f"other-{scheduler}", "asha")
    with pytest.raises(Died):
        place.begin(60)
    now = parts_of(scheduler, "variants")["tune_config"]
    message = rf"scheduler must be {ASHAScheduler.__name__} as before, got .* unfinished"
    with pytest.raises(ConfigError, match=message):
        place.restore(tune_config=now)
    once_each(place.resume(tune_config=parts_of("fifo", "variants")["tune_config"]))


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "pbt", "median"])
def test_another_scheduler_may_judge_the_trials_that_are_added_to_a_finished_experiment(scheduler: str):
    place = lab(f"next-{scheduler}", "fifo")
    before = ends(place.begin())
    more = replace(parts_of(scheduler, "variants")["tune_config"], num_samples=14)
    after = place.resume(tune_config=more)
    once_each(after)
    assert len(after.trials) > len(before)
    assert {key: ends(after)[key] for key in before} == before
    # The next driver finds the state of the new scheduler, with its own name.
    assert encode(place.restore().experiment.state_dict()) == encode(after.state_dict())


def test_a_restored_experiment_has_the_total_of_its_newest_driver():
    tune_config = parts_of("fifo", "searcher")["tune_config"]
    place = lab("total", "fifo", "searcher", tune_config=replace(tune_config, num_samples=5))
    totals = [place.begin().total_trials]
    shown = []
    resume = ResumeConfig(errored="restart", finished="restart")
    for number in (8, 3):
        experiment = place.resume(tune_config=replace(tune_config, num_samples=number), resume=resume)
        totals.append(experiment.total_trials)
        # As a page shows it that is served from the directory: its experiment.json is of the start.
        projection = ExperimentProjection(total=5)
        projection.extend(read_journal(place.storage))
        shown.append((projection.num_finished, len(projection.trials), projection.total))
    assert totals == [5, 8, 8]
    assert shown == [(8, 8, 8)] * 2


def test_another_stopper_counts_the_results_from_before():
    place = lab("stopper")
    with pytest.raises(Died):
        place.begin(60)
    run = replace(parts_of("fifo", "variants")["run_config"], stop=MaximumIterationStopper(3))
    experiment = place.resume(run_config=run)
    started = [trial for trial in experiment.trials.values() if trial.incarnation]
    assert len(started) == len(experiment.trials)
    late = [trial for trial in started if int(trial.trial_id[-5:]) > 5]
    assert {len(trial.history) for trial in late if trial.error is None} == {3}


def test_what_an_orphan_left_of_a_trial_that_the_journal_lost_is_removed():
    place = lab("orphan")
    with pytest.raises(Died):
        place.begin(4)
    known = place.restore().experiment.trials
    # The killed driver had started another trial, and its records were not durable yet.
    whole = lab("orphan-whole").begin()
    lost = next(trial for key, trial in reversed(whole.trials.items()) if key not in known)
    path = f"trials/{lost.folder}/checkpoint_000000_i01"
    place.storage.write_bytes(f"{path}/data", b"of the orphan")
    experiment = place.resume()
    assert experiment.trials[lost.trial_id].status.is_final
    assert place.storage.find(path) == []
