"""`ExperimentQueue`: the files of a queue of experiments.

Each experiment has a directory in the queue's. Each file in it is created exclusively, once, and
never changed, except ``note.json``, which is only shown:

=====================  ==========================================================================
``tuner.pkl``          the pickled arguments of the tuner
``entry.json``         name, priority, weight; the experiment is in the queue when this file exists
``driver/``            the lease of the driver that runs the experiment, see `LeaderLock`
``starts/<n>.json``    the driver with lease n has begun, and the journal had so many records
``failures/<n>.json``  the driver with lease n has failed, with an error that may pass or not
``directory.json``     the experiment's directory, which the first driver has chosen
``cancel.json``        the user has cancelled the experiment
``end.json``           how the experiment has ended
``note.json``          why the experiment could not start the last time
=====================  ==========================================================================
"""

# Orders of events. A process may die between any two writes.
#
# - A submission dies before `entry.json`: the experiment is not in the queue, and its pickle is
#   ignored.
# - Two drivers take up one experiment: the lock lets one of them pass. The other one gets the lock
#   later, looks for `end.json` only then, and does nothing if it exists.
# - A driver dies after the lock: the lease ends, and the next driver gets the lock.
# - A driver dies after `directory.json`: the next one restores the experiment in this directory, or
#   begins it there if nothing was stored yet.
# - A driver dies after the experiment's end and before `end.json`: the next one restores the
#   ended experiment, which has nothing to run, and writes `end.json`.
# - A driver that only seemed dead records an end beside its successor: `end.json` is created once,
#   so the first end stands. The results are safe from it because of the lock of the experiment's
#   own directory.
# - The user cancels between a driver's look at `cancel.json` and its first trial: the driver looks
#   again every few seconds while the experiment runs. If the experiment ends first, it has
#   finished.
# - An experiment is removed: only after its end is recorded, and `entry.json` first, `tuner.pkl`
#   second, and all other files after them. So a driver that comes late finds the end, or else no
#   `entry.json`, for which it looks after that, and it never runs the experiment again. A runner
#   that has read the experiment before starts a driver at most, which ends. What a removal that
#   died, or such a driver, has left is removed the next time: there is no `entry.json`, but there
#   is an end, or no `tuner.pkl`. The directory of a submission looks like the latter as long as
#   its `tuner.pkl` is being written, which may take minutes, so it has to be a day old.
# - An orderly end of a driver, which leaves the experiment in the queue, deletes its start, so that
#   it does not count as a death. A driver that dies in between counts as one.

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from pickle import PickleError
from typing import Any, Final

from dasktune.errors import ConfigError, PreflightError, StorageError, TuneError
from dasktune.storage.fs.format import FORMAT
from dasktune.storage.fs.owned_entries import exposure
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.retry import is_transient
from dasktune.storage.fs.storage import Storage, is_relative_name
from dasktune.storage.journal.strict_json import parse
from dasktune.storage.leader.leader_lock import leader_status
from dasktune.storage.queue.queue_state import (
    MOST_DEATHS,
    OVER,
    QueueState,
    QueueStatus,
    count_deaths,
    state_of,
)

#: Seconds for which users of a queue retry an operation of its storage.
RETRY_SECONDS: Final = 30.0
#: Distinguishes an entry from any other JSON file.
_KIND: Final = "dasktune queued experiment"
#: The name of an experiment's directory, which begins with the time of its submission in UTC.
_ENTRY_ID: Final = re.compile(r"(\d{8}-\d{6})-[0-9a-f]{8}")
_ENTRY_TIME: Final = "%Y%m%d-%H%M%S"
#: Seconds that a submission may take at most.
_LONGEST_SUBMISSION: Final = 24 * 3600.0
#: The name of a file that a driver writes when it begins.
_START: Final = re.compile(r"\d{9,}\.json")
#: Longest reason in characters.
_LONGEST_REASON: Final = 2000


class ExposedQueueError(StorageError):
    """Other users of this machine can change what would be unpickled."""


class ExperimentQueue:
    """The experiments in a queue.

    Parameters
    ----------
    storage : Storage
        The queue's directory; it may be missing.

    Examples
    --------
    >>> queue = ExperimentQueue(Storage("memory://doctest-queue"))
    >>> entry_id = queue.add("first", b"pickle", priority=0, weight=1, submitted=0.0)
    >>> queue.status(entry_id).state.value
    'queued'
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def add(self, name: str, pickled: bytes, *, priority: float, weight: float, submitted: float) -> str:
        """Add an experiment, and return its ID.

        Parameters
        ----------
        name : str
            The experiment's name.
        pickled : bytes
            The arguments of the tuner.
        priority, weight, submitted : float
            As for :class:`QueueStatus`.
        """
        moment = datetime.fromtimestamp(submitted, timezone.utc)
        entry_id = f"{moment:{_ENTRY_TIME}}-{uuid.uuid4().hex[:8]}"
        # The client of a store repeats a write whose answer is lost, and finds the file.
        self.storage.claim(f"{entry_id}/tuner.pkl", pickled, durable=True)
        values = {"name": name, "priority": priority, "weight": weight, "submitted": submitted}
        self._write(entry_id, "entry.json", {"kind": _KIND, "format": FORMAT, **values})
        return entry_id

    def ids(self) -> list[str]:
        """Return the names in the queue's directory, of which some may be no experiments."""
        with reading("the queue", self.storage):
            return self.storage.names()

    def statuses(self, over: Mapping[str, QueueStatus] | None = None) -> list[QueueStatus]:
        """Return all experiments, in the order of their submission.

        An experiment whose files are damaged has failed, and one whose files cannot be read now is
        unknown, each with the reason. It hides no other one.

        Parameters
        ----------
        over : mapping of str to QueueStatus, optional
            Experiments by ID that are known to be over, and are not read again.
        """
        known = over or {}
        found = []
        for entry_id in self.ids():
            try:
                found.append(known[entry_id] if entry_id in known else self.status(entry_id))
            except ConfigError:
                pass  # a file, or the directory of a submission that has not ended
            except StorageError as error:
                state = QueueState.UNKNOWN if may_pass(error) else QueueState.FAILED
                found.append(QueueStatus(entry_id=entry_id, name=entry_id, state=state, reason=str(error)))
        return sorted(found, key=lambda one: (one.submitted, one.entry_id))

    def status(self, entry_id: str) -> QueueStatus:
        """Return an experiment.

        Parameters
        ----------
        entry_id : str
            Its ID.

        Raises
        ------
        ConfigError
            If the queue has no such experiment.
        StorageError
            If its files cannot be read.
        """
        known = is_relative_name(entry_id)
        entry = self._read(entry_id, "entry.json") if known else None
        if entry is None:
            raise ConfigError(f"entry must be one of the queue {self.storage}, got {entry_id!r:.100}")
        values = _checked_entry(entry, entry_id)
        files = self._names(entry_id)
        end = self._read(entry_id, "end.json") if "end.json" in files else None
        outcome = None if end is None else _outcome(end, entry_id)
        shown = end if end is not None else self._read_if(files, entry_id, "note.json")
        place = self._read_if(files, entry_id, "directory.json")
        cancelled = self._read_if(files, entry_id, "cancel.json") if end is None else {}
        ended = (end or cancelled).get("time")
        is_driven = outcome is None and self.is_driven(entry_id)
        state = state_of(outcome, is_driven=is_driven, is_cancelled="cancel.json" in files)
        reason = shown.get("reason", "") if state is not QueueState.RUNNING else ""
        return QueueStatus(
            entry_id=entry_id,
            state=state,
            reason=str(reason),
            directory=str(place.get("directory", "")),
            is_recorded=outcome is not None,
            ended=ended if state.is_over and type(ended) is float else None,
            **values,
        )

    def is_driven(self, entry_id: str) -> bool:
        """Whether a living driver holds the lock of an experiment, for display and for a runner."""
        return leader_status(self.entry(entry_id)).word == "alive"

    def entry(self, entry_id: str) -> Storage:
        """Return the directory of an experiment in the queue, which has its lock."""
        return self.storage.child(entry_id)

    def find(self, name: str) -> QueueStatus:
        """Return the newest experiment with this ID or name.

        Raises
        ------
        ConfigError
            If there is none.
        """
        matches = [one for one in self.statuses() if name in (one.entry_id, one.name)]
        if not matches:
            raise ConfigError(
                f"entry must be the ID or the name of an experiment in {self.storage}, got {name!r}"
            )
        return matches[-1]

    def pickled(self, entry_id: str) -> bytes:
        """Return the pickled arguments of the tuner.

        Raises
        ------
        ExposedQueueError
            If other users of this machine can change the queue: unpickling could run their code.
        """
        self.check_unexposed()
        check_unexposed(self.entry(entry_id), "the queued experiment")
        with reading("tuner.pkl", self.entry(entry_id)):
            return self.storage.read_bytes(f"{entry_id}/tuner.pkl")

    def check_unexposed(self) -> None:
        """Check that other users of this machine cannot change the queue.

        Raises
        ------
        ExposedQueueError
            If they can.
        """
        check_unexposed(self.storage, "the queue")

    def cancel(self, entry_id: str, by: str = "") -> None:
        """Ask for the end of an experiment; again, or after its end, this changes nothing.

        Parameters
        ----------
        entry_id : str
            The experiment.
        by : str, optional
            Who asks for it, for the journal.
        """
        self._create(entry_id, "cancel.json", {"by": by, "time": time.time()})

    def cancelled_by(self, entry_id: str) -> str:
        """Return who has cancelled an experiment; empty if that is not known."""
        try:
            by = (self._read(entry_id, "cancel.json") or {}).get("by")
        except StorageError as error:
            if may_pass(error):
                raise
            by = ""  # the file alone cancels the experiment, whatever it contains
        return by if isinstance(by, str) else ""

    def is_cancelled(self, entry_id: str) -> bool:
        """Whether the user has cancelled an experiment."""
        return self.storage.exists(f"{entry_id}/cancel.json")

    def prune(
        self, *, older_than_s: float, states: Collection[QueueState] = OVER, now: float | None = None
    ) -> list[QueueStatus]:
        """Remove experiments that are over, and return them. Their results stay.

        Runners and drivers may serve the queue meanwhile; the comment above says why that is safe.

        Parameters
        ----------
        older_than_s : float
            Seconds since the end, of which the clocks of two machines decide. Where an earlier
            version has recorded no time, the submission counts.
        states : collection of QueueState, optional
            States that are over; experiments in other ones stay.
        now : float, optional
            Wall clock time in seconds since 1970, by default of this machine.
        """
        moment = time.time() if now is None else now
        found, removed = self.statuses(), []
        for one in found:
            ended = one.submitted if one.ended is None else one.ended
            # An experiment with damaged files counts as failed, and may run in truth.
            is_known = one.is_recorded or one.state is QueueState.CANCELLED
            if is_known and one.state in OVER and one.state in states and moment - ended >= older_than_s:
                if not one.is_recorded:
                    # No driver has found it cancelled yet. From now on each of them does.
                    self.end(one.entry_id, QueueState.CANCELLED, "cancelled before it could start again")
                self._remove(one.entry_id)
                removed.append(one)
        for entry_id in set(self.ids()).difference(one.entry_id for one in found):
            if self._is_remainder(entry_id, moment):
                self._remove(entry_id)
        return removed

    def _remove(self, entry_id: str) -> None:
        self.storage.remove(f"{entry_id}/entry.json")
        self.storage.remove(f"{entry_id}/tuner.pkl")
        self.storage.remove_tree(entry_id)

    def _is_remainder(self, entry_id: str, now: float) -> bool:
        """Whether a directory is what is left of an experiment that was removed."""
        name = _ENTRY_ID.fullmatch(entry_id)
        if name is None:
            return False  # not ours
        files = self._names(entry_id)
        if "entry.json" in files or self.is_driven(entry_id):
            return False
        return "end.json" in files or ("tuner.pkl" not in files and _age(name[1], now) > _LONGEST_SUBMISSION)

    # For drivers that hold the experiment's lock

    def begin(self, entry_id: str, epoch: int, results: int | None) -> bool:
        """Record that a driver begins, and return whether it may run the experiment.

        It may not if the experiment has ended, is cancelled or is removed, or if too many drivers
        died; the end is recorded then.

        Parameters
        ----------
        entry_id : str
            The experiment.
        epoch : int
            The number of the driver's lease.
        results : int or None
            Number of the experiment's results; None if it is unknown.
        """
        if self.storage.exists(f"{entry_id}/end.json"):
            return False
        # After the end: a removal deletes both, in the opposite order.
        if not self.storage.exists(f"{entry_id}/entry.json"):
            return False
        if self.is_cancelled(entry_id):
            self.end(entry_id, QueueState.CANCELLED, "cancelled before it could start again")
            return False
        # Other names are files that were being written when a driver died.
        names = [name for name in self._names(entry_id, "starts") if _START.fullmatch(name)]
        before = [self._results_at(entry_id, name) for name in names]
        deaths = count_deaths([*before, results])
        if deaths >= MOST_DEATHS:
            reason = (
                f"{deaths} drivers died one after the other without a new result. Submit it again to retry"
            )
            self.end(entry_id, QueueState.FAILED, reason)
            return False
        self._create(entry_id, _start_name(epoch), {"results": results})
        return True

    def add_failure(self, entry_id: str, epoch: int, kind: str, results: int | None) -> int:
        """Record that a driver has failed, and return how often that has happened.

        Only failures of the same kind count that came without a new result in between. Their order
        does not matter, so that two errors that alternate end the experiment, too.

        Parameters
        ----------
        entry_id : str
            The experiment.
        epoch : int
            The number of the driver's lease.
        kind : str
            The kind of the error, without numbers or names that differ each time.
        results : int or None
            Number of the experiment's results when the driver began; None if it is unknown.
        """
        self._create(entry_id, f"failures/{epoch:09d}.json", {"error": kind, "results": results})
        failures = [self._read_failure(entry_id, name) for name in self._names(entry_id, "failures")]
        return failures.count((kind, results))

    def _read_failure(self, entry_id: str, name: str) -> tuple[Any, Any]:
        try:
            failure = self._read(entry_id, f"failures/{name}") or {}
        except StorageError as error:
            if may_pass(error):
                raise
            failure = {}  # left by a driver that died while it wrote it
        return failure.get("error"), failure.get("results")

    def give_back(self, entry_id: str, epoch: int, reason: str = "") -> None:
        """Leave an experiment in the queue at the orderly end of a driver, which is no death."""
        if reason:
            self.note(entry_id, reason)
        self.storage.remove(f"{entry_id}/{_start_name(epoch)}")

    def note(self, entry_id: str, reason: str) -> None:
        """Store why an experiment did not start; only shown."""
        content = json.dumps({"reason": reason[:_LONGEST_REASON]}).encode()
        self.storage.write_bytes(f"{entry_id}/note.json", content)

    def directory(self, entry_id: str) -> str:
        """Return the experiment's directory that a driver has recorded; empty before."""
        return str((self._read(entry_id, "directory.json") or {}).get("directory", ""))

    def resumed_at(self, entry_id: str) -> int:
        """Return the `resumed_at` of :meth:`set_directory`; -1 before."""
        position = (self._read(entry_id, "directory.json") or {}).get("resumed_at")
        return position if type(position) is int else -1

    def set_directory(self, entry_id: str, directory: str, resumed_at: int = -1) -> None:
        """Record the experiment's directory; again, this changes nothing.

        Parameters
        ----------
        entry_id : str
            The experiment.
        directory : str
            The URL of its directory.
        resumed_at : int, default=-1
            Records in the journal of the older experiment that this one resumes; -1 if none.
        """
        self._create(entry_id, "directory.json", {"directory": directory, "resumed_at": resumed_at})

    def end(self, entry_id: str, outcome: QueueState, reason: str = "") -> bool:
        """Record the end of an experiment, and return whether it had none.

        Parameters
        ----------
        entry_id : str
            The experiment.
        outcome : QueueState
            A state that is over.
        reason : str, optional
            Why.
        """
        assert outcome.is_over
        values = {"outcome": outcome.value, "reason": reason[:_LONGEST_REASON], "time": time.time()}
        return self._create(entry_id, "end.json", values)

    def _results_at(self, entry_id: str, name: str) -> int | None:
        """Return the number of results at the start of a driver; None if it is unknown."""
        try:
            start = self._read(entry_id, f"starts/{name}") or {}
        except StorageError as error:
            if may_pass(error):
                raise
            return None
        results = start.get("results")
        return results if type(results) is int else None

    def _names(self, entry_id: str, *parts: str) -> list[str]:
        with reading("the queue", self.storage):
            return self.storage.names(entry_id, *parts)

    def _read_if(self, files: list[str], entry_id: str, name: str) -> dict[str, Any]:
        return (self._read(entry_id, name) or {}) if name in files else {}

    def _read(self, entry_id: str, name: str) -> dict[str, Any] | None:
        with reading(name, self.storage):
            try:
                content = parse(self.storage.read_bytes(f"{entry_id}/{name}"))
            except (FileNotFoundError, NotADirectoryError):
                return None
        if not isinstance(content, dict):
            raise StorageError(f"{entry_id}/{name} of the queue {self.storage} is damaged. Remove it")
        return content

    def _create(self, entry_id: str, name: str, values: Mapping[str, Any]) -> bool:
        try:
            self._write(entry_id, name, values)
        except FileExistsError:
            return False
        return True

    def _write(self, entry_id: str, name: str, values: Mapping[str, Any]) -> None:
        # The writer's ID makes the content unique, so that a repeated write recognises its file.
        content = {**values, "writer": uuid.uuid4().hex}
        self.storage.claim(f"{entry_id}/{name}", json.dumps(content).encode(), durable=True)


def check_unexposed(storage: Storage, what: str) -> None:
    """Check that other users of this machine cannot change a directory that is unpickled.

    Parameters
    ----------
    storage : Storage
        The directory; nothing is checked in an object store.
    what : str
        The directory, for the message.

    Raises
    ------
    ExposedQueueError
        If they can.
    """
    reason = exposure(storage.path()) if storage.is_local else ""
    if reason:
        raise ExposedQueueError(
            f"{what} at {storage} must be a directory that only you can change: {reason}. Its files are "
            "unpickled, which can run code of other users"
        )


def may_pass(error: BaseException | None) -> bool:
    """Whether an error of the storage may be gone later.

    A StorageError or PreflightError without a cause names what is damaged, or what the user has to
    change. Errors of unpickling are permanent.

    Parameters
    ----------
    error : exception or None
        The error; None is none that may pass.

    Examples
    --------
    >>> may_pass(OSError(116, "stale file handle")), may_pass(StorageError("damaged"))
    (True, False)
    """
    error = root_cause(error)
    is_damage = isinstance(error, TuneError | PickleError | EOFError | LookupError)
    return isinstance(error, Exception) and not is_damage and is_transient(error)


def root_cause(error: BaseException | None) -> BaseException | None:
    """Return the error that a StorageError or a PreflightError was raised from; None without one.

    Parameters
    ----------
    error : exception or None
        The error; another one is returned.
    """
    while isinstance(error, StorageError | PreflightError):
        error = error.__cause__
    return error


def _age(moment: str, now: float) -> float:
    """Return the seconds since the time in an ID; 0 if there is no such time.

    Examples
    --------
    >>> _age("19700101-000100", 90.0), _age("20269999-000000", 0.0)
    (30.0, 0.0)
    """
    try:
        began = datetime.strptime(moment, _ENTRY_TIME).replace(tzinfo=timezone.utc)
    except ValueError:  # not ours
        return 0.0
    return now - began.timestamp()


def _start_name(epoch: int) -> str:
    return f"starts/{epoch:09d}.json"


def _checked_entry(entry: Mapping[str, Any], entry_id: str) -> dict[str, Any]:
    """Return the values of an entry, which any program may have written."""
    numbers = [entry.get(key) for key in ("priority", "weight", "submitted")]
    fits = all(type(one) in (int, float) and math.isfinite(one) for one in numbers)  # type: ignore[arg-type]
    is_one = entry.get("kind") == _KIND and isinstance(entry.get("name"), str)
    if not (is_one and fits and entry.get("format") == FORMAT):
        raise StorageError(
            f"entry.json of {entry_id} in the queue is damaged, or of a newer dasktune. Remove it, "
            "and submit the experiment again"
        )
    return {key: entry[key] for key in ("name", "priority", "weight", "submitted")}


def _outcome(end: Mapping[str, Any], entry_id: str) -> QueueState:
    try:
        outcome = QueueState(end.get("outcome"))
    except ValueError:
        outcome = QueueState.UNKNOWN
    if not outcome.is_over:
        raise StorageError(f"end.json of {entry_id} in the queue is damaged")
    return outcome
