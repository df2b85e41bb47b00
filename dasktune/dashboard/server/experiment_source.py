"""Find the experiments that a server shows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from html import escape
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import quote

from dasktune.dashboard.labels import label
from dasktune.dashboard.model.load import empty_projection
from dasktune.dashboard.report.style import CARD
from dasktune.dashboard.server.feed import JournalFeed
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.errors import StorageError, TuneError
from dasktune.storage.experiment.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.storage.leader.leader_lock import leader_status

__all__ = ["ExperimentFolder", "ExperimentSource", "SingleExperiment"]

logger = logging.getLogger(__name__)

#: Margin that aligns the list with the card below, which Bokeh places.
_ALIGNED: Final = "10px -5px 0"

#: Maximum number of experiments in the list. If there are more, the last ones by name are listed.
_MOST: Final = 500
#: Maximum number of other entries in the list.
_MOST_BROKEN: Final = 20


class ExperimentSource:
    """Finds experiments by their names; a single experiment has the name ``""``."""

    def find(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name; None if there is none."""
        raise NotImplementedError

    def listing(self) -> str:
        """Return a list of the experiments as HTML."""
        raise NotImplementedError

    def opened(self) -> list[LiveExperiment]:
        """Return the experiments that a viewer has opened."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """Return the names of experiments that can be compared, in descending order."""
        return []


class SingleExperiment(ExperimentSource):
    """One experiment.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    """

    def __init__(self, live: LiveExperiment) -> None:
        self._live = live

    def find(self, name: str) -> LiveExperiment | None:
        """Return the single experiment, for any name."""
        return self._live

    def listing(self) -> str:
        """Return an empty text, as there is no list."""
        return ""

    def opened(self) -> list[LiveExperiment]:
        """Return the single experiment."""
        return [self._live]


class ExperimentFolder(ExperimentSource):
    """A directory that is an experiment, or that contains experiments.

    Parameters
    ----------
    storage : Storage
        The directory.

    Raises
    ------
    StorageError
        If it contains no experiment.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lives: dict[str, LiveExperiment] = {}
        with reading(SPEC_FILE, storage):
            self._is_one = storage.exists(SPEC_FILE)
        if self._is_one:
            self._lives[""] = _live(storage)
        elif not self._entries()[0]:
            raise StorageError(f"no experiment is stored at {storage}, nor directly below it")

    def find(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name; None if there is none, or it cannot be read."""
        name = "" if self._is_one else name
        if name not in self._lives and name in self._entries()[0]:
            try:
                self._lives[name] = _live(self._storage.child(name))
            except TuneError as error:
                logger.info("the dashboard cannot show %r: %s", name, error)
        return self._lives.get(name)

    def listing(self) -> str:
        """Return links to the experiments, in which all user text is escaped."""
        readable, broken = self._entries()
        rows = "".join(self._row(name) for name in readable)
        rows += "".join(
            f"<tr>{_cell(name)}{_cell(f'cannot be read: {error}')}<td></td><td></td></tr>"
            for name, error in broken.items()
        )
        style = "".join(f"{key}:{value};" for key, value in {**CARD, "margin": _ALIGNED}.items())
        return (
            '<div style="font-size:22px;font-weight:700">Experiments</div>'
            f'<div style="color:#57606a">{escape(label(str(self._storage), 120))}</div>'
            f'<table style="{style}border-spacing:24px 6px;text-align:left">'
            "<tr><th>name</th><th>goal</th><th>trials</th><th>created</th></tr>"
            f"{rows}</table>"
        )

    def opened(self) -> list[LiveExperiment]:
        """Return the experiments that a viewer has opened."""
        return list(self._lives.values())

    def names(self) -> list[str]:
        """Return the names of the experiments in descending order; none for a single experiment."""
        return [] if self._is_one else self._entries()[0]

    def _entries(self) -> tuple[list[str], dict[str, str]]:
        """Return the names of experiments, newest first, and why other entries cannot be read.

        Other users may be able to create names here. One that is a link or a pipe, or that no
        experiment can have, must not hide the experiments.
        """
        readable: list[str] = []
        broken: dict[str, str] = {}
        with reading("its directories", self._storage):
            names = self._storage.names()
        for name in names:
            try:
                if self._storage.child(name).exists(SPEC_FILE):
                    readable.append(name)
            except (OSError, TuneError) as error:
                if len(broken) < _MOST_BROKEN:
                    broken[name] = str(error)
        return readable[-_MOST:][::-1], broken

    def _row(self, name: str) -> str:
        try:
            spec = ExperimentStore(self._storage.child(name)).spec()
        except TuneError as error:
            spec = {"metric": f"cannot be read: {error}"}
        total = spec.get("total_trials")
        created = str(spec.get("created", ""))[:16].replace("T", " ")
        cells = [_goals(spec), "any" if total is None else total, created]
        address = f"?experiment={quote(name, safe='')}"
        link = f'<a style="color:#0969da" href="{address}">{escape(label(name, 80))}</a>'
        return f"<tr><td>{link}</td>{''.join(map(_cell, cells))}</tr>"


def _goals(spec: Mapping[str, Any]) -> str:
    """Return the goals in ``experiment.json`` as text; its content is not trusted."""
    metrics, modes = (
        one if isinstance(one, list) else [one] for one in (spec.get("metric"), spec.get("mode"))
    )
    pairs = zip_longest(metrics, modes)
    named = [f"{metric} ({mode})" if mode else str(metric) for metric, mode in pairs]
    return ", ".join(named) if metrics != [None] else "no metric"


def _cell(value: object) -> str:
    return f"<td>{escape(label(value, 80))}</td>"


def _live(storage: Storage) -> LiveExperiment:
    spec = ExperimentStore(storage).spec()
    empty_projection(spec)  # raises if the spec is invalid
    look = partial(leader_status, storage)
    return LiveExperiment(partial(empty_projection, spec), JournalFeed(JournalFollower(storage), look))
