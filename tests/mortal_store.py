"""An experiment's store whose driver dies with a record of the journal."""

from __future__ import annotations

from typing import Any

from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage


class Died(Exception):
    """The driver was killed."""


class MortalStore(ExperimentStore):
    """Dies with a record: it is not written, and nothing is closed."""

    def __init__(self, storage: Storage, lives: int) -> None:
        super().__init__(storage)
        self.lives = lives

    def append(self, record: Any) -> int:
        self.lives -= 1
        if self.lives < 0:
            raise Died
        return super().append(record)

    def close(self) -> None:
        if self.lives >= 0:
            super().close()
        # What runs in the background ends before the next driver looks.
        self._pool.shutdown()
