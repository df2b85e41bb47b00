"""What a trial, or one of its ranks, has printed: the ends of the files in its directory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import BinaryIO, Final

from dasktune.config import RunConfig
from dasktune.storage.experiment.tuner_json import SETUP_FILE, TunerFile
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import printable_lines

#: Bytes that are read first if a number of lines is wanted; each further read takes twice as many.
_FIRST_BYTES: Final = 1 << 16
#: Where a line ends, or begins again.
_LINE_END: Final = re.compile(rb"\r*\n|\r")


@dataclass(frozen=True, slots=True)
class LogText:
    """The end of a file with output.

    Parameters
    ----------
    text : str
        Its last lines, printable, without white space at the end.
    left_out : int, default=0
        The number of bytes before them.
    """

    text: str
    left_out: int = 0


def log_files_of(storage: Storage) -> tuple[str, str] | None:
    """Return the names of the files for stdout and stderr of each trial; None if they are not kept.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Raises
    ------
    StorageError
        If ``tuner.json``, which has the setting, cannot be read.
    """
    with reading(SETUP_FILE, storage):
        if not storage.exists(SETUP_FILE):
            return None  # The driver died before it wrote the file.
    entry = TunerFile.read(storage).entries.get("run_config.log_to_file", {})
    given = entry.get("value", False)
    return RunConfig(log_to_file=tuple(given) if isinstance(given, list) else given).log_files


def read_log(
    storage: Storage, name: str, *, lines: int | None = None, max_bytes: int | None = None
) -> LogText:
    r"""Return the end of a file with output; it is empty if nothing has been printed yet.

    A carriage return begins its line again, as on a terminal, so of a progress bar the last state
    is returned.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    name : str
        The path of the file below it.
    lines : int, optional
        Maximum number of lines; all by default.
    max_bytes : int, optional
        Maximum number of bytes to read; all by default.

    Raises
    ------
    StorageError
        If the file cannot be read, or is a link or a pipe.

    Examples
    --------
    >>> storage = Storage("memory://doctest-output")
    >>> storage.write_bytes("stdout", b"first\n10 %\r20 %\nlast\n")
    >>> read_log(storage, "stdout")
    LogText(text='first\n20 %\nlast', left_out=0)
    >>> read_log(storage, "stdout", lines=1)
    LogText(text='last', left_out=16)
    """
    with reading(name, storage):
        try:
            stream = storage.open_read(name)
        except FileNotFoundError:
            return LogText("")
        with stream:
            size = stream.seek(0, os.SEEK_END)
            most = size if max_bytes is None else min(size, max_bytes)
            length = most if lines is None else min(most, _FIRST_BYTES)
            content = _read(stream, size - length, size)
            # The line that the first byte may have cut does not count.
            while lines is not None and length < most and content.rstrip().count(b"\n") < lines:
                length = min(most, 2 * length)
                content = _read(stream, size - length, size)
    return _shown(content, size - length, lines)


def _read(stream: BinaryIO, start: int, end: int) -> bytes:
    stream.seek(start)
    parts, left = [], end - start
    # One read may return less than is there, and a file may be truncated meanwhile.
    while left > 0 and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _shown(content: bytes, before: int, lines: int | None) -> LogText:
    # The first byte has probably cut a line. A progress bar prints many states of one line: only
    # the first of them is cut. A line longer than what was read is shown from its middle.
    if before and (cut := _LINE_END.search(content)) and content[cut.end() :].strip():
        content, before = content[cut.end() :], before + cut.end()
    kept = content.rstrip()
    if lines is not None:
        end = len(kept)
        for _ in range(lines):
            end = kept.rfind(b"\n", 0, max(end, 0))
            if end < 0:
                break
        else:
            kept, before = kept[end + 1 :], before + end + 1
    text = kept.decode("utf-8", "replace")
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return LogText(printable_lines("\n".join(shown)), before)
