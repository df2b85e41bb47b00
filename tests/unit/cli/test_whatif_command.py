"""What ``dasktune whatif`` shows."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from cli_fixtures import SPEC

from dasktune.config import TuneConfig
from dasktune.space import uniform
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.testing import simulate


def train(config: dict[str, Any]) -> Any:
    for epoch in range(1, 10):
        yield {"loss": config["x"] + 1 / epoch}, 60.0


@pytest.fixture(scope="module")
def full(tmp_path_factory: Any) -> str:
    """An experiment of 25 full trainings."""
    storage = Storage(tmp_path_factory.mktemp("whatif") / "full")
    store = ExperimentStore(storage)
    store.create(SPEC)
    simulate(
        train,
        param_space={"x": uniform(0, 1)},
        tune_config=TuneConfig(metric="loss", mode="min", num_samples=25, seed=0),
        slots=5,
        store=store,
    )
    store.close()
    return storage.url


def test_the_table_ends_with_a_recommendation(full, dasktune):
    code, out, err = dasktune("whatif", full, "--orders", "20")
    assert (code, err) == (0, "")
    assert out.startswith("25 full curves of up to 9 iterations, 5 trials at a time, 20 random orders")
    assert "PromotingASHAScheduler(grace_period=1)" in out
    assert "\nUse " in out


def test_json_has_the_numbers(full, dasktune):
    options = ["--orders", "20", "--scheduler", "asha", "--scheduler", "asha:max_t=9,grace_period=3"]
    code, out, _ = dasktune("whatif", full, *options, "--format", "json", "--workers", "25")
    found = json.loads(out)
    assert code == 0
    assert [row["scheduler"] for row in found["rows"]] == [
        "FIFOScheduler",
        "asha",
        "asha:max_t=9,grace_period=3",
    ]
    assert found["rows"][0]["hours"] == pytest.approx(9 / 60)
    assert found["recommended"] == "asha"
    assert found["recommendation"].startswith("Use asha")
    assert found["censored"] == {}


def test_a_scheduler_with_arguments_ends_with_the_curves_too(full, dasktune):
    options = [f"--scheduler=hyperband{more}" for more in ("", ":reduction_factor=3", ":max_t=9")]
    _, out, _ = dasktune("whatif", full, "--orders", "20", *options, "--format", "json")
    one, *others = [{**row, "scheduler": ""} for row in json.loads(out)["rows"][1:]]
    assert others == [one, one]


def test_csv_has_the_intervals_as_columns(full, dasktune):
    _, out, _ = dasktune("whatif", full, "--orders", "20", "--scheduler", "asha", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 2
    assert float(rows[1]["iterations_low"]) <= float(rows[1]["iterations"]) < 1


def test_an_experiment_without_full_curves_is_an_error_with_a_way_out(path, dasktune):
    code, _, err = dasktune("whatif", path)
    assert code == 2
    assert "at least 20 full learning curves" in err
    assert "without a scheduler" in err


def test_an_unknown_scheduler_is_an_error(full, dasktune):
    code, _, err = dasktune("whatif", full, "--scheduler", "pasha")
    assert code == 2
    assert "pasha" in err
