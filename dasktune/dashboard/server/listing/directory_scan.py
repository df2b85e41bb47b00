"""`DirectoryScan`: find the experiments in a directory, a little at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from dasktune.errors import StorageError, TuneError
from dasktune.storage.experiment.experiment_store import SPEC_FILE
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage

#: Maximum number of experiments. If there are more, the last ones by name are listed.
_MOST: Final = 500
#: Maximum number of entries that cannot be read.
_MOST_BROKEN: Final = 20


class DirectoryScan:
    """Which entries of a directory are experiments.

    The names take one request to the storage, and each entry takes one more, which lasts tens of
    milliseconds in an object store. So an entry that is an experiment is looked at once, and the
    others again only after all names that are new.

    Other users may be able to create names here. One that is a link or a pipe, or that no
    experiment can have, must not hide the experiments.

    One thread at a time calls `scan_some`; any thread reads the attributes, which are replaced and
    never changed in place.

    Parameters
    ----------
    storage : Storage
        The directory.
    clock : callable, default=time.monotonic
        Returns seconds.

    Attributes
    ----------
    experiments : list of str
        The names of the experiments that have been found, the last one first.
    broken : dict of str to str
        Why other entries cannot be read, by their names.
    read_at : float or None
        When the names that this is based on were requested, by the clock; None before the first
        answer.
    error : str
        Why the names could not be read the last time; empty if they could.
    """

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        # Without retries: the next look is near, and the error is shown meanwhile.
        self._storage, self._clock = storage.with_retry(0.0), clock
        self.experiments: list[str] = []
        self.broken: dict[str, str] = {}
        self.read_at: float | None = None
        self.error = ""
        #: All names in descending order; those of experiments; and those that were looked at.
        self._names: list[str] = []
        self._known: set[str] = set()
        self._seen: set[str] = set()
        #: Names to be looked at before the names are read again.
        self._waiting: deque[str] = deque()

    def scan_some(self, until: float) -> bool:
        """Look at entries until a time; return whether there are more to look at.

        Parameters
        ----------
        until : float
            The time by the clock. A request to the storage that takes longer is not interrupted.
        """
        if not self._waiting and not self._read_names():
            return False
        while self._waiting:
            self._look_at(self._waiting.popleft())
            if self._clock() > until:
                break
        self._publish()
        return bool(self._waiting)

    def _read_names(self) -> bool:
        began = self._clock()
        try:
            with reading("its directories", self._storage):
                names = self._storage.names()
        except StorageError as error:
            self.error = str(error)
            return False
        self.error, self.read_at = "", began
        self._names = names[::-1]
        present = set(names)
        self._known &= present
        self._seen &= present
        self.broken = {name: why for name, why in self.broken.items() if name in present}
        others = [name for name in self._names if name not in self._known]
        # New names come first: the others were no experiments at the last look.
        others.sort(key=self._seen.__contains__)
        self._waiting = deque(others)
        return True

    def _look_at(self, name: str) -> None:
        if len(self.experiments) >= _MOST and name < self.experiments[-1]:
            return  # it would not be listed
        self._seen.add(name)
        broken = {one: why for one, why in self.broken.items() if one != name}
        try:
            if self._storage.child(name).exists(SPEC_FILE):
                self._known.add(name)
        except (OSError, TuneError) as error:
            if len(broken) < _MOST_BROKEN:
                broken[name] = str(error)
        if broken != self.broken:
            self.broken = broken

    def _publish(self) -> None:
        known = self._known
        self.experiments = [name for name in self._names if name in known][:_MOST]
