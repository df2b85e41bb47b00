from __future__ import annotations

import json
import sys

import pytest

import dasktune as tune
from dasktune.cli.arguments import pairs
from dasktune.cli.loading import load_object, load_space, space_of
from dasktune.errors import ConfigError

SCRIPT = """
import dasktune as tune

class Models:
    @staticmethod
    def small(config):
        return {"loss": 1.0}

def train(config):
    return {"loss": config["x"]}

space = {"x": tune.uniform(0, 1)}

def make_space():
    return {"y": 2}

number = 3
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    place = tmp_path / "cli_script_to_load.py"
    place.write_text(SCRIPT)
    yield str(place)
    sys.modules.pop("cli_script_to_load", None)


def test_a_function_of_a_script_is_found_once_and_knows_its_module(script):
    train = load_object(f"{script}:train", "TRAINABLE")
    assert train({"x": 2}) == {"loss": 2}
    assert sys.modules[train.__module__].train is train
    assert load_object(f"{script}:train", "TRAINABLE") is train
    assert load_object(f"{script}:Models.small", "TRAINABLE")({}) == {"loss": 1.0}


def test_a_script_that_would_run_an_experiment_while_it_is_imported_is_refused(tmp_path, script):
    with open(script, "a") as file:
        file.write('\ntune.Tuner(train, param_space={"x": 1.0}).fit()\n')
    with pytest.raises(ConfigError, match=r"must be under `if __name__.*cli_script_to_load"):
        load_object(f"{script}:train", "TRAINABLE")
    assert "cli_script_to_load" not in sys.modules


def test_a_function_of_a_module_is_found_below_the_working_directory(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert load_object("cli_script_to_load:train", "TRAINABLE")({"x": 3}) == {"loss": 3}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("train", r"TRAINABLE must be script.py:name or package.module:name, got 'train'"),
        (":train", "script.py:name"),
        ("{script}:nothing", r"it has Models, make_space, train\), got 'nothing'"),
        ("{folder}/no.py:train", "must name an existing script, got '.*no.py'"),
        ("{folder}/broken.py:train", "importable, got ZeroDivisionError: division by zero"),
        ("no_such_package_at_all:train", "importable, got ModuleNotFoundError"),
        ("{folder}/json.py:train", "rename the script"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_its_reason(named, message, script, tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "json.py").write_text("")
    with pytest.raises(ConfigError, match=message):
        load_object(named.format(script=script, folder=tmp_path), "TRAINABLE")
    assert "broken" not in sys.modules


SPACE = {
    "lr": ["loguniform", 1e-4, 1e-1],
    "opt": {"name": ["choice", ["sgd", ["adam", 0.9], ["uniform", 0, 1]]]},
    "depth": ["grid_search", [1, 2]],
    "layers": [64, ["randint", 1, 9]],
    "epochs": 20,
    "other": {"$domain": "uniform", "lower": 0, "upper": 1},
}


def test_a_space_is_plain_values_in_which_lists_that_begin_with_a_domains_name_are_domains():
    space = load_space(json.dumps(SPACE))
    assert repr(space["lr"]) == repr(tune.loguniform(1e-4, 1e-1))
    inner = ["sgd", ["adam", 0.9], tune.uniform(0, 1)]
    assert repr(space["opt"]["name"]) == repr(tune.choice(inner))
    assert space["depth"] == tune.grid_search([1, 2])
    assert space["layers"][0] == 64
    assert repr(space["layers"][1]) == repr(tune.randint(1, 9))
    assert space["epochs"] == 20
    assert repr(space["other"]) == repr(tune.uniform(0, 1))


def test_a_space_may_stand_in_a_file_or_in_python(script, tmp_path):
    (tmp_path / "space.json").write_text(json.dumps(SPACE))
    assert repr(load_space(str(tmp_path / "space.json"))) == repr(space_of(SPACE))
    assert repr(load_space(f"{script}:space")) == repr({"x": tune.uniform(0, 1)})
    assert load_space(f"{script}:make_space") == {"y": 2}
    assert load_space(None) == {}


def test_a_space_may_stand_in_yaml(tmp_path):
    yaml = pytest.importorskip("yaml")
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE, sort_keys=False))
    assert repr(load_space(str(tmp_path / "space.yaml"))) == repr(space_of(SPACE))
    (tmp_path / "evil.yml").write_text("x: !!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match="must be well-formed"):
        load_space(str(tmp_path / "evil.yml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"lr": ["uniform", 2, 1]}', "--space: lr is not a valid uniform: "),
        ('{"net": {"lr": ["uniform", 1]}}', "--space: net/lr is not a valid uniform: "),
        ('{"lr": ', "must be well-formed"),
        ("/nowhere/space.json", "must be a readable file, got '/nowhere/space.json'"),
        ("lr", "a JSON object, a .json or .yaml file, or script_or_module:name, got 'lr'"),
        ("math:pi", "must name a mapping"),
        ('{"f": {"$object": "<function>"}}', "made of plain values and domains"),
        ("{" + '"a":{' * 100_000, "must be well-formed"),
    ],
)
def test_what_is_no_space_is_refused_with_its_reason(text, message):
    with pytest.raises(ConfigError, match=message):
        load_space(text)


def test_a_list_is_no_space():
    with pytest.raises(ConfigError, match=r"an object of names and values, got \[1\]"):
        space_of([1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "--stop must be KEY=VALUE, got 'a'"),
        (["=1"], "--stop must be KEY=VALUE, got '=1'"),
        (["a=1", "a=2"], "--stop must be given once for each key, got 'a=2'"),
        ([f"a={'[' * 100_000}"], "nested less deeply"),
    ],
)
def test_pairs_that_are_none_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        pairs("--stop", given)
