"""What trials and their directories are called."""

from __future__ import annotations

from typing import Any

import pytest

from dasktune.callback import TrialStorage
from dasktune.config import TuneConfig
from dasktune.errors import ConfigError
from dasktune.runner.naming import Naming
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

PLACES = TrialStorage(trainable_name="train", storage=None, checkpoint=lambda record: None)


class Trials:
    """Names one trial after the other, as a runner does."""

    def __init__(self, **functions: Any) -> None:
        self.trials: dict[str, Trial] = {}
        self.naming = Naming(TuneConfig(**functions), PLACES, self.trials)

    def add(self, **config: Any) -> Trial:
        key = f"abcde_{len(self.trials):05d}"
        request = PlacementGroupFactory([{"CPU": 1}])
        trial = Trial(trial_id=key, config=config, resources=request, tag="x=1")
        self.naming.name(trial)
        self.trials[key] = trial
        return trial


def test_by_default_the_id_is_the_name_of_all():
    trial = Trials().add()
    assert (trial.name, trial.dirname, trial.folder) == ("", "", trial.trial_id)


def test_the_functions_are_given_the_trial_and_the_second_one_its_name():
    trials = Trials(
        trial_name_creator=lambda trial: f"{trial.trainable_name} {trial.config['lr']}",
        trial_dirname_creator=lambda trial: f"{trial}-{trial.experiment_tag}-{trial.trial_id}",
    )
    trial = trials.add(lr=0.1)
    assert trial.name == "train 0.1"
    assert trial.folder == "train 0.1-x=1-abcde_00000"


def test_a_directory_has_one_trial_whatever_the_disk_makes_of_case():
    trials = Trials(trial_dirname_creator=lambda trial: trial.config["name"])
    names = ["run", "run", "RUN", "run_1", "abcde_00000"]
    found = [trials.add(name=name).folder for name in names]
    assert found == ["run", "run_1", "RUN_2", "run_1_1", "abcde_00000"]


def test_two_forms_of_a_name_are_one_directory():
    trials = Trials(trial_dirname_creator=lambda trial: trial.config["name"])
    assert [trials.add(name=name).folder for name in ("größe", "gro\u0308ße")] == ["größe", "größe_1"]


@pytest.mark.parametrize("name", ["a/b", "..", "", "a" * 201, ".hidden", None, 3, "a\nb", "a\u200bb"])
def test_a_directory_must_be_safe(name: Any):
    with pytest.raises(ConfigError, match="trial_dirname_creator must be a function that returns"):
        Trials(trial_dirname_creator=lambda trial: name).add()


@pytest.mark.parametrize("name", ["", None, 3, "two\nlines"])
def test_a_name_must_be_a_line(name: Any):
    with pytest.raises(ConfigError, match="trial_name_creator must be a function that returns"):
        Trials(trial_name_creator=lambda trial: name).add()


def test_a_function_that_raises_is_named_with_the_trial():
    with pytest.raises(ConfigError, match=r"KeyError\('lr'\) for abcde_00000 with {'x': 1}"):
        Trials(trial_name_creator=lambda trial: trial.config["lr"]).add(x=1)


def test_what_is_no_function_is_refused_at_once():
    with pytest.raises(ConfigError, match="trial_dirname_creator must be a function of a trial"):
        TuneConfig(trial_dirname_creator="{trial_id}")
