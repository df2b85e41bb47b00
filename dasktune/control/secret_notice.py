"""Shows a text with a token to the user only.

A terminal shows the text itself. Every other stream may be a log that others read: under SLURM and
nohup, in a pipe, or in a notebook that is saved with its output. Then the text is written into a
file that only the user can read, and the stream gets the path of this file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from dasktune.progress.background_stream import print_promptly
from dasktune.storage.fs.owned_entries import abandoned_entries, open_owned

logger = logging.getLogger(__name__)

#: Permissions of a directory that other users have.
_FOREIGN: Final = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def secret_notice(stream: TextIO | None, title: str, text: str) -> Iterator[None]:
    """Show a text with a token while the ``with`` block runs.

    Parameters
    ----------
    stream : text stream or None
        The stream for messages, such as ``sys.stderr``.
    title : str
        What the text is, such as ``"Dashboard"``.
    text : str
        The text with the token.
    """
    if _is_terminal(stream):
        print_promptly(stream, f"{title}: {text}\n")
        yield
        return
    try:
        descriptor, path = _write(title.lower(), f"{text}\n")
    except OSError as error:
        # The token must not get into the log instead.
        logger.warning("the token of the %s could not be stored for you: %s", title.lower(), error)
        yield
        return
    print_promptly(stream, f"{title}: see {path}, which contains a token and which only you can read\n")
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # an object of the user, or a closed stream
        return False


def _write(kind: str, text: str) -> tuple[int, str]:
    """Write a new file with mode 0600; return its locked descriptor and its path."""
    machine = re.sub(r"[^\w.-]", "_", socket.gethostname())
    prefix = f"{kind}-{machine}-"
    place = _private_directory()
    if place is not None:
        # Files of processes of this machine that were killed; their tokens are void.
        for path in abandoned_entries(place, prefix, directories=False):
            with suppress(OSError):
                os.unlink(path)
    else:
        prefix = f"dasktune-{prefix}"
    # `mkstemp` creates the file with mode 0600, whatever the umask.
    descriptor, path = tempfile.mkstemp(prefix=prefix, suffix=".txt", dir=place)
    with suppress(OSError):  # a disk without locks: then the file stays if the process is killed
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, text.encode())
    return descriptor, path


def _private_directory() -> str | None:
    """Return a directory of the user alone, or None if there is none.

    It is in the home directory, which the machines of a cluster mostly share: the driver may run on
    another one than that from which the user looks.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        place = Path(state, "dasktune")
        if not place.is_absolute():
            return None
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_owned(place, directory=True)
        try:
            if os.fstat(descriptor).st_mode & _FOREIGN:
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
        return str(place) if os.access(place, os.W_OK) else None
    except (OSError, RuntimeError):  # no home directory, or one that cannot be written
        return None
