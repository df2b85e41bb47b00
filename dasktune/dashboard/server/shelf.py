"""Which experiments a server shows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import quote

from dasktune.dashboard.report.style import CARD
from dasktune.dashboard.server.feed import JournalFeed
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.sources import described
from dasktune.dashboard.text import shown
from dasktune.errors import StorageError
from dasktune.storage.driver_lock import life_sign
from dasktune.storage.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.journal_follower import JournalFollower
from dasktune.storage.location import Storage

__all__ = ["Directory", "Shelf", "Single"]

#: Around the list, so that it is in line with the card below, which Bokeh places.
_ALIGNED: Final = "10px -5px 0"

#: Experiments that are listed, the last by their names.
_MOST: Final = 500


class Shelf:
    """Experiments by name; a single one has the name ""."""

    def find(self, name: str) -> Live | None:
        """Return an experiment, None if there is none of this name."""
        raise NotImplementedError

    def listing(self) -> str:
        """Return a list of the experiments as HTML."""
        raise NotImplementedError

    def opened(self) -> list[Live]:
        """Return the experiments that somebody has asked for."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """Return the names of experiments that can be compared, the last first."""
        return []


class Single(Shelf):
    """One experiment.

    Parameters
    ----------
    live : Live
        The experiment.
    """

    def __init__(self, live: Live) -> None:
        self._live = live

    def find(self, name: str) -> Live | None:
        """Return it, whatever it is called."""
        return self._live

    def listing(self) -> str:
        """Return nothing: it is always found."""
        return ""

    def opened(self) -> list[Live]:
        """Return it."""
        return [self._live]


class Directory(Shelf):
    """A directory that is an experiment's, or has some.

    Parameters
    ----------
    storage : Storage
        The directory.

    Raises
    ------
    StorageError
        If it holds no experiment.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lives: dict[str, Live] = {}
        self._is_one = storage.exists(SPEC_FILE)
        if self._is_one:
            self._lives[""] = _live(storage)
        elif not self._names():
            raise StorageError(f"no experiment is stored at {storage}, nor directly below it")

    def find(self, name: str) -> Live | None:
        """Return an experiment, None if there is none of this name."""
        name = "" if self._is_one else name
        if name not in self._lives and name in self._names():
            self._lives[name] = _live(self._storage.child(name))
        return self._lives.get(name)

    def listing(self) -> str:
        """Return links to the experiments, in which everything that users named is escaped."""
        rows = "".join(self._row(name) for name in self._names())
        style = "".join(f"{key}:{value};" for key, value in {**CARD, "margin": _ALIGNED}.items())
        return (
            '<div style="font-size:22px;font-weight:700">Experiments</div>'
            f'<div style="color:#57606a">{escape(shown(str(self._storage), 120))}</div>'
            f'<table style="{style}border-spacing:24px 6px;text-align:left">'
            "<tr><th>name</th><th>goal</th><th>trials</th><th>created</th></tr>"
            f"{rows}</table>"
        )

    def opened(self) -> list[Live]:
        """Return the experiments that somebody has asked for."""
        return list(self._lives.values())

    def names(self) -> list[str]:
        """Return the names of the experiments, the last first; none if it is one itself."""
        return [] if self._is_one else self._names()

    def _names(self) -> list[str]:
        names = [
            name for name in self._storage.names() if self._storage.child(name).exists(SPEC_FILE)
        ]
        return names[-_MOST:][::-1]

    def _row(self, name: str) -> str:
        try:
            spec = ExperimentStore(self._storage.child(name)).spec()
        except StorageError as error:
            spec = {"metric": f"cannot be read: {error}"}
        total = spec.get("total_trials")
        created = str(spec.get("created", ""))[:16].replace("T", " ")
        cells = [_goals(spec), "any" if total is None else total, created]
        address = f"?experiment={quote(name, safe='')}"
        link = f'<a style="color:#0969da" href="{address}">{escape(shown(name, 80))}</a>'
        return f"<tr><td>{link}</td>{''.join(map(_cell, cells))}</tr>"


def _goals(spec: Mapping[str, Any]) -> str:
    """Return what is optimised and which way; anybody may have written it."""
    metrics, modes = (
        one if isinstance(one, list) else [one] for one in (spec.get("metric"), spec.get("mode"))
    )
    pairs = zip_longest(metrics, modes)
    named = [f"{metric} ({mode})" if mode else str(metric) for metric, mode in pairs]
    return ", ".join(named) if metrics != [None] else "no metric"


def _cell(value: object) -> str:
    return f"<td>{escape(shown(value, 80))}</td>"


def _live(storage: Storage) -> Live:
    spec = ExperimentStore(storage).spec()
    described(spec)  # for what it raises
    look = partial(life_sign, storage)
    return Live(partial(described, spec), JournalFeed(JournalFollower(storage), look))
