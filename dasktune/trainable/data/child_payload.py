"""The pickled code and configuration of a trial. Unpickling them may run user code (imports)."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from dasktune.trainable.data.shared_objects import load, loads_with

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Seconds to wait after the first tries that another thread's imports have disturbed.
_PAUSES_S: Final = (0.05, 0.2, 1.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The unpickled code that an experiment has sent to its workers."""

    trainable: Any
    #: The functions given to :func:`dasktune.register_env`, each pickled.
    envs: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPayload:
    """What a child process needs to run a trial's code."""

    #: The pickled trainable; None if the process has it already.
    code: bytes | None = field(repr=False)
    #: The pickled configuration.
    config: bytes = field(repr=False)
    #: Paths of the files with the large objects of the trainable, by name.
    shared: Mapping[str, str] = field(default_factory=dict)
    #: The pickled factory of the Dask client for user code; empty without one.
    client: bytes = field(default=b"", repr=False)

    def find(self, name: str) -> Any:
        """Return a large object of the trainable, mapped from its file."""
        return load(self.shared[name])


def open_code(
    payload: bytes, find: Callable[[str], Any], *, pauses_s: Sequence[float] = _PAUSES_S
) -> UserCode:
    """Unpickle the user's code.

    Parameters
    ----------
    payload : bytes
        The pickle.
    find : callable
        Returns a large object, to which the pickle refers by name.
    pauses_s : sequence of float, optional
        Seconds to wait after each try that another thread's imports have disturbed.
    """
    opened = _beside_other_imports(lambda: loads_with(payload, find), pauses_s)
    return UserCode(trainable=opened["trainable"], envs=opened.get("envs", {}))


def open_config(blob: bytes, *, pauses_s: Sequence[float] = _PAUSES_S) -> dict[str, Any]:
    """Unpickle a trial's configuration.

    Parameters
    ----------
    blob : bytes
        The pickle.
    pauses_s : sequence of float, optional
        Seconds to wait after each try that another thread's imports have disturbed.
    """
    config: dict[str, Any] = _beside_other_imports(lambda: pickle.loads(blob), pauses_s)["config"]
    return config


def _beside_other_imports(unpickle: Callable[[], T], pauses_s: Sequence[float]) -> T:
    """Unpickle, and try again if another thread was importing the same modules.

    Two threads that import modules of one package from different ends can wait for each other.
    Python then raises in one of them, or shows it a module that is only half executed. The other
    thread continues meanwhile, so a later try finds the modules complete. A circular import in the
    user's code, which looks the same, fails again each time.
    """
    for pause in pauses_s:
        try:
            return unpickle()
        except (ImportError, AttributeError, RuntimeError) as error:
            if "partially initialized module" not in str(error) and "_DeadlockError" not in repr(error):
                raise
            logger.info("another thread imports the same modules, trying again: %s", error)
            time.sleep(pause)
    return unpickle()
