"""What a trial may leave behind in its process."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Final

__all__ = ["Surroundings"]

#: Variables that libraries set for themselves when they are imported: OpenMP's of scikit-learn, and
#: those of TensorFlow and JAX. A process in which they were imported is as good as new.
_OF_LIBRARIES: Final = ("KMP_", "TF_", "TF2_", "TPU_", "XLA_")

#: The thread of fsspec, in which we ourselves reach remote storage.
_OUR_THREADS: Final = frozenset({"fsspecIO"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is the process's and not the trial's, at one moment."""

    directory: str
    environment: Mapping[str, str]
    threads: frozenset[threading.Thread]
    processes: frozenset[BaseProcess]

    @classmethod
    def now(cls) -> Surroundings:
        """Return what there is now."""
        return cls(
            directory=_directory(),
            environment=dict(os.environ),
            threads=frozenset(threading.enumerate()),
            processes=frozenset(multiprocessing.active_children()),
        )

    def changes(self) -> str:
        """Say what is different by now, such as ``"os.environ['HOME']"``; empty if nothing is."""
        current = Surroundings.now()
        changes = [
            f"os.environ[{name!r}]"
            for name in sorted({*self.environment, *current.environment})
            if self.environment.get(name) != current.environment.get(name)
            and not name.startswith(_OF_LIBRARIES)
        ]
        if self.directory != current.directory:
            changes.append("the working directory")
        left = {thread.name for thread in current.threads - self.threads} - _OUR_THREADS
        changes += [f"thread {name}" for name in sorted(left)]
        children = {child.name for child in current.processes - self.processes}
        changes += [f"process {name}" for name in sorted(children)]
        return ", ".join(changes)


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        # It was deleted.
        return ""
