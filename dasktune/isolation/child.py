"""The code of a worker's child process, which runs trials one after the other.

The main thread starts trials and waits for their ends. One thread receives messages of the worker,
and user code has its own thread, as it has on a worker. The thread that puts a message also sends
it. So when `report` has returned, its result survives the death of the process, unless the result
is held until the upload of a checkpoint.
"""

# Orders of events between the three threads and the worker:
#
# - The worker sends all messages of a trial after its `RunTrial` and before the next one, through
#   one queue. So a message is always for the newest trial that the receiving thread has created.
#   A message that comes after the end of this trial changes nothing: the run ignores answers and
#   interrupts.
# - `RunTrial` creates the trial in the receiving thread, before the main thread starts it. So an
#   answer or an interrupt that follows at once finds it. An interrupt stays pending until user code
#   starts.
# - Messages are sent under the outbox's lock, in order. The last message is not sent by
#   `_send_new`, but as `ChildFinished` when the trial's thread has ended. `_finished` is set under
#   that lock before the last message is put, so no other message follows.
# - The worker dies: the receiving thread reads the end of the stream and kills the process group.
#   If C code holds the GIL, the kernel kills the process (`PR_SET_PDEATHSIG`).
# - The child is killed: messages that were sent stay in the socket, where the worker reads them.

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from dasktune.isolation import process_messages
from dasktune.isolation.environment import in_trial_directory
from dasktune.registry import offer_envs
from dasktune.trainable.api.dask_client import offer_pickled_client
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.checkpoints.relay import Transfer, TransferQueue
from dasktune.trainable.data.child_payload import UserCode, open_code, open_config
from dasktune.trainable.reporting.encoding import Content
from dasktune.trainable.reporting.outbox import Urgency
from dasktune.trainable.reporting.recorder import CheckpointHooks
from dasktune.trainable.reporting.trial_messages import StopAnswer
from dasktune.trainable.running.output_capture import descriptors_redirected
from dasktune.trainable.running.reuse import ReusableTrainable
from dasktune.trainable.running.thread_run import ThreadRun
from dasktune.trial.user_error import ErrorInfo

#: Option of Linux' prctl(): sets the signal that the kernel sends when the parent dies.
_PR_SET_PDEATHSIG: Final = 1

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


def main(link: Connection) -> None:
    """Run trials until the worker stops the process.

    Parameters
    ----------
    link : Connection
        The connection to the worker.
    """
    # Ctrl-C in a terminal is for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    init: process_messages.InitChild = link.recv()
    for descriptor in (link.fileno(), init.crash_file):
        # Processes that user code starts must not keep these descriptors open.
        os.set_inheritable(descriptor, False)
    faulthandler.enable(init.crash_file, all_threads=False)
    die_with(init.parent)
    outlive_termination()
    ChildServer(link, die, init.crash_file).serve()


def die_with(parent: int) -> None:
    """Let this process die with its parent, and with what user code has started.

    Parameters
    ----------
    parent : int
        Process id of the parent, which may have died already.
    """
    if sys.platform == "linux":
        # The receiving thread sees the end of the worker, too, but not while C code has the GIL.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Checked after prctl(): if the worker died before that call, there is no signal, but the parent
    # has changed. If it dies after that call, the kernel sends the signal.
    if os.getppid() != parent:
        die()


def outlive_termination() -> None:
    """Do not die of SIGTERM, which batch systems send to all processes of a job, and unblock it.

    The worker gets it, too, and takes it as a notice: trials save and leave. A child that died of
    it would be a failure of its trial.
    """
    # A handler and not SIG_IGN: programs that user code starts inherit what is ignored. A fork
    # inherits the handler, but has to end when `multiprocessing` terminates it. The signal may come
    # before the fork has restored the default, and the handler would lose it. So it is blocked
    # meanwhile.
    signal.signal(signal.SIGTERM, _note_termination)
    # System calls of C code continue and do not fail.
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(
        before=_block_termination, after_in_child=_end_at_termination, after_in_parent=_unblock_termination
    )
    # The worker has blocked it before it started this process, see `process`. A signal that has
    # come meanwhile comes now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


#: Of each thread: the signals that it blocked before the fork that it is in.
_blocked_before: Final = threading.local()


def _note_termination(signum: int, frame: object) -> None:
    """Do nothing: the worker decides."""


def _block_termination() -> None:
    _blocked_before.signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock_termination() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked_before.signals)


def _end_at_termination() -> None:
    """Let SIGTERM end this fork, unless user code has a handler of its own."""
    if signal.getsignal(signal.SIGTERM) is _note_termination:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock_termination()


def die() -> None:
    """Kill this process and all processes that user code has started."""
    os.killpg(0, signal.SIGKILL)


class ChildServer:
    """Runs the trials of a worker, one after the other.

    Parameters
    ----------
    link : Connection
        The connection to the worker.
    on_disconnect : callable
        Called when the worker is gone.
    crash_file : int, optional
        File descriptor for the tracebacks of crashes.
    """

    def __init__(
        self, link: Connection, on_disconnect: Callable[[], None], crash_file: int | None = None
    ) -> None:
        self._link = link
        self._on_disconnect = on_disconnect
        self._crash_file = crash_file
        self._sending = threading.Lock()
        self._trials: queue.SimpleQueue[_ChildTrial | None] = queue.SimpleQueue()
        self._trial: _ChildTrial | None = None
        self._pickled_code: bytes = b""
        self._code: UserCode | None = None
        self._reusable = ReusableTrainable()

    def serve(self) -> None:
        """Run trials until the worker sends `StopChild`."""
        threading.Thread(target=self._listen, name="dasktune-link", daemon=True).start()
        while (trial := self._trials.get()) is not None:
            self._send(trial.run())
        # The worker kills this process if the cleanup takes too long.
        self._reusable.close()
        self._reusable.wait_for_cleanups()

    def open_code(self, find: Callable[[str], Any]) -> UserCode:
        """Unpickle the user's code when the first trial needs it, in that trial's thread."""
        if self._code is None:
            self._code = open_code(self._pickled_code, find)
            self._pickled_code = b""
        return self._code

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while self._handle(self._link.recv()):
                pass
            return
        self._on_disconnect()

    def _handle(self, message: process_messages.ToChild) -> bool:
        """Handle a message of the worker; return whether more may follow."""
        if isinstance(message, process_messages.StopChild):
            self._trials.put(None)
            return False
        if isinstance(message, process_messages.RunTrial):
            if message.payload.code is not None:
                self._pickled_code, self._code = message.payload.code, None
            # Created here and not in the main thread: the next message may already be for it.
            self._trial = _ChildTrial(message, self.open_code, self._send, self._reusable)
            if self._crash_file is not None:
                self._trial.arm_hard_timeout(self._crash_file)
            self._trials.put(self._trial)
        elif self._trial is not None:
            self._trial.handle(message)
        return True

    def _send(self, message: process_messages.FromChild) -> None:
        # Connection.send() creates a pickler each time, which takes longer than the rest.
        blob = pickle.dumps(message)
        with self._sending:
            self._link.send_bytes(blob)


class _ChildTrial:
    """One trial in this process."""

    def __init__(
        self,
        begin: process_messages.RunTrial,
        open_code: Callable[[Callable[[str], Any]], UserCode],
        send: Callable[[process_messages.FromChild], None],
        reusable: ReusableTrainable,
    ) -> None:
        if begin.reuse:
            reusable.open()
        self._payload = begin.payload
        self._open_code = open_code
        self._send = send
        self._commit_answers: queue.SimpleQueue[process_messages.CommitAllowed] = queue.SimpleQueue()
        #: Numbers of the last message in the driver's journal (`_ack`) and of the last one sent to
        #: the worker (`_sent`). The receiving thread writes `_ack`; the sending thread writes
        #: `_sent`, under the outbox's lock.
        self._ack = self._sent = 0
        hooks = CheckpointHooks(
            fence=self._ask_commit, keep_in_memory=self._store_checkpoint, packed=begin.packed
        )
        transfers = TransferQueue(self._request_transfer)
        self._spec = begin.spec
        # The whole process belongs to the trial, so its output is captured by descriptor instead.
        spec = replace(begin.spec, log_files=None)
        self._run = ThreadRun(spec, self._open, self._send_new, hooks, reusable=reusable, transfers=transfers)
        self._run.on_timeout = self._on_timeout
        self._before = ProcessState.now()

    def arm_hard_timeout(self, crash_file: int) -> None:
        """Let the process exit if user code keeps all Python threads from running for too long.

        Parameters
        ----------
        crash_file : int
            File descriptor for the stack at that time.
        """
        limit = self._spec.report_timeout_s
        if limit is not None:
            # The report timeout needs the GIL, which C code may hold. So each of its checks starts
            # a timer in C, which expires if the next check is late by the whole limit. There was no
            # result meanwhile, since reporting needs the GIL, too.
            self._run.report_timeout.on_check = lambda seconds: faulthandler.dump_traceback_later(
                seconds + limit, exit=True, file=crash_file
            )

    def run(self) -> process_messages.ChildFinished:
        """Run the trial to its end, and return its last message."""
        with (
            in_trial_directory(self._spec),
            descriptors_redirected(self._spec, self._run.transfers),
        ):
            return self._run_to_its_end()

    def _run_to_its_end(self) -> process_messages.ChildFinished:
        self._run.start()
        self._run.wait()
        if self._spec.report_timeout_s is not None:
            faulthandler.cancel_dump_traceback_later()
        *rest, (_, terminal) = self._run.collect(self._ack, self._sent)
        assert isinstance(terminal, bytes)  # Only results are not pickled.
        self._send_messages(rest, urgent=True)
        for stream in (sys.stdout, sys.stderr):
            # The process may be killed before its buffers are written; user code may have closed
            # the streams.
            with suppress(Exception):
                stream.flush()
        # The worker ends this process, and with it user code that does not return.
        changes = "user code does not return" if self._run.is_abandoned else self._before.changes()
        return process_messages.ChildFinished(terminal=terminal, changes=changes)

    def handle(self, message: process_messages.ToChild) -> None:
        """Handle a message of the worker."""
        match message:
            case process_messages.AnswerTrial(answer=answer):
                self._run.answer(answer)
            case process_messages.Acknowledge(ack=ack):
                self._ack = ack
                self._run.collect(ack, self._sent)
            case process_messages.Interrupt(order=order):
                self._run.interrupt(order)
            case process_messages.CommitAllowed():
                self._commit_answers.put(message)
            case process_messages.TransferDone(number=number, error=error):
                self._run.transfers.end(number, error)
            case process_messages.InitChild() | process_messages.RunTrial() | process_messages.StopChild():
                raise TypeError(f"{message!r} is not for a trial: a bug in dasktune")

    def _open(self) -> tuple[Any, dict[str, Any]]:
        payload = self._payload
        if payload.client:
            offer_pickled_client(payload.client)
        code, config = self._open_code(payload.find), open_config(payload.config)
        offer_envs(code.envs)
        # Changes made by importing the user's modules do not count as changes of the trial.
        self._before = ProcessState.now()
        return code.trainable, config

    def _send_new(self, urgency: Urgency) -> None:
        # Called under the outbox's lock, so messages are sent in order. The last message is sent
        # when the trial's thread has ended.
        if not self._run.finished:
            self._send_messages(self._run.collect(self._ack, self._sent), urgent=urgency >= Urgency.NOW)

    def _send_messages(self, news: list[tuple[int, Content]], *, urgent: bool) -> None:
        if news:
            self._sent = news[-1][0]
            self._send(process_messages.ChildMessages(messages=tuple(news), urgent=urgent))

    def _store_checkpoint(self, path: str, packed: bytes) -> None:
        self._send(process_messages.StoreCheckpoint(path=path, packed=packed))

    def _request_transfer(self, number: int, transfer: Transfer) -> None:
        """Ask the worker for a transfer through the driver."""
        self._send(process_messages.RequestTransfer(number=number, transfer=transfer))

    def _on_timeout(self, error: ErrorInfo) -> None:
        """Interrupt user code; the worker kills this process if the trial still does not end."""
        self._send(process_messages.ReportTimedOut(error=error))
        self._run.interrupt(StopAnswer(reason=error.message))

    def _ask_commit(self) -> None:
        """Ask the worker whether a checkpoint may be committed; raise TrialInterrupted if not."""
        self._send(process_messages.AskCommit())
        refusal = self._commit_answers.get().refusal
        if refusal is not None:
            raise TrialInterrupted(refusal)
