"""A pytest plugin that runs tests with the searches of dasktune in the place of scikit-learn's.

For scikit-learn's own tests, in a process of their own::

    python -m pytest -p swapped --searches-on=threads <site-packages>/sklearn/model_selection/tests
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

import dasktune.sklearn
from dasktune.sklearn.fits.engine import Engine

NAMES = ("GridSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV", "RandomizedSearchCV")

#: How many fits have run where: what is swapped in must be what was tested.
_fits: Counter[str] = Counter()

#: Outcome of each test; of its set-up, where it did not come further.
_outcomes: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    # The first that a plugin hears: before any of their modules takes the names.
    for name in NAMES:
        setattr(model_selection, name, getattr(dasktune.sklearn, name))
    kinds = ["process", "threads", "processes"]
    parser.addoption("--searches-on", choices=kinds, default="process", help="where fits run")
    parser.addoption("--tell", metavar="PATH", help="a file for what has come of it, as JSON")


@pytest.fixture(autouse=True, scope="session")
def _cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """One cluster for all tests, which every search finds by itself."""
    kind = request.config.getoption("--searches-on")
    if kind == "process":
        yield
        return
    from distributed import Client, LocalCluster

    processes = kind == "processes"
    cluster = LocalCluster(
        n_workers=2 if processes else 1,
        threads_per_worker=1 if processes else 2,
        processes=processes,
        dashboard_address=None,
    )
    with cluster, Client(cluster):
        yield


@pytest.fixture(autouse=True, scope="session")
def _counted() -> Iterator[None]:
    run = Engine.run

    def counted(self: Any, fits: Any, splits: Any) -> Any:
        _fits["here" if self._backend.in_process else "cluster"] += len(fits)
        return run(self, fits, splits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "run", counted)
        yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("::")[2]
    if report.when == "call" or report.outcome != "passed":
        _outcomes[name] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--tell")
    if path:
        Path(path).write_text(json.dumps({"fits": _fits, "outcomes": _outcomes}))
