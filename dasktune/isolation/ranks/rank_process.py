"""The program of a rank: one process of a distributed trial. It calls the user's function once."""

# The main thread runs user code, because libraries install signal handlers, which only that thread
# may do. A second thread receives messages. A rank ends in one of these ways, and in each of them
# its processes end with it:
#
# - User code ends: the rank says so and exits. The agent kills it if it does not exit in time.
# - The agent kills its process group. No Python code of the rank takes part.
# - The worker dies: the kernel kills the rank (`PR_SET_PDEATHSIG`), or the receiving thread sees
#   the end of the connection.
# - The worker is suspended: no ping comes, and a timer in C ends the process, even if user code
#   holds the interpreter lock in C. Each ping sets the timer again.

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from dasktune.isolation.child import die, die_with, outlive_termination
from dasktune.isolation.environment import in_trial_directory
from dasktune.isolation.process import STACKS_SIGNAL
from dasktune.isolation.process_messages import InitChild
from dasktune.isolation.ranks.rank_messages import (
    Ping,
    RankBegan,
    RankEnded,
    RendezvousLate,
    RunRank,
    WordOfRank,
)
from dasktune.isolation.ranks.rank_session import RankSession
from dasktune.isolation.ranks.rendezvous_watch import RendezvousWatch
from dasktune.registry import offer_envs
from dasktune.trainable.api.dask_client import offer_pickled_client
from dasktune.trainable.api.session import enter_session
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.checkpoints.relay import TransferQueue
from dasktune.trainable.data.child_payload import open_code, open_config
from dasktune.trainable.fork_guard import call_and_end_forks
from dasktune.trainable.ranks import log_files_of_rank
from dasktune.trainable.running.error_info import error_info
from dasktune.trainable.running.function_run import run_function
from dasktune.trainable.running.output_capture import descriptors_redirected
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.user_error import ErrorInfo


def main(link: Connection, crash_file: int | None = None) -> None:
    """Call the user's function and exit.

    Parameters
    ----------
    link : Connection
        The connection to the agent.
    crash_file : int, optional
        File descriptor for the tracebacks of crashes, if it is not the one that the agent names: a
        fork has got it under another number.
    """
    # Ctrl-C in a terminal is for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    init: InitChild = link.recv()
    crash_file = init.crash_file if crash_file is None else crash_file
    for descriptor in (link.fileno(), crash_file):
        os.set_inheritable(descriptor, False)
    faulthandler.enable(crash_file, all_threads=False)
    faulthandler.register(STACKS_SIGNAL, file=crash_file, all_threads=True)
    die_with(init.parent)
    outlive_termination()
    run: RunRank = link.recv()
    _Rank(link, run, crash_file).run()


def spec_of_rank(spec: TrialSpec, rank: int) -> TrialSpec:
    """Return the trial with the names of the rank's files for output; rank 0 has the trial's.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    rank : int
        Number of the rank.
    """
    if spec.log_files is None:
        return spec
    return replace(spec, log_files=log_files_of_rank(spec.log_files, rank))


class _Rank:
    """The process.

    Parameters
    ----------
    link : Connection
        The connection to the agent.
    run : RunRank
        What to run.
    crash_file : int
        File descriptor for the stacks at the end of an orphan.
    """

    def __init__(self, link: Connection, run: RunRank, crash_file: int) -> None:
        self._link = link
        self._run = run
        self._crash_file = crash_file
        self._sending = threading.Lock()
        self._session = RankSession(run.spec, run.info, self._send)
        settings = run.spec.ranks
        self._watch = RendezvousWatch(None if settings is None else settings.rendezvous_timeout_s)
        self._is_watching = True
        # From the beginning: the first ping may never come.
        self._postpone_exit()
        threading.Thread(target=self._listen, name="dasktune-link", daemon=True).start()

    def run(self) -> None:
        """Call the user's function, and report how it ended."""
        spec = spec_of_rank(self._run.spec, self._run.info.world_rank)
        with in_trial_directory(spec), descriptors_redirected(spec, _no_transfers()):
            error = self._call()
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
        self._send(RankEnded(error=error))

    def _call(self) -> ErrorInfo | None:
        """Return the error of user code; None if it ended well."""
        payload = self._run.payload
        try:
            if payload.client:
                offer_pickled_client(payload.client)
            code, config = open_code(payload.code or b"", payload.find), open_config(payload.config)
            offer_envs(code.envs)
            request = code.trainable.ranks
            self._session.reduce = None if request is None else request.reduce
            enter_session(self._session)
            self._send(RankBegan(pid=os.getpid()))
            call_and_end_forks(run_function, code.trainable, dict(config), self._session.report)
        except TrialInterrupted as interruption:
            # Without an order it is user code that has raised it.
            return None if self._session.has_left else error_info(interruption)
        except BaseException as error:
            return None if self._session.has_left else error_info(error)
        finally:
            self._session.close()
        return None

    def _send(self, message: WordOfRank) -> None:
        blob = pickle.dumps(message)
        with self._sending:
            self._link.send_bytes(blob)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                message = self._link.recv()
                if isinstance(message, Ping):
                    self._postpone_exit()
                    self._look_for_rendezvous()
                else:
                    self._session.answer(message)
        die()

    def _look_for_rendezvous(self) -> None:
        # A rank that has reported has met the others, or needs no rendezvous.
        if not self._is_watching or self._session.has_reported:
            return
        if self._watch.look(sys._current_frames().values()):
            self._is_watching = False
            self._send(RendezvousLate())

    def _postpone_exit(self) -> None:
        faulthandler.dump_traceback_later(self._run.lost_after_s, exit=True, file=self._crash_file)


def _no_transfers() -> TransferQueue:
    """Return a queue that nothing uses: all ranks see the storage."""
    return TransferQueue(lambda number, transfer: None)
