"""Trials of a trainer's search, and its arguments, with a small trainer instead of Transformers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers_kit
from transformers_kit import Trainer, TrainingArguments
from trial_run_kit import Driver

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.integration.transformers import default_hp_space, hyperparameter_search
from dasktune.integration.transformers.trainer_reporter import Objective
from dasktune.integration.transformers.trainer_trial import TrainerTemplate, transformers_trial
from dasktune.schedulers import ASHAScheduler
from dasktune.storage.checkpoints.checkpoint import METADATA_FILE
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.reporting.trial_messages import Ended, Failed, PauseAnswer, Paused
from dasktune.trial.milestone import Milestone

#: Four steps of eight rows in an epoch.
ROWS = list(range(32))

LOSS = Objective(lambda metrics: metrics["eval_loss"])


@pytest.fixture(autouse=True)
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_kit.install(monkeypatch)


def make_model() -> dict[str, float]:
    return {"weight": 0.0}


def make_trainer(
    model_init: Any = make_model, eval_dataset: Any = ROWS, callbacks: Any = (), **arguments: Any
) -> Trainer:
    args = TrainingArguments(**arguments)
    return Trainer(args, model_init, train_dataset=ROWS, eval_dataset=eval_dataset, callbacks=callbacks)


def trial_of(trainer: Trainer, objective: Objective = LOSS, hp_name: Any = None) -> Callable[..., None]:
    """Return the trainable of a search."""
    return partial(
        transformers_trial,
        template=TrainerTemplate.of(trainer),
        objective=objective,
        hp_name=hp_name,
        data=(trainer.train_dataset, trainer.eval_dataset),
    )


def run(trainer: Trainer, config: dict[str, Any] | None = None, **options: Any) -> Driver:
    driver = Driver(trial_of(trainer, **options), config=config, secrets=(("hunter2", "KEY"),))
    assert isinstance(driver.end(), Ended)
    return driver


def saved(driver: Driver) -> list[bool]:
    return [result.checkpoint is not None for result in driver.results]


def test_each_evaluation_is_a_result_with_the_objective_and_a_checkpoint():
    driver = run(make_trainer(), {"learning_rate": 0.5})
    assert driver.values("step") == [4, 8, 12, 16]
    assert driver.values("eval_loss") == [0.5**step for step in (4, 8, 12, 16)]
    assert driver.values("objective") == driver.values("eval_loss")
    assert saved(driver) == [True] * 4


def test_a_save_waits_for_the_next_evaluation():
    driver = run(make_trainer(save_strategy="steps", save_steps=7))
    assert driver.values("step") == [4, 8, 12, 16]
    # The saves are due at the steps 7 and 14.
    assert saved(driver) == [False, True, False, True]


def test_without_evaluations_in_the_training_its_end_is_evaluated():
    driver = run(make_trainer(eval_strategy="no"))
    assert (driver.values("step"), saved(driver)) == ([16], [True])


def test_a_training_that_another_callback_stops_before_its_end_is_evaluated_all_the_same():
    class StopAtOnce:
        def on_train_begin(self, args: Any, state: Any, control: Any) -> None:
            state.max_steps = 0

    driver = run(make_trainer(eval_strategy="no", callbacks=[StopAtOnce()]))
    assert (driver.values("step"), saved(driver)) == ([0], [False])


def test_a_trainer_that_saves_nothing_has_no_checkpoints():
    assert saved(run(make_trainer(save_strategy="no"))) == [False] * 4


def test_several_data_sets_make_one_result():
    objective = Objective(lambda metrics: metrics["eval_a_loss"] + metrics["eval_b_loss"])
    trainer = make_trainer(eval_dataset={"a": ROWS, "b": ROWS})
    driver = run(trainer, {"learning_rate": 0.5}, objective=objective)
    assert driver.values("objective") == [2 * 0.5**step for step in (4, 8, 12, 16)]


def test_a_save_that_another_callback_asks_for_without_an_evaluation_is_no_result():
    class SaveNow:
        def on_step_end(self, args: Any, state: Any, control: Any) -> None:
            control.should_save = control.should_save or state.global_step == 2

    driver = run(make_trainer(callbacks=[SaveNow()]))
    assert driver.values("step") == [4, 8, 12, 16]


def pause_after_two(trainer: Trainer, config: dict[str, Any], storage: Storage) -> Any:
    milestones = (Milestone("training_iteration", 2.0),)
    begun = Driver(trial_of(trainer), config=config, storage=storage, milestones=milestones)
    begun.awaiting()
    begun.run.answer(PauseAnswer())
    assert isinstance(begun.end(), Paused)
    return begun.results[-1].checkpoint


def resume(trainer: Trainer, config: dict[str, Any], storage: Storage, checkpoint: Any) -> Driver:
    options = {"incarnation": 2, "checkpoint": checkpoint, "next_checkpoint": 2}
    rest = Driver(trial_of(trainer), config=config, storage=storage, **options)
    assert isinstance(rest.end(), Ended)
    return rest


def test_a_trial_continues_from_its_checkpoint(tmp_path: Path):
    storage, config = Storage(str(tmp_path)), {"learning_rate": 0.5}
    checkpoint = pause_after_two(make_trainer(), config, storage)
    rest = resume(make_trainer(), config, storage, checkpoint)
    assert rest.values("objective") == [0.5**step for step in (12, 16)]


def test_a_trial_that_continues_after_its_last_step_evaluates_nothing(tmp_path: Path):
    storage, config = Storage(str(tmp_path)), {"num_train_epochs": 2}
    checkpoint = pause_after_two(make_trainer(), config, storage)
    assert resume(make_trainer(), config, storage, checkpoint).results == []


def test_a_clone_trains_with_its_own_learning_rate(tmp_path: Path):
    storage = Storage(str(tmp_path))
    checkpoint = pause_after_two(make_trainer(), {"learning_rate": 0.5}, storage)
    rest = resume(make_trainer(), {"learning_rate": 0.25}, storage, checkpoint)
    assert rest.values("rate") == [0.25, 0.25]
    assert rest.values("objective") == pytest.approx([0.5**8 * 0.75**steps for steps in (4, 8)])


def without_metadata(tmp_path: Path) -> None:
    """Let the checkpoints be those of a trainer outside of a search."""
    for path in tmp_path.rglob(METADATA_FILE):
        path.unlink()


def test_an_initial_checkpoint_has_no_learning_rate_for_the_trials(tmp_path: Path):
    storage = Storage(str(tmp_path))
    checkpoint = pause_after_two(make_trainer(), {"learning_rate": 0.5}, storage)
    without_metadata(tmp_path)
    assert resume(make_trainer(), {"learning_rate": 0.25}, storage, checkpoint).values("rate") == [0.25] * 2


def test_a_trial_that_begins_with_an_initial_checkpoint_is_evaluated_at_its_end(tmp_path: Path):
    storage = Storage(str(tmp_path))
    checkpoint = pause_after_two(make_trainer(), {}, storage)
    without_metadata(tmp_path)
    assert resume(make_trainer(eval_strategy="no"), {}, storage, checkpoint).values("step") == [16]


def test_a_trainer_is_freed_when_its_trial_has_ended(tmp_path: Path):
    trainers = []

    class Watched(Trainer):
        def train(self, resume_from_checkpoint: str | None = None) -> None:
            trainers.append(weakref.ref(self))
            super().train(resume_from_checkpoint)

    trainer = make_trainer()
    trainer.__class__ = Watched
    storage = Storage(str(tmp_path))
    checkpoint = pause_after_two(make_trainer(), {"learning_rate": 0.5}, storage)
    gc.disable()
    try:
        run(trainer)
        resume(trainer, {"learning_rate": 0.25}, storage, checkpoint)
        assert [one() for one in trainers] == [None, None]
    finally:
        gc.enable()


def test_an_optimizer_that_user_code_has_changed_is_restored_as_it_was(tmp_path: Path):
    class Halve:
        def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            trainer_of_args[args.output_dir].optimizer.param_groups[0]["initial_lr"] /= 2

    trainer_of_args: dict[str, Any] = {}

    class Watched(Trainer):
        def train(self, resume_from_checkpoint: str | None = None) -> None:
            trainer_of_args[self.args.output_dir] = self
            super().train(resume_from_checkpoint)

    trainer = make_trainer(callbacks=[Halve()])
    trainer.__class__ = Watched
    storage = Storage(str(tmp_path))
    checkpoint = pause_after_two(trainer, {"learning_rate": 0.5}, storage)
    rest = resume(trainer, {"learning_rate": 0.5}, storage, checkpoint)
    assert rest.values("rate") == [0.5, 0.5]


def test_hyperparameters_get_the_types_of_the_training_arguments():
    config = {"num_train_epochs": 2.0, "per_device_train_batch_size": "16"}
    assert run(make_trainer(), config).values("step") == [2, 4]
    driver = Driver(trial_of(make_trainer()), config={"learning_rate": "fast"})
    failed = driver.end()
    assert isinstance(failed, Failed)
    rule = "learning_rate must be a value for float() as in TrainingArguments, got 'fast'"
    assert rule in failed.error.message


def test_the_trainer_of_a_trial_follows_its_hyperparameters_and_pushes_nothing():
    seen = []

    class Watched(Trainer):
        def train(self, resume_from_checkpoint: str | None = None) -> None:
            seen.append((self.label_smoother, self.neftune_noise_alpha, self.args))
            super().train(resume_from_checkpoint)

    trainer = make_trainer(neftune_noise_alpha=1.0, push_to_hub=True, push_to_hub_token="secret")
    assert trainer.args.hub_token == "secret"
    trainer.__class__ = Watched
    run(trainer, {"label_smoothing_factor": 0.1, "neftune_noise_alpha": 5})
    [(smoother, alpha, args)] = seen
    assert (smoother.epsilon, alpha) == (0.1, 5.0)
    # What it saves and where is the trial's.
    assert (args.save_total_limit, args.push_to_hub, args.hub_token) == (1, False, None)
    assert args.push_to_hub_token is None
    assert args.output_dir != trainer.args.output_dir


@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_that_the_trial_shards_is_not_moved_to_one_device(sharded: bool):
    seen = []

    class Watched(Trainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            # FSDP is on in the ranks only, for example by a variable of their environment.
            self.is_fsdp_enabled = sharded

        def train(self, resume_from_checkpoint: str | None = None) -> None:
            seen.append(self.place_model_on_device)
            super().train(resume_from_checkpoint)

    trainer = make_trainer()
    trainer.__class__ = Watched
    run(trainer, {})
    assert seen == [not sharded]


def test_a_function_that_makes_models_gets_the_hyperparameters():
    driver = run(make_trainer(model_init=lambda trial: {"weight": trial and trial["start"]}), {"start": 0.5})
    assert driver.values("objective")[0] == pytest.approx(0.5 * 0.9**4)


def test_the_other_callbacks_get_the_name_of_the_trial():
    seen = []

    class Tracker:
        def on_train_begin(self, args: Any, state: Any, control: Any) -> None:
            seen.append((state.is_hyper_param_search, state.trial_name, state.trial_params))

        def __deepcopy__(self, memo: Any) -> Tracker:
            return self

    config = {"learning_rate": 0.5, "data": [1, 2], "key": "hunter2"}
    trainer = make_trainer(model_init=lambda trial: make_model(), callbacks=[Tracker()])
    run(trainer, config)
    run(trainer, config, hp_name=lambda trial: f"rate {trial['learning_rate']}")
    plain = {"learning_rate": 0.5, "key": "secret('KEY')"}
    assert seen == [(True, "t1", plain), (True, "rate 0.5", plain)]


def test_several_objectives_have_numbers():
    objective = Objective(lambda metrics: (metrics["eval_loss"], metrics["rate"]), count=2)
    driver = run(make_trainer(), {"learning_rate": 0.5}, objective=objective)
    assert driver.values("objective_0") == driver.values("eval_loss")
    assert driver.values("objective_1") == [0.5] * 4


@pytest.mark.parametrize(("value", "count", "rule"), [(None, None, "a number"), ([1.0], 2, "2 numbers")])
def test_an_objective_that_is_no_number_fails_the_trial(value: Any, count: int | None, rule: str):
    driver = Driver(trial_of(make_trainer(), objective=Objective(lambda metrics: value, count)))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert f"compute_objective(metrics) must be {rule}" in failed.error.message
    assert "The metrics are ['eval_loss', 'rate']" in failed.error.message


def test_the_given_trainer_is_not_changed():
    trainer = make_trainer()
    before = (
        dict(vars(trainer)),
        dict(vars(trainer.callback_handler)),
        list(trainer.callback_handler.callbacks),
    )
    run(trainer, {"learning_rate": 0.5})
    handler = trainer.callback_handler
    assert (dict(vars(trainer)), dict(vars(handler)), list(handler.callbacks)) == before


def test_the_default_space_names_training_arguments():
    assert set(default_hp_space(None)) - {"seed"} <= set(vars(TrainingArguments()))


ERRORS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"model_init": None}, {}, "trainer.model_init must be a function that returns a model, got None"),
    ({"eval_dataset": None}, {}, "trainer.eval_dataset must be the data for evaluations"),
    ({"save_strategy": "best"}, {}, "args.save_strategy must be other than 'best'"),
    ({"skip_memory_metrics": False}, {}, "args.skip_memory_metrics must be True"),
    (
        {"eval_strategy": "no"},
        {"scheduler": ASHAScheduler()},
        "args.eval_strategy must be 'epoch' or 'steps'",
    ),
    ({}, {"direction": "down"}, "direction must be 'minimize', 'maximize' or a list of several, got 'down'"),
    ({}, {"direction": ["minimize"]}, "direction must be 'minimize', 'maximize' or a list of several"),
    ({}, {"n_trials": 0}, "n_trials must be a positive int, or -1, got 0"),
    ({}, {"compute_objective": "eval_loss"}, "compute_objective must be a function or None"),
    ({}, {"hp_name": "name"}, "hp_name must be a function or None"),
    ({}, {"num_samples": 3}, "num_samples must be left out, got 3. It follows from n_trials."),
    ({}, {"learn_from": "past"}, "learn_from must be left out, got 'past'"),
    ({}, {"hp_space": {"learning_rate": 0.1}}, "hp_space must be a function that returns the search space"),
    ({}, {"hp_space": lambda trial: None}, "hp_space(None) must be a dict of domains, got None"),
    (
        {},
        {"hp_space": lambda trial: {"rate": trial.suggest_float("rate", 0, 1)}},
        "search_alg=OptunaSearch(hp_space)",
    ),
    ({}, {"hp_space": lambda trial: {"learn": 0.1}}, "names of training arguments, got ['learn']"),
    ({}, {"ranks": {"per_host": 2}}, "ranks must be a dict with 'ranks'"),
    ({}, {"ranks": {"ranks": 2, "hosts": 1}}, "ranks must be arguments of with_ranks()"),
    ({}, {"ranks": 2, "resources_per_trial": {"cpu": 2}}, "resources_per_trial must be left out with ranks"),
    ({}, {"schedulers": None}, "Did you mean 'scheduler'?"),
]


@pytest.mark.parametrize(("trainer", "arguments", "message"), ERRORS, ids=[error[2][:30] for error in ERRORS])
def test_bad_arguments_are_refused_before_there_is_a_cluster(
    trainer: dict[str, Any], arguments: dict[str, Any], message: str
):
    space = {"hp_space": lambda trial: {"learning_rate": tune.uniform(0, 1)}}
    with pytest.raises(ConfigError) as caught:
        hyperparameter_search(make_trainer(**trainer), **{**space, **arguments})
    assert message in str(caught.value)


def test_something_else_than_a_trainer_is_refused():
    with pytest.raises(ConfigError, match="trainer must be a Trainer of Transformers, got 3"):
        hyperparameter_search(3)
