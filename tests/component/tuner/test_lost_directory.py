"""Experiments whose directory is taken away while they run."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import dasktune as tune
from dasktune.errors import StorageError
from dasktune.sklearn.fits.search_experiment import InProcessTuner


class Train(tune.Trainable):
    """Takes the directory of the experiment away at its third step."""

    newest = 0

    def setup(self, config: dict[str, Any]) -> None:
        self.place, self.act, self.steps = Path(config["place"]), config["act"], config["steps"]

    def step(self) -> dict[str, Any]:
        if self.iteration == 2:
            # In one step, as the driver may write meanwhile.
            os.rename(self.place / "run", self.place / "moved")
            if self.act != "rename":
                shutil.rmtree(self.place / "moved")
            if self.act == "replace":
                (self.place / "run").mkdir()
        if self.iteration > 2:
            time.sleep(0.001)
        Train.newest = self.iteration + 1
        return {"done": self.iteration + 1 == self.steps}


def fit(place: Path, act: str, *, steps: int, driver_ttl: float) -> None:
    InProcessTuner(
        Train,
        param_space={"place": str(place), "act": act, "steps": steps},
        run_config=tune.RunConfig(name="run", storage_path=place, verbose=0, driver_ttl=driver_ttl),
    ).fit()


# What is deleted is looked for again for 30 s.
@pytest.mark.parametrize("act", [pytest.param("delete", marks=pytest.mark.slow), "rename", "replace"])
def test_an_experiment_whose_directory_is_taken_away_ends_with_what_to_do(tmp_path: Path, act: str) -> None:
    with pytest.raises(StorageError, match=rf"{tmp_path}/run was .* Tuner.restore\(\)"):
        fit(tmp_path, act, steps=500_000, driver_ttl=0.1)
    assert Train.newest < 500_000


def test_it_is_noticed_at_the_end_at_the_latest(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=rf"{tmp_path}/run was renamed to {tmp_path}/moved while"):
        fit(tmp_path, "rename", steps=4, driver_ttl=3600)
    results = tune.Tuner.restore(tmp_path / "moved", Train).get_results()
    assert results[0].metrics["training_iteration"] == 4
