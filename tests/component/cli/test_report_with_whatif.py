"""A report that says what other schedulers would have cost."""

from __future__ import annotations

from typing import Any

import pytest
from cli_fixtures import SPEC

from dasktune.config import TuneConfig
from dasktune.space import uniform
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.testing import simulate


def train(config: dict[str, Any]) -> Any:
    for epoch in range(1, 4):
        yield {"loss": config["x"] + 1 / epoch}, 60.0


@pytest.mark.slow
def test_a_report_has_the_costs_of_schedulers_only_on_request(tmp_path, dasktune):
    store = ExperimentStore(Storage(tmp_path / "full"))
    store.create(SPEC)
    config = TuneConfig(metric="loss", mode="min", num_samples=20, seed=0)
    simulate(train, param_space={"x": uniform(0, 1)}, tune_config=config, slots=5, store=store)
    store.close()
    pages = {}
    for name, options in (("with", ["--whatif"]), ("without", [])):
        page = tmp_path / f"{name}.html"
        assert dasktune("report", str(tmp_path / "full"), "-o", str(page), *options)[0] == 0
        pages[name] = page.read_text(encoding="utf-8")
    assert "What schedulers would have cost" in pages["with"]
    assert "20 full curves of up to 3 iterations" in pages["with"]
    assert "What schedulers would have cost" not in pages["without"]


def test_without_full_curves_the_report_is_written_without_the_costs(path, tmp_path, dasktune):
    page = tmp_path / "page.html"
    code, out, err = dasktune("report", path, "-o", str(page), "--whatif")
    assert (code, out) == (2, f"{page}\n")
    assert "the report is without the costs of other schedulers: the experiment must have at least 20" in err
    assert "What schedulers would have cost" not in page.read_text(encoding="utf-8")
