"""What runs in the process of a trial.

The main thread starts trials and waits for their ends, one thread listens to the worker, and user
code has a thread of its own, as it has on a worker. What the trial says goes out in the thread that
says it, so that a result which `report` has returned from survives the death of the process, unless
it waits for the upload of a checkpoint.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final

from dasktune.errors import TuneError
from dasktune.isolation.directory import moved_to
from dasktune.isolation.traces import Surroundings
from dasktune.isolation.wire import (
    Acknowledge,
    Begin,
    Carried,
    Carry,
    FromChild,
    Hello,
    Hung,
    Interrupt,
    Keep,
    Leave,
    MayCommit,
    Over,
    Said,
    Tell,
    ToChild,
    Verdict,
)
from dasktune.registry import offer_envs
from dasktune.trainable.checkpoint_port import CheckpointPort
from dasktune.trainable.contents import Content
from dasktune.trainable.interrupt import TrialInterrupted
from dasktune.trainable.keeper import Keeper
from dasktune.trainable.nested import offer_pickled_client
from dasktune.trainable.outbox import Urgency
from dasktune.trainable.output import descriptors_redirected
from dasktune.trainable.parcel import Code, open_code, open_config
from dasktune.trainable.relay import Dock, Haul
from dasktune.trainable.run import TrialRun
from dasktune.trial.events import ErrorInfo

__all__ = ["Host", "main"]

#: Of Linux' prctl(): the signal that the kernel sends when the parent dies.
_PR_SET_PDEATHSIG: Final = 1


def main(link: Connection) -> None:
    """Run trials until the worker has no more of them.

    Parameters
    ----------
    link : Connection
        To the worker.
    """
    # Ctrl-C in a terminal is for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hello: Hello = link.recv()
    for descriptor in (link.fileno(), hello.crash_file):
        # What user code starts must not hold them open.
        os.set_inheritable(descriptor, False)
    faulthandler.enable(hello.crash_file, all_threads=False)
    _die_with(hello.parent)
    Host(link, _die, hello.crash_file).serve()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        # The listening thread sees the end of the worker as well, but not while C code has the GIL.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _die()


def _die() -> None:
    """End at once, with all processes that user code has started."""
    os.killpg(0, signal.SIGKILL)


class Host:
    """Runs the trials that come through a link, one after the other.

    Parameters
    ----------
    link : Connection
        To the worker.
    hang_up : callable
        Called when the worker is gone.
    crash_file : int, optional
        File descriptor for the tracebacks of crashes.
    """

    def __init__(
        self, link: Connection, hang_up: Callable[[], None], crash_file: int | None = None
    ) -> None:
        self._link = link
        self._hang_up = hang_up
        self._crash_file = crash_file
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._guests: queue.SimpleQueue[_Guest | None] = queue.SimpleQueue()
        self._guest: _Guest | None = None
        self._payload: bytes = b""
        self._code: Code | None = None
        self._keeper = Keeper()

    def serve(self) -> None:
        """Run trials until told to leave."""
        threading.Thread(target=self._listen, name="dasktune-link", daemon=True).start()
        while (guest := self._guests.get()) is not None:
            self._send(guest.run())
        # Before the worker loses patience, which is its own affair.
        self._keeper.close()
        self._keeper.settle()

    def open_code(self, find: Callable[[str], Any]) -> Code:
        """Unpickle the user's code when the first trial needs it, in that trial's thread."""
        if self._code is None:
            self._code = open_code(self._payload, find)
            self._payload = b""
        return self._code

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while self._take(self._link.recv()):
                pass
            return
        self._hang_up()

    def _take(self, message: ToChild) -> bool:
        """Do as the worker says; return whether there may be more."""
        if isinstance(message, Leave):
            self._guests.put(None)
            return False
        if isinstance(message, Begin):
            if message.parcel.payload is not None:
                self._payload, self._code = message.parcel.payload, None
            # Made here and not where it runs: what is said next is meant for it.
            self._guest = _Guest(message, self.open_code, self._send, self._keeper)
            if self._crash_file is not None:
                self._guest.guard(self._crash_file)
            self._guests.put(self._guest)
        elif self._guest is not None:
            self._guest.take(message)
        return True

    def _send(self, message: FromChild) -> None:
        if os.getpid() != self._pid:
            raise TuneError(
                "report() must be called in the process of the trial, not in one that it has "
                "forked. Send the values there, by a multiprocessing.Queue for one."
            )
        # Connection.send() makes a pickler of its own each time, which takes longer than the rest.
        blob = pickle.dumps(message)
        with self._sending:
            self._link.send_bytes(blob)


class _Guest:
    """One trial in this process."""

    def __init__(
        self,
        begin: Begin,
        open_code: Callable[[Callable[[str], Any]], Code],
        send: Callable[[FromChild], None],
        keeper: Keeper,
    ) -> None:
        if begin.reuse:
            keeper.open()
        self._parcel = begin.parcel
        self._open_code = open_code
        self._send = send
        self._verdicts: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
        #: Every message up to here is safe, or has been sent.
        self._ack = self._sent = 0
        port = CheckpointPort(fence=self._ask, keep=self._keep, packed=begin.packed)
        dock = Dock(self._pass_on)
        self._spec = begin.spec
        # Here the whole process is the trial's, and so is what it prints.
        spec = replace(begin.spec, log_files=None)
        self._run = TrialRun(spec, self._open, self._push, port, keeper=keeper, dock=dock)
        self._run.on_hang = self._end_hung
        self._before = Surroundings.now()

    def guard(self, crash_file: int) -> None:
        """Have the process end if user code keeps all its threads from running for too long.

        Parameters
        ----------
        crash_file : int
            File descriptor that is told where it was.
        """
        limit = self._spec.report_timeout_s
        if limit is not None:
            # The watchdog runs in Python, which C code may not let it do. What counts then is that
            # it has not run for so long: a result came before its last look.
            self._run.watchdog.on_look = lambda seconds: faulthandler.dump_traceback_later(
                seconds + limit, exit=True, file=crash_file
            )

    def run(self) -> Over:
        """Run the trial to its end, and return its last word."""
        with moved_to(self._spec), descriptors_redirected(self._spec, self._run.dock):
            return self._run_to_its_end()

    def _run_to_its_end(self) -> Over:
        self._run.start()
        self._run.join()
        if self._spec.report_timeout_s is not None:
            faulthandler.cancel_dump_traceback_later()
        *rest, (_, terminal) = self._run.collect(self._ack, self._sent)
        assert isinstance(terminal, bytes)  # Only results are not pickled.
        self._say(rest, urgent=True)
        for stream in (sys.stdout, sys.stderr):
            # The process may be killed before its buffers are full; user code may have closed them.
            with suppress(Exception):
                stream.flush()
        return Over(terminal=terminal, traces=self._before.changes())

    def take(self, message: ToChild) -> None:
        """Do as the worker says."""
        match message:
            case Tell(answer=answer):
                self._run.answer(answer)
            case Acknowledge(ack=ack):
                self._ack = ack
                self._run.collect(ack, self._sent)
            case Interrupt():
                self._run.interrupt()
            case Verdict():
                self._verdicts.put(message)
            case Carried(number=number, error=error):
                self._run.dock.end(number, error)
            case Hello() | Begin() | Leave():
                raise TypeError(f"{message!r} is not for a trial: a bug in dasktune")

    def _open(self) -> tuple[Any, dict[str, Any]]:
        parcel = self._parcel
        if parcel.client:
            offer_pickled_client(parcel.client)
        code, config = self._open_code(parcel.find), open_config(parcel.config)
        offer_envs(code.envs)
        # What importing the user's modules changes is not the trial's doing.
        self._before = Surroundings.now()
        return code.trainable, config

    def _push(self, urgency: Urgency) -> None:
        # Called under the outbox's lock, so one after the other. The last message waits for the end
        # of the trial's thread.
        if not self._run.finished:
            self._say(self._run.collect(self._ack, self._sent), urgent=urgency >= Urgency.NOW)

    def _say(self, news: list[tuple[int, Content]], *, urgent: bool) -> None:
        if news:
            self._sent = news[-1][0]
            self._send(Said(messages=tuple(news), urgent=urgent))

    def _keep(self, path: str, packed: bytes) -> None:
        self._send(Keep(path=path, packed=packed))

    def _pass_on(self, number: int, haul: Haul) -> None:
        """Let the worker have something carried."""
        self._send(Carry(number=number, haul=haul))

    def _end_hung(self, error: ErrorInfo) -> None:
        """Interrupt user code, and let the worker kill this process if that does not help."""
        self._send(Hung(error=error))
        self._run.interrupt()

    def _ask(self) -> None:
        """Let the worker decide whether a checkpoint may be committed."""
        self._send(MayCommit())
        refusal = self._verdicts.get().refusal
        if refusal is not None:
            raise TrialInterrupted(refusal)
