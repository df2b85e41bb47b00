"""A pytest plugin that runs tests with the searches of dasktune in the place of scikit-learn's.

For scikit-learn's own tests, in a process of their own::

    python -m pytest -p swapped --searches-on=threads <site-packages>/sklearn/model_selection/tests
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

import dasktune.sklearn
from dasktune.sklearn.engine import Engine

for _name in dasktune.sklearn.__all__:
    setattr(model_selection, _name, getattr(dasktune.sklearn, _name))

#: How many fits have run where: what is swapped in must be what was tested.
ran: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let it be said where the fits run."""
    parser.addoption(
        "--searches-on", choices=["process", "threads", "processes"], default="process"
    )


@pytest.fixture(autouse=True, scope="session")
def _cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """One cluster for all tests, which every search finds by itself."""
    kind = request.config.getoption("--searches-on")
    if kind == "process":
        yield
        return
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=2 if kind == "processes" else 1,
        threads_per_worker=1 if kind == "processes" else 2,
        processes=kind == "processes",
        dashboard_address=None,
    )
    with cluster, Client(cluster):
        yield


@pytest.fixture(autouse=True, scope="session")
def _counted() -> Iterator[None]:
    run = Engine.run

    def counted(self, fits, splits):
        ran["here" if self._site.in_process else "cluster"] += len(fits)
        return run(self, fits, splits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "run", counted)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where fits ran."""
    terminalreporter.write_line(f"fits: {ran['here']} here, {ran['cluster']} on the cluster")
