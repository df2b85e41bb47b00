"""What ``tune.run`` makes of its arguments before anything runs."""

from __future__ import annotations

import pytest

from dasktune.classic import Experiment
from dasktune.classic.run_arguments import as_experiment, as_experiments, as_resume_config
from dasktune.config.resume_config import ResumeConfig, ResumeType
from dasktune.errors import ConfigError, TuneError
from dasktune.registry import register_trainable
from dasktune.trainable.api.binding import default_resources


def train(config):
    return {"loss": 1.0}


class TestExperiment:
    def test_a_wrong_argument_shows_at_once(self):
        with pytest.raises(ConfigError, match="num_samples must be a positive int"):
            Experiment("a", train, num_samples=0)

    def test_it_shows_what_it_is(self):
        assert repr(Experiment("a", "known", num_samples=2)) == ("Experiment('a', 'known', num_samples=2)")

    def test_a_dict_must_say_what_to_run(self):
        with pytest.raises(ConfigError, match="run must be a trainable or its name, got None"):
            Experiment.from_json("a", {"config": {}})

    def test_arguments_besides_it_fill_what_it_leaves_open(self):
        experiment = Experiment("a", train, num_samples=2).with_options({"verbose": 0})
        assert experiment.options == {"num_samples": 2, "verbose": 0}
        with pytest.raises(ConfigError, match="num_samples must be given once, got 2 in the"):
            experiment.with_options({"num_samples": 3})

    def test_resources_go_to_the_trainable_extra_ones_into_a_second_bundle(self):
        register_trainable("classic-train", train)
        request = {"cpu": 2, "extra_cpu": 3, "custom_resources": {"TPU": 1}}
        trainable = Experiment("a", "classic-train", resources_per_trial=request)._trainable()
        assert default_resources(trainable, {}).bundles == [{"CPU": 2, "TPU": 1}, {"CPU": 3}]

    def test_it_makes_a_tuner_of_its_arguments(self, tmp_path):
        experiment = Experiment("a", train, storage_path=tmp_path, metric="loss", mode="min")
        tuner = experiment.tuner(resume=ResumeConfig())
        with pytest.raises(ConfigError, match="after fit"):
            tuner.get_results()

    def test_what_has_no_name_cannot_be_resumed(self):
        with pytest.raises(ConfigError, match="name must be the name of the experiment to resume"):
            Experiment("", train).tuner(resume=ResumeConfig())


class TestWhatMayBeResumed:
    @pytest.mark.parametrize("resume", [None, False])
    def test_nothing_by_default(self, resume):
        assert as_resume_config(resume, None) is None

    @pytest.mark.parametrize(
        ("resume", "unfinished", "errored"),
        [
            (True, "resume", "skip"),
            ("AUTO", "resume", "skip"),
            ("AUTO+ERRORED", "resume", "resume"),
            ("AUTO+RESTART_ERRORED", "resume", "restart"),
            ("AUTO+ERRORED_ONLY", "skip", "resume"),
            ("AUTO+RESTART_ERRORED_ONLY", "skip", "restart"),
        ],
    )
    def test_a_word_says_what_becomes_of_the_trials(self, resume, unfinished, errored):
        config = as_resume_config(resume, None)
        assert config == ResumeConfig(unfinished=unfinished, errored=ResumeType(errored))

    @pytest.mark.parametrize("resume", ["LOCAL", "PROMPT", "AUTO+", "AUTO+ALL", "ERRORED", 1.5])
    def test_other_words_are_refused(self, resume):
        with pytest.raises(ConfigError, match=r"resume must be True, False, 'AUTO', 'AUTO\+ERRORED'"):
            as_resume_config(resume, None)

    def test_a_configuration_says_it_alone(self):
        config = ResumeConfig(finished="restart")
        assert as_resume_config(None, config) is config
        with pytest.raises(ConfigError, match="resume must be left out with resume_config"):
            as_resume_config(True, config)
        with pytest.raises(ConfigError, match="resume_config must be a ResumeConfig"):
            as_resume_config(None, "AUTO")


class TestWhatIsRun:
    def test_experiments_come_alone_in_dicts_and_in_lists(self):
        one, two = Experiment("one", train), Experiment("two", train)
        assert as_experiments(one) == [one]
        found = as_experiments([one, {"two": two, "three": {"run": train, "num_samples": 3}}])
        assert [each.name for each in found] == ["one", "two", "three"]
        assert found[2].options == {"num_samples": 3}

    @pytest.mark.parametrize("given", [train, "train", {"a": train}, [3]])
    def test_anything_else_is_refused(self, given):
        with pytest.raises(ConfigError, match=r"Write \{'name': \{'run': train\}\}"):
            as_experiments(given)

    def test_an_experiment_keeps_its_name(self):
        one = Experiment("one", train)
        assert as_experiment(one, None) is one
        with pytest.raises(ConfigError, match="name must be 'one' as in the Experiment"):
            as_experiment(one, "two")
        assert as_experiment(train, "two").name == "two"


def test_a_class_that_says_what_it_needs_takes_no_others():
    from dasktune import PlacementGroupFactory, Trainable

    class Greedy(Trainable):
        @classmethod
        def default_resource_request(cls, config):
            return PlacementGroupFactory([{"CPU": 4}])

        def step(self):
            return {"done": True}

    trainable = Experiment("a", Greedy, resources_per_trial={"cpu": 1})._trainable()
    with pytest.raises(TuneError, match="resources must be given in one place"):
        default_resources(trainable, {})
