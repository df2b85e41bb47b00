"""Marks the processes of a trial in their environment, and kills those that left its process group.

A build tool such as ninja, or ``subprocess.Popen(..., start_new_session=True)``, puts a process
into a group of its own, which a kill of the trial's group does not reach. Its environment still has
the mark, because a process inherits the environment of the one that started it.
"""

# A kill of the group comes first: no process of the group can fork from then on. What is left are
# marked processes in other groups, which may fork, run other programs and end all the time.
#
# - A process starts another one, before or after it is found, and ends. So after each scan the
#   processes are listed again, and those that are new are read, too, until a list has no new one. A
#   marked process that lives then was in a list, and was killed.
# - A process is read in the moment in which it begins to run another program: it shows no
#   environment. It is read again until it shows one, for some time, and a process that cannot be
#   read once more. Kernel threads, dead processes and those with an empty environment never show
#   one, and Linux says which these are; where a sandbox does not, the time limit ends the search.
# - A process that was found ends, and its number belongs to another process. The descriptor of a
#   process (pidfd) is opened first, and the environment is read again after that. If the process
#   had ended before the descriptor was opened, the second read finds no mark, or another marked
#   process, which is right to kill. If it ends after that, its descriptor kills nothing else.
# - A number that was read comes again, for a new marked process, before the last list: it is not
#   found. The kernel gives numbers in turn, so all others have to be used up in these milliseconds.
# - A program starts processes faster than they are killed: the time limit ends the search, and a
#   warning names what was left.
# - Reading the environment of a process that waits for a device may wait, too. So a thread of its
#   own scans, and the caller stops waiting after some time.

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

logger = logging.getLogger(__name__)

#: The variable with the mark. A trial that is started by a process of another trial has the marks
#: of both, so the end of the outer one finds the processes of the inner one.
MARK: Final = "DASKTUNE_PROCESS_MARK"

#: Seconds for which marked processes are searched and killed.
_LIMIT_S: Final = 10.0

#: Bytes of an environment that are read at a time.
_READ: Final = 1 << 17

#: Seconds until processes that showed no environment are read again, and for which they are read
#: more than twice.
_PAUSE_S: Final = 0.001
_PATIENCE_S: Final = 2.0

#: The flags of a process that ends and of a kernel thread, and the indices of the flags and of the
#: addresses of the environment in `/proc/PID/stat` behind the name of the program, where the state
#: comes first.
_ENDS: Final = 0x4
_KERNEL_THREAD: Final = 0x200000
_FLAGS, _BEGIN, _END = 6, 47, 48


def new_mark() -> str:
    """Return a mark that no other process has."""
    return secrets.token_hex(16)


def give_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the variable of a process with a mark, which is to be added to its environment.

    Parameters
    ----------
    environment : mapping
        The environment of the process that starts it.
    mark : str
        The mark.

    Examples
    --------
    >>> give_mark({}, "b"), give_mark({"DASKTUNE_PROCESS_MARK": "a"}, "b")
    ({'DASKTUNE_PROCESS_MARK': 'b'}, {'DASKTUNE_PROCESS_MARK': 'a:b'})
    """
    outer = environment.get(MARK)
    return {MARK: f"{outer}:{mark}" if outer else mark}


def rewrite_mark(value: str) -> None:
    """Change the mark of this process, which is a fork, and of the forks that it makes.

    The kernel shows the environment as it was when the program was started. So the text is replaced
    in place; a change of `os.environ` would only reach programs that this process starts.

    Parameters
    ----------
    value : str
        The value of the variable, of the same length as before.
    """
    find = ctypes.CDLL(None).getenv
    find.argtypes, find.restype = [ctypes.c_char_p], ctypes.c_void_p
    place = find(MARK.encode())
    # A module that was imported before may have replaced the variable.
    if place and len(ctypes.string_at(place)) == len(value):
        ctypes.memmove(place, value.encode(), len(value))


def read_environment(number: str) -> bytes | None:
    """Return the environment of a process; None if it has ended, or belongs to another user.

    Parameters
    ----------
    number : str
        The number of the process.
    """
    try:
        return _content(f"/proc/{number}/environ")
    except OSError:
        return None


class MarkSearch:
    """Kills all processes of this user with a mark; thread-safe.

    Threads that ask at the same time share a search: the ranks of a trial end together.

    Parameters
    ----------
    limit_s : float, default=10.0
        Seconds for which marked processes are searched and killed.
    patience_s : float, default=2.0
        Seconds for which processes that showed no environment are read more than twice.
    read : callable, default=read_environment
        Given the number of a process, returns its environment.
    """

    def __init__(
        self,
        *,
        limit_s: float = _LIMIT_S,
        patience_s: float = _PATIENCE_S,
        read: Callable[[str], bytes | None] = read_environment,
    ) -> None:
        self._limit_s = limit_s
        self._patience_s = patience_s
        self._read = read
        #: The marks for which the next scan searches, and the lock of that set.
        self._wanted: set[str] = set()
        self._wanted_lock = threading.Lock()
        #: Held during a scan.
        self._scanning = threading.Lock()

    def kill(self, mark: str) -> None:
        """Kill all processes with a mark, and wait until none is left, for some seconds.

        Parameters
        ----------
        mark : str
            The mark.
        """
        if not _can_kill():
            return
        with self._wanted_lock:
            self._wanted.add(mark)
        scan = threading.Thread(target=self._kill_wanted, args=(mark,), name="dasktune-marked", daemon=True)
        try:
            scan.start()
        except RuntimeError:  # the system has no thread left
            self._kill_wanted(mark)
            return
        scan.join(2 * self._limit_s)
        if scan.is_alive():
            logger.warning(
                "processes of a trial that have left its process group may be left: reading the environments "
                "of all processes takes too long, because one of them waits for a device or a disk"
            )

    def _kill_wanted(self, mark: str) -> None:
        """Search once for all marks that wait."""
        with self._scanning:
            with self._wanted_lock:
                if mark not in self._wanted:
                    # The scan that has just ended began later than the request for this mark.
                    return
                marks = {one.encode() for one in self._wanted}
                self._wanted.clear()
            try:
                self._kill_all(marks)
            except OSError as error:  # no process may open another file
                logger.warning("processes of a trial that have left its process group may be left: %s", error)

    def _kill_all(self, marks: Collection[bytes]) -> None:
        begun = time.monotonic()
        deadline = begun + self._limit_s
        read: set[str] = set()
        again: set[str] = set()
        while new := (_numbers() - read) | again:
            again = set()
            is_patient = time.monotonic() < begun + self._patience_s
            found: dict[int, int] = {}
            for number in new:
                environment = self._read(number)
                if _has_mark(environment, marks):
                    descriptor = self._opened(number, marks)
                    if descriptor is None:
                        again.add(number)
                    else:
                        found[descriptor] = int(number)
                elif not environment:
                    is_readable = environment is not None
                    if number not in read or (is_readable and is_patient and _may_show_one(number)):
                        again.add(number)
            read |= new
            if again and not found:
                time.sleep(_PAUSE_S)
            left = _kill(found, deadline)
            if left or time.monotonic() >= deadline:
                message = "processes of a trial could not be killed in %g s: %s"
                logger.warning(message, self._limit_s, left or "new ones")
                return

    def _opened(self, number: str, marks: Collection[bytes]) -> int | None:
        """Return a descriptor of a process if it is still a marked one."""
        try:
            descriptor = os.pidfd_open(int(number))
        except OSError:  # it has ended
            return None
        if _has_mark(self._read(number), marks):
            return descriptor
        os.close(descriptor)
        return None


_SEARCH: Final = MarkSearch()


def kill_marked(mark: str) -> None:
    """Kill all processes of this user with a mark, and wait until none is left, for some seconds.

    Nothing happens where the system cannot show environments or has no descriptors of processes:
    this needs Linux 5.3 or newer.

    Parameters
    ----------
    mark : str
        The mark of a process whose group was killed.
    """
    _SEARCH.kill(mark)


def _can_kill() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return os.path.exists("/proc/self/environ")


def _numbers() -> set[str]:
    """Return the numbers of all processes."""
    return {name for name in os.listdir("/proc") if name.isdigit()}


def _has_mark(environment: bytes | None, marks: Collection[bytes]) -> bool:
    if not environment:
        return False
    return MARK.encode() in environment and any(mark in environment for mark in marks)


def _may_show_one(number: str) -> bool:
    """Whether a process that has shown no environment may show one when it is read again."""
    try:
        stat = _content(f"/proc/{number}/stat")
        # The name of the program is in parentheses, and may contain any character.
        fields = stat[stat.rindex(b")") + 1 :].split()
        if fields[0] in (b"Z", b"X") or int(fields[_FLAGS]) & (_ENDS | _KERNEL_THREAD):
            return False
        # Both addresses are 0 while another program begins. Afterwards they are equal if the
        # environment is empty; if not, the program has begun since the environment was read.
        return fields[_BEGIN] != fields[_END] or fields[_END] == b"0"
    except (OSError, ValueError, IndexError):  # it has ended, or a sandbox does not say
        return False


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while part := os.read(file, _READ):
            content += part
        return content
    finally:
        os.close(file)


def _kill(found: Mapping[int, int], deadline: float) -> list[int]:
    """Kill processes and wait for their ends; return the numbers of those that are left.

    Parameters
    ----------
    found : mapping of int to int
        The numbers by descriptors, which this closes.
    deadline : float
        When to stop waiting, on the monotonic clock.
    """
    waiting = select.poll()
    left = dict(found)
    try:
        for descriptor in found:
            with suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            waiting.register(descriptor, select.POLLIN)
        while left:
            ended = waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ended:
                break
            for descriptor, _ in ended:
                waiting.unregister(descriptor)
                del left[descriptor]
    finally:
        for descriptor in found:
            os.close(descriptor)
    return sorted(left.values())
