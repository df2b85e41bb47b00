"""Kills the process group of a child if the worker dies, whatever the worker dies of."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import IO, Final

#: Waits for the end of its input, which the worker's death ends; nothing is ever written to it. The
#: guard has no part in signals that a batch system sends to all processes.
_PROGRAM: Final = """\
trap "" TERM INT HUP USR1 USR2
read -r line
kill -KILL "-$2"
for round in 1 2 3 4 5 6 7 8 9 10; do
    found=$(grep -lsF -e "$1" /proc/[0-9]*/environ)
    test -n "$found" || exit 0
    for file in $found; do
        number=${file#/proc/}
        kill -KILL "${number%/environ}"
    done
done
"""

#: This process's ends of the inputs of all guards.
_inputs: Final[set[IO[bytes]]] = set()


def _close_inputs() -> None:
    """Close the inputs in a fork, which may live longer than the worker."""
    while _inputs:
        _inputs.pop().close()


os.register_at_fork(after_in_child=_close_inputs)


class GroupGuard:
    """A process beside a child that outlives the worker, to kill what the child has forked.

    The kernel kills the child itself with the worker (see `die_with`), at once and without a word
    to it. Then nothing is left that knows the processes that user code has forked. They would keep
    their memory and GPUs for ever, and the worker that a nanny starts again would not know of them.

    Parameters
    ----------
    group : int
        The number of the process group.
    mark : str
        The mark in the environments of the processes that the child starts, see `process_mark`.
    """

    # The group keeps its number as long as it has a member, and a child that has not been reaped is
    # one. `release` is called before the child is reaped, so the guard never kills another group
    # that has got the number. If the worker dies, the system reaps the child; the guard kills the
    # group within milliseconds of that.
    #
    # After that the guard kills the marked processes in other groups. It cannot hold a descriptor
    # of a process, so one that ends between the scan and its kill, within milliseconds, leaves its
    # number. The kernel gives numbers in turn: the same one comes again only after all the others,
    # 32,768 at least on a machine, so it does not belong to another process yet. Killing may have
    # to be repeated, because a process may fork before it is killed; ten rounds end it in any case.
    # The `grep` of BusyBox finds nothing there, and what has left the group survives.
    #
    # A process that the worker has forked does not hold the other end of the guard's input. The
    # guard would act when that process ends, and the number may belong to another group by then.

    def __init__(self, group: int, mark: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # A system without a shell, or without room for one more process: what user code has forked
        # may then survive the worker.
        with suppress(OSError):
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _PROGRAM, "sh", mark, str(group)],
                stdin=subprocess.PIPE,
                bufsize=0,  # a file without a lock, which a fork could inherit locked
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath},
                # Ctrl-C of a terminal ends the worker, and the guard has to see that.
                start_new_session=True,
            )
            assert self._process.stdin is not None
            _inputs.add(self._process.stdin)

    def release(self) -> None:
        """End the guard: the worker has killed the group, or sees to it."""
        process, self._process = self._process, None
        if process is None:
            return
        # Not by its input: a guard that is suspended would not read it.
        process.kill()
        process.wait()
        assert process.stdin is not None
        _inputs.discard(process.stdin)
        process.stdin.close()
