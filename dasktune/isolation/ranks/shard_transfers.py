"""The coordinator's part in checkpoints of several ranks that are uploaded while these train on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dasktune.isolation.ranks.rank_messages import (
    DropShards,
    Shard,
    ShardsStaged,
    ShardsUploaded,
    StageShards,
    ToAgent,
    UploadShards,
)
from dasktune.isolation.ranks.rank_session import exception_of
from dasktune.storage.checkpoints.manifest import FileEntry
from dasktune.trainable.async_exception import TrialInterrupted

#: Seconds to wait, after a kill, for agents that still write. Then the directory is deleted.
_KILL_LIMIT_S: Final = 2.0


class WorkerGone(Exception):
    """The connection to another worker of the trial has ended, so its ranks are lost."""


class ShardTransfers:
    """Lets the agents copy and upload the files of their ranks, and waits for them; thread-safe.

    Parameters
    ----------
    send : callable
        Sends a message to the agent at an address.
    kill_limit_s : float, default=2.0
        Seconds to wait, after a kill, for agents that still write.
    """

    # The coordinator's thread stages, and the thread of the trial's uploader uploads. Neither reads
    # the group's inbox meanwhile: the coordinator may itself wait for the uploader. So answers, the
    # loss of a worker and a kill come here directly, from the threads of the connections:
    #
    # - A loss or kill before the wait: the wait finds it. One during the wait ends it.
    # - An agent answers each order once, also if it is dropped meanwhile. The wait ends when all
    #   agents in contact have answered, so none of them writes any more when the caller deletes an
    #   incomplete checkpoint. After a kill that wait is short; a start of the trial that comes
    #   later deletes what is written after it.
    # - The death of a rank changes nothing: the agents have the files.

    def __init__(self, send: Callable[[str, ToAgent], None], *, kill_limit_s: float = _KILL_LIMIT_S) -> None:
        self._send = send
        self._kill_limit_s = kill_limit_s
        self._changed = threading.Condition()
        self._number = 0
        #: The agents that have files of each staged checkpoint.
        self._staged: dict[int, tuple[str, ...]] = {}
        self._answers: dict[tuple[type, int, str], ShardsStaged | ShardsUploaded] = {}
        self._lost: dict[str, str] = {}
        #: When the trial was killed, on the monotonic clock.
        self._killed: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is staged."""
        with self._changed:
            return not self._staged

    def stage(self, shards: Mapping[str, Mapping[int, Shard]]) -> int | None:
        """Let the agents copy files to their disks; return the number of the copy.

        Parameters
        ----------
        shards : mapping of str to mapping of int to Shard
            The files of each rank, by the address of its agent.

        Returns
        -------
        int or None
            None if a disk is full. Then there is no copy.

        Raises
        ------
        Exception
            The error of an agent. There is no copy then.
        TrialInterrupted
            If the trial was killed.
        WorkerGone
            If a worker is lost.
        """
        with self._changed:
            self._number += 1
            number = self._number
            self._staged[number] = tuple(shards)
        try:
            for address, files in shards.items():
                self._send(address, StageShards(number=number, shards=files))
            answers = self._wait(ShardsStaged, number)
            is_full = False
            for answer in answers:
                assert isinstance(answer, ShardsStaged), answer
                if answer.error is not None and not answer.is_full:
                    raise exception_of(answer.error)
                is_full = is_full or answer.is_full
        except BaseException:
            self.drop(number)
            raise
        if is_full:
            self.drop(number)
            return None
        return number

    def upload(self, number: int, path: str) -> dict[str, FileEntry]:
        """Let the agents upload a copy, and return the entries of all files for the manifest.

        Parameters
        ----------
        number : int
            The number of the copy.
        path : str
            The checkpoint's path below the experiment.

        Raises
        ------
        Exception, TrialInterrupted, WorkerGone
            As for `stage`.
        """
        for address in self._staged.get(number, ()):
            self._send(address, UploadShards(number=number, path=path))
        entries: dict[str, FileEntry] = {}
        for answer in self._wait(ShardsUploaded, number):
            assert isinstance(answer, ShardsUploaded), answer
            if answer.error is not None:
                raise exception_of(answer.error)
            entries |= answer.entries
        return entries

    def drop(self, number: int) -> None:
        """Forget a copy, and let the agents delete what they have of it."""
        with self._changed:
            addresses = self._staged.pop(number, ())
            for key in [key for key in self._answers if key[1] == number]:
                del self._answers[key]
            self._changed.notify_all()
        for address in addresses:
            self._send(address, DropShards(number=number))

    def close(self) -> None:
        """Drop all copies that are left."""
        for number in list(self._staged):
            self.drop(number)

    def wait_until_idle(self) -> None:
        """Wait until each copy was dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self._staged)

    def take(self, address: str, message: ShardsStaged | ShardsUploaded) -> None:
        """Take an answer of an agent."""
        with self._changed:
            if message.number in self._staged:
                self._answers[type(message), message.number, address] = message
                self._changed.notify_all()

    def lose(self, address: str, reason: str) -> None:
        """Note that a worker is out of contact; copies of which it has files are useless."""
        with self._changed:
            self._lost.setdefault(address, reason)
            useless = [number for number, places in self._staged.items() if address in places]
            others = [(one, number) for number in useless for one in self._staged[number] if one != address]
            self._changed.notify_all()
        for other, number in others:
            self._send(other, DropShards(number=number))

    def kill(self) -> None:
        """Note that the trial was killed, and that its agents drop all copies."""
        with self._changed:
            if self._killed is None:
                self._killed = time.monotonic()
            self._changed.notify_all()

    def _wait(self, kind: type, number: int) -> Sequence[ShardsStaged | ShardsUploaded]:
        """Return the answers of all agents that have files of a checkpoint."""
        addresses = self._staged.get(number, ())

        def is_waiting_for(address: str) -> bool:
            # A copy may be dropped before this wait or during it. Its answers are not kept then.
            is_answered = (kind, number, address) in self._answers
            return number in self._staged and not is_answered and address not in self._lost

        with self._changed:
            while any(map(is_waiting_for, addresses)):
                left = None if self._killed is None else self._killed + self._kill_limit_s - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            if self._killed is not None or number not in self._staged:
                raise TrialInterrupted
            if gone := [one for one in addresses if one in self._lost]:
                raise WorkerGone(f"the connection to worker {gone[0]} was lost: {self._lost[gone[0]]}")
            return [self._answers[kind, number, one] for one in addresses]
