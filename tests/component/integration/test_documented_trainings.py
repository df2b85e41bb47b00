"""What the page on training packages shows is run as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from trial_run_kit import Driver

from dasktune.storage.fs.storage import Storage
from dasktune.trainable.reporting.trial_messages import Ended, PauseAnswer, Paused
from dasktune.trial.milestone import Milestone

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"

#: Heading, what must be installed, configuration, results of a whole trial.
TRAININGS = [
    ("XGBoost", "xgboost", {"eta": 0.3, "max_depth": 2}, 100),
    ("LightGBM", "lightgbm", {"learning_rate": 0.1, "num_leaves": 4}, 100),
    ("PyTorch Lightning", "lightning", {"rate": 0.01}, 10),
    ("Keras", "keras", {"rate": 0.01}, 10),
    ("PyTorch", "torch", {"rate": 0.01}, 10),
]


def shown(heading: str) -> str:
    """Return the code below a heading."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    [code] = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    return code


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("heading", "package", "config", "results"), TRAININGS, ids=[row[1] for row in TRAININGS]
)
def test_what_is_shown_trains_pauses_and_resumes(
    heading: str,
    package: str,
    config: dict[str, float],
    results: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        __import__(package)
    except ImportError as error:
        pytest.skip(str(error))
    page = ModuleType("shown_on_the_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    exec(compile(shown(heading), str(PAGE), "exec"), vars(page))
    half = results // 2
    storage = Storage(str(tmp_path))
    milestones = (Milestone("training_iteration", float(half)),)
    begun = Driver(page.train, config=config, storage=storage, milestones=milestones)
    begun.awaiting()
    begun.run.answer(PauseAnswer())
    assert isinstance(begun.end(), Paused)
    record = begun.results[-1].checkpoint
    assert record is not None
    rest = Driver(
        page.train,
        config=config,
        storage=storage,
        incarnation=2,
        checkpoint=record,
        next_checkpoint=half,
    )
    last = rest.end()
    assert isinstance(last, Ended), last
    assert rest.values("training_iteration") == list(range(half + 1, results + 1))
    assert rest.values("loss")[-1] < begun.values("loss")[0]
