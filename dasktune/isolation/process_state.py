"""Detects what a trial has changed in its process: directory, environment, threads, children."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Final

#: Prefixes of variables that libraries set at their import: OpenMP (by scikit-learn), TensorFlow,
#: JAX and PyTorch. A process with such changes may still run the next trial.
_OF_LIBRARIES: Final = ("KMP_", "TF_", "TF2_", "TORCHINDUCTOR_", "TPU_", "XLA_")

#: Threads that run no user code: those of fsspec, which dasktune itself uses for remote storage,
#: and of tqdm, which redraws progress bars every ten seconds.
_THREADS_OF_LIBRARIES: Final = frozenset({"fsspecIO", "tqdm_monitor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The state of the process at one moment, for comparison."""

    directory: str
    environment: Mapping[str, str]
    threads: frozenset[threading.Thread]
    processes: frozenset[BaseProcess]

    @classmethod
    def now(cls) -> ProcessState:
        """Return the current state."""
        return cls(
            directory=_directory(),
            environment=dict(os.environ),
            threads=frozenset(threading.enumerate()),
            processes=frozenset(multiprocessing.active_children()),
        )

    def changes(self) -> str:
        """Return the changes since, such as ``"os.environ['HOME']"``; empty without changes."""
        current = ProcessState.now()
        changes = [
            f"os.environ[{name!r}]"
            for name in sorted({*self.environment, *current.environment})
            if self.environment.get(name) != current.environment.get(name)
            and not name.startswith(_OF_LIBRARIES)
        ]
        if self.directory != current.directory:
            changes.append("the working directory")
        left = {thread.name for thread in current.threads - self.threads} - _THREADS_OF_LIBRARIES
        changes += [f"thread {name}" for name in sorted(left)]
        children = {child.name for child in current.processes - self.processes}
        changes += [f"process {name}" for name in sorted(children)]
        return ", ".join(changes)


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        # The directory was deleted.
        return ""
