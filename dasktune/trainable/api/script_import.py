"""Refuse to run an experiment while a command imports the script that would start it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from dasktune.errors import ConfigError

#: The script that a command imports; empty otherwise.
_SCRIPT: Final[ContextVar[str]] = ContextVar("dasktune_imported_script", default="")


@contextmanager
def importing_script(path: str) -> Iterator[None]:
    """Let `check_not_imported` raise inside the ``with`` block.

    Parameters
    ----------
    path : str
        The script that is imported there.
    """
    token = _SCRIPT.set(path)
    try:
        yield
    finally:
        _SCRIPT.reset(token)


def check_not_imported() -> None:
    """Raise if a command imports a script at this moment, whose code asks to run an experiment.

    ``dasktune resume EXPERIMENT SCRIPT:FUNCTION`` needs the function alone. A script without a main
    guard would first run another experiment.

    Raises
    ------
    ConfigError
        If a script is imported.
    """
    if script := _SCRIPT.get():
        raise ConfigError(
            f'the code that starts an experiment must be under `if __name__ == "__main__":` in {script}, '
            "because this command imports the script for its functions"
        )
