from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.trainable.api.trainable import Trainable


class Model(Trainable):
    def setup(self, config):
        self.weight = config.get("weight", 0)
        self.clean = False

    def step(self):
        self.weight += 1
        return {"weight": self.weight, "timesteps_this_iter": 10}

    def save_checkpoint(self, checkpoint_dir):
        return {"weight": self.weight}

    def load_checkpoint(self, checkpoint):
        self.weight = checkpoint["weight"]

    def reset_config(self, new_config):
        self.weight = new_config["weight"]
        return True

    def cleanup(self):
        self.clean = True

    def _export_model(self, export_formats, export_dir):
        return {name: f"{export_dir}/{name}" for name in export_formats}


class Bare(Trainable):
    def step(self):
        return {}


def test_steps_are_done_until_there_are_enough():
    model = Model({})
    assert [one["weight"] for one in model.train_buffered(3600.0, max_buffer_length=3)] == [1, 2, 3]
    assert len(model.train_buffered(0.0)) == 1


@pytest.mark.parametrize("name", ["done", "should_checkpoint"])
def test_a_result_may_say_that_it_is_the_last(name):
    class Short(Bare):
        def step(self):
            return {name: self.iteration == 1}

    assert [one[name] for one in Short().train_buffered(3600.0)] == [False, True]


def test_what_is_filled_in_can_be_asked_for_and_counts_nothing():
    model = Model({})
    model.train()
    for _ in range(2):
        filled = model.get_auto_filled_metrics()
        assert (filled["training_iteration"], filled["iterations_since_restore"]) == (1, 1)
        assert {"pid", "hostname", "node_ip", "date", "time_total_s"} <= filled.keys()
    assert model.train()["training_iteration"] == 2


def test_a_model_trains_saves_and_is_restored_without_a_trial(tmp_path):
    model = Model({"weight": 5})
    model.train()
    result = model.train()
    assert result["trial_id"] == "default"
    assert (result["weight"], result["timesteps_total"]) == (7, 20)
    checkpoint = model.save(str(tmp_path / "saved"))
    for source in (checkpoint, tmp_path / "saved"):
        other = Model()
        other.restore(source)
        assert (other.weight, other.iteration, other.training_iteration) == (7, 2, 2)
        assert other.train()["timesteps_total"] == 30


def test_a_checkpoint_goes_to_a_temporary_directory_if_none_is_named():
    model = Model()
    model.train()
    with model.save().as_directory() as directory:
        other = Model()
        other.restore(directory)
    assert other.weight == 1


def test_the_state_is_the_counters_and_the_last_result():
    model = Model({"weight": 1})
    assert model.get_config() == {"weight": 1}
    result = model.train()
    state = model.get_state()
    assert (state["training_iteration"], state["timesteps_total"]) == (1, 10)
    assert state["last_result"] == result


def test_a_reset_model_counts_from_the_beginning():
    model = Model({"weight": 1})
    model.train()
    assert model.reset({"weight": 9})
    assert (model.iteration, model.config) == (0, {"weight": 9})
    assert model.train()["weight"] == 10


def test_a_model_that_cannot_be_reset_says_so():
    bare = Bare({"a": 1})
    assert not bare.reset({"a": 2})
    assert bare.config == {"a": 1}


def test_defaults_of_the_hooks():
    bare = Bare()
    assert bare.config == {}
    assert not bare.can_save
    assert Model.default_resource_request({}) is None
    assert Model.resource_help({}) == ""
    assert (bare.trial_id, bare.trial_name, bare.trial_resources, bare.logdir) == (None,) * 4
    bare.stop()
    with pytest.raises(NotImplementedError, match="Bare has no load_checkpoint"):
        bare.load_checkpoint({})


def test_a_model_is_exported_in_each_format(tmp_path):
    target = str(tmp_path / "exported")
    assert Model().export_model("onnx", target) == {"onnx": f"{target}/onnx"}
    assert set(Model().export_model(["onnx", "h5"], target)) == {"onnx", "h5"}
    assert Bare().export_model(["onnx"], target) == {}


def test_stopping_cleans_up():
    model = Model()
    model.stop()
    assert model.clean


def test_a_path_elsewhere_is_refused(tmp_path):
    class Elsewhere(Model):
        def save_checkpoint(self, checkpoint_dir):
            return str(tmp_path)

    with pytest.raises(ConfigError, match="Write the files into that directory"):
        Elsewhere().save()
