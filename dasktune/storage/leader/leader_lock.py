"""Leader election: one driver leads an experiment, and a second one is refused while it lives.

A driver's *lease* is a small file, which the driver rewrites every third of the lease's ttl (time
to live). Leases are numbered. Each is created with an exclusive write, so of several drivers that
claim the next number exactly one gets it, on every kind of storage. A driver that sees a higher
number than its own has lost the lead.

The clocks of two machines are never compared: a lease has expired when another driver has seen it
unchanged for its ttl. On the machine of the leader there are faster ways. Its processes share a
clock, the system says whether the leader's process lives, and on a disk the leader holds a lock of
the operating system (``flock``) while it lives.

A driver also loses the lead if its lease, or the experiment's directory on a disk, is deleted,
renamed or replaced. What is not there is looked for again for `SEARCH_SECONDS` before it counts as
deleted: a server that restarts, or a proxy, may say once that a file does not exist.

The lease is a lock with a timeout, so a paused leader can wake up and write for a moment after its
successor has taken over. The epochs of the journal keep its late records out of the history.
"""

# Orders of events:
#
# - Late renewal: the leader rewrites its own lease file only. If a successor has claimed the next
#   number before or during the write, the write changes nothing for others, and the next renewal
#   sees the higher number. So a leader notices the loss at most a third of its ttl after it can
#   reach the storage again.
# - Renewal and release come from two threads and exclude each other by `_renewing`: after the
#   release no renewal writes the lease again.
# - Two candidates claim the same number: one gets FileExistsError and watches the other's lease.
# - A candidate claims a number late: others have claimed that number and a higher one meanwhile,
#   and the leader has deleted the lower lease. A lease is deleted only after a higher one was
#   claimed, so the candidate lists the leases again, finds the higher one, and withdraws its own.
# - A candidate locks the next number's lock file before it writes the lease. So if a lease says
#   that its driver holds the lock, and the file is not locked, that driver is dead. A candidate
#   that dies between lock and lease drops its lock with its process. If it hangs there for a ttl,
#   another candidate claims the lease without the lock; the first one's claim fails when it wakes.
# - The lock file has a copy of the first lease: a driver on this machine is found there if its
#   lease is damaged.
# - A superseded driver wakes up: until its next renewal it does not know that it has lost the lead.
#   What must not be done then, such as deleting checkpoints, asks `confirm` first. So it happens at
#   most `CONFIRMED_FOR` seconds after the last check.
# - A driver whose lease is not found continues, and does not write the lease: it may belong to
#   another experiment by now. Its next look finds it again; or finds another number or another
#   owner, and the lead is lost at once; or the time is over. If the ttl is over before, another
#   driver may lead meanwhile: as for a late renewal, the journal has only what counts. No file of
#   the journal is overwritten, since each is created with an exclusive write. A deletion of
#   checkpoints waits, since `confirm` raises.
# - A fork of the driver inherits the lock without its thread. It neither renews nor releases it.
# - Clocks: the ttl is measured with monotonic clocks, on the leader's machine or by the candidate
#   alone. `expires` is wall clock time for people, so a jump of it only changes what is shown.

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any, Final, Literal, NoReturn

from dasktune.errors import StorageError, check
from dasktune.storage.fs.probe import remove_if_empty
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.directory_watch import DirectoryWatch
from dasktune.storage.leader.leader_lease import (
    DIRECTORY,
    LAST_EPOCH,
    LONGEST_TTL,
    LeaderLease,
    epoch_of,
    has_died,
    lease_name,
    lock_name,
    machine_id,
    newest_epoch,
    process_identity,
)

logger = logging.getLogger(__name__)

#: How many times a candidate checks a lease within its ttl.
_CHECKS: Final = 30
#: Seconds for which a driver relies on its last check that it leads.
CONFIRMED_FOR: Final = 1.0
#: Seconds for which a lease or directory that is not found is looked for again.
SEARCH_SECONDS: Final = 30.0
#: Largest lock file in bytes that is read; a lease has a few hundred.
_LARGEST: Final = 100_000


class OtherDriverLeadsError(StorageError):
    """Another driver that lives leads the experiment."""


class LeaseNotFoundError(StorageError):
    """The lease or a directory was not found, for less than `SEARCH_SECONDS`."""


class LeaderLock:
    """Holds the lead of an experiment; used as a context manager.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    ttl_s : float, default=30.0
        Seconds without a renewal after which another driver may take the lead. At most 3,600.
    on_lost : callable, optional
        Called without arguments, once, when this driver has lost the lead: in a thread of the lock,
        or in the thread that calls :meth:`renew` or :meth:`confirm`.
    clock : callable, default=time.monotonic
        Returns seconds; the same for all processes of this machine.
    sleep : callable, default=time.sleep
        Waits for a number of seconds.
    machine : str, optional
        Identity of the machine of this driver, by default :func:`machine_id`. Drivers with the same
        one share `clock` and, on a disk, the locks of the operating system.

    Raises
    ------
    ConfigError
        If an argument is not valid.
    StorageError
        On entering: if another driver leads, which the message names, or the storage failed.

    Notes
    -----
    Entering is immediate if there is no leader, if the last one released the lead, or if it ran on
    this machine, where its process can be checked. Otherwise its lease is watched: up to a third of
    its ttl if the leader lives, and the whole ttl if not.

    Examples
    --------
    >>> storage = Storage("memory://doctest-lock")
    >>> with LeaderLock(storage) as lock:
    ...     lock.lost, lock.epoch
    (False, 1)
    """

    def __init__(
        self,
        storage: Storage,
        *,
        ttl_s: float = 30.0,
        on_lost: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        machine: str | None = None,
    ) -> None:
        given: Any = ttl_s
        fits = type(given) in (int, float) and 0 < given <= LONGEST_TTL
        check(fits, "ttl_s", f"a positive number of seconds up to {LONGEST_TTL:.0f}", ttl_s)
        self.storage = storage
        self.ttl_s = float(ttl_s)
        self.machine = machine_id() if machine is None else machine
        #: Number of the lease, from 1; 0 before there is one.
        self.epoch = 0
        self._on_lost = on_lost
        self._clock, self._sleep = clock, sleep
        self._lease: LeaderLease | None = None
        self._loss = ""
        self._watch = DirectoryWatch(storage)
        #: Since when each look has found something missing; None after any other look.
        self._missing_since: float | None = None
        #: When the storage last showed that this driver leads.
        self._confirmed = 0.0
        self._process = os.getpid()
        self._descriptor = -1
        #: When the next lease was first found locked but not written.
        self._blocked_since = 0.0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        #: Held by a renewal (a thread of the lock) and by the release (the caller's thread).
        self._renewing = threading.Lock()

    @property
    def lost(self) -> bool:
        """Whether this driver has lost the lead; known up to a third of the ttl later."""
        return self._loss != ""

    @property
    def loss(self) -> str:
        """How the lead was lost, and what to do; empty while this driver leads."""
        return self._loss

    def acquire(self) -> None:
        """Take the lead.

        Raises
        ------
        StorageError
            If another driver leads, or the storage failed.
        """
        check(self.epoch == 0, "LeaderLock", "acquired once", "a second time", "Make a new one.")
        watched = _LeaseWatch(self)
        try:
            while not self._claim(watched.wait_for_end()):
                pass  # another candidate was faster: its lease is watched now
            name = f"dasktune-driver-lock-{self.epoch}"
            thread = threading.Thread(target=self._renew_until_closed, name=name, daemon=True)
            thread.start()
            self._thread = thread
        except StorageError:
            raise  # it has claimed nothing
        except BaseException:
            # Ctrl-C: the caller does not learn whether it leads.
            self._undo_acquisition()
            raise

    def renew(self) -> bool:
        """Check for a successor and rewrite the lease. A thread calls this; more calls are safe.

        Returns
        -------
        bool
            Whether this driver still leads.

        Raises
        ------
        StorageError
            If the storage failed.
        """
        return self._check(renews=True)

    def confirm(self) -> bool:
        """Whether this driver still leads, as the storage showed within the last second.

        If the last check is older, this checks it.

        Raises
        ------
        StorageError
            If the storage failed, so that it is unknown.
        """
        age = self._clock() - self._confirmed
        return not self.lost if 0 <= age < CONFIRMED_FOR else self._check(renews=False)

    def _check(self, *, renews: bool) -> bool:
        if os.getpid() != self._process:
            return False  # a fork, which may have inherited a locked `_renewing`
        with self._renewing:
            lease = self._lease
            if lease is None or self.lost:
                return False
            asked = self._clock()
            self._loss = loss = self._find_loss(lease)
            if not loss:
                self._confirmed = asked
                if renews:
                    self._lease = self._stamped(replace(lease, renewals=lease.renewals + 1))
                    self._write(self._lease)
                return True
        logger.warning("%s. This driver stops.", self._loss)
        try:
            if self._on_lost is not None:
                self._on_lost()
        except Exception:  # the lead is lost anyway
            logger.exception("the callback for the loss of the lead has failed")
        return False

    def _find_loss(self, lease: LeaderLease) -> str:
        """Return how this driver has lost the lead; empty if it leads.

        Raises
        ------
        StorageError
            If the storage failed, or lacks something that is looked for again.
        """
        since, self._missing_since = self._missing_since, None
        with reading(DIRECTORY, self.storage):
            try:
                return self._look_for_loss(lease)
            except FileNotFoundError as error:
                missing = str(error)
        now = self._clock()
        self._missing_since = now if since is None else since
        seconds = now - self._missing_since
        # Without a thread, Ctrl-C has come while the lead was taken: there may be no lease yet.
        if self._thread is not None and seconds < SEARCH_SECONDS:
            raise LeaseNotFoundError(f"{missing}; it is looked for again for {SEARCH_SECONDS:g} s")
        return _how_to_continue(f"{missing} for {seconds:.0f} s")

    def _find_loss_at_end(self, lease: LeaderLease) -> str:
        """Find a loss; wait while something is looked for, because no renewal follows."""
        is_logged = False
        while True:
            try:
                return self._find_loss(lease)
            except LeaseNotFoundError as error:
                if not is_logged:
                    logger.warning("%s", error)
                is_logged = True
                self._sleep(SEARCH_SECONDS / _CHECKS)

    def _look_for_loss(self, lease: LeaderLease) -> str:
        change = self._watch.find_change()
        if change:
            return _how_to_continue(change)
        newest = newest_epoch(self.storage)
        if newest > self.epoch:
            return (
                f"another driver leads {self.storage} now: this one was frozen, or cut off from its "
                f"storage, and did not renew its lease for {self.ttl_s:g} s. Its results since then "
                "do not count"
            )
        name = lease_name(self.epoch)
        try:
            # A lower number: the directory was deleted, and an experiment has begun there anew.
            content = self.storage.read_bytes(lease_name(newest)) if newest else None
        except FileNotFoundError:
            content = None
        if content is None:
            raise FileNotFoundError(f"{name} of {self.storage} was not found")
        found = LeaderLease.decode(content)
        # A damaged lease is written again.
        if found is not None and found.owner != lease.owner:
            return _how_to_continue(f"{name} of {self.storage} was replaced")
        return ""

    def close(self) -> None:
        """Release the lead, if this driver has it, so that the next driver need not wait.

        If the storage fails, this logs a warning and the next driver waits for the lease to expire.
        """
        if os.getpid() != self._process:
            return
        self._ending.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._renewing:
            lease, self._lease = self._lease, None
            try:
                if lease is not None and not self.lost:
                    self._release(lease)
            finally:  # also after Ctrl-C, as this may wait for what is not found
                self._watch.close()
                self._unlock()

    def withdraw(self) -> None:
        """Release the lead and delete the lease, as if this driver had never led.

        For a driver that has stored nothing. If the storage fails, this logs a warning.
        """
        if os.getpid() != self._process:
            return
        with self._renewing:
            lease, self._lease = self._lease, None
            try:
                if lease is not None and not self.lost and not self._find_loss(lease):
                    self.storage.remove(lease_name(self.epoch))
                    if self._descriptor >= 0:
                        # A candidate that has opened this file already notices that it is gone.
                        self.storage.remove(lock_name(self.epoch))
            except Exception as error:  # the store's client may raise any exception
                logger.warning("could not remove the lease in %s: %r", self.storage, error)
        self.close()
        remove_if_empty(self.storage.child(DIRECTORY))
        remove_if_empty(self.storage)

    def delete_files(self, delete: Callable[[], None]) -> None:
        """Delete files whose loss would otherwise count as the loss of the lead.

        Parameters
        ----------
        delete : callable
            Deletes them. The lease is not renewed meanwhile, so it must take less than a ttl.
        """
        with self._renewing:
            delete()
            self._watch.close()
            self._watch = DirectoryWatch(self.storage)
            self._watch.find_change()

    def __enter__(self) -> LeaderLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _release(self, lease: LeaderLease) -> None:
        try:
            self._loss = loss = self._find_loss_at_end(lease)
            if not loss:
                self._write(replace(lease, released=True))
        except Exception as error:  # the store's client may raise any exception
            logger.warning(
                "could not release the lead of %s: %r. The next driver has to wait for %g s.",
                self.storage,
                error,
                self.ttl_s,
            )

    def _claim(self, epoch: int) -> bool:
        """Try to get the lease with this number, and return whether this driver has it."""
        # Lock before the lease becomes visible: an unlocked lease counts as a dead driver's.
        if self.storage.is_local and not self._lock(epoch):
            return False
        lease = self._stamped(
            LeaderLease(
                owner=uuid.uuid4().hex,
                host=platform.node()[:200],
                pid=os.getpid(),
                ttl_s=self.ttl_s,
                machine=self.machine,
                flock=self._descriptor >= 0,
                process=process_identity(os.getpid()),
            )
        )
        # Before the lease is written: if Ctrl-C comes meanwhile, `acquire` withdraws it.
        self.epoch, self._lease, self._process = epoch, lease, os.getpid()
        self._confirmed = lease.renewed
        try:
            leads = self._write_new(lease) and self._is_highest(epoch)
        except StorageError:
            self.epoch, self._lease = 0, None
            raise
        if not leads:
            self.epoch, self._lease = 0, None
        return leads

    def _write_new(self, lease: LeaderLease) -> bool:
        """Write the lease of this epoch, and return False if another candidate has written one."""
        try:
            if self._descriptor >= 0:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, lease.encode(), 0)
            self.storage.claim(lease_name(self.epoch), lease.encode(), durable=True)
        except FileExistsError:
            self._unlock()
            return False
        except Exception as error:
            self._unlock()
            raise StorageError(f"cannot take the lead of {self.storage}: {error!r}") from error
        return True

    def _undo_acquisition(self) -> None:
        """Release the lead; delete all files if no driver has led before."""
        if self.epoch != 1:
            self.close()
            return
        lock = self._descriptor
        with contextlib.suppress(OSError):
            # The lease may not be written yet, but the lock file is there. A candidate that has
            # opened it already notices that it is gone.
            path = self.storage.inside(lock_name(1)) if lock >= 0 else ""
            if path and os.path.samestat(os.fstat(lock), os.stat(path)):
                os.unlink(path)
        self.withdraw()

    def _is_highest(self, epoch: int) -> bool:
        """Withdraw the claimed lease if there is a higher one; otherwise delete the lower ones."""
        try:
            names = self.storage.names(DIRECTORY)
            self._watch.find_change()
        except Exception as error:
            self._withdraw(epoch)
            raise StorageError(f"cannot take the lead of {self.storage}: {error!r}") from error
        if any(epoch_of(name) > epoch for name in names if name.endswith(".json")):
            self._withdraw(epoch)
            return False
        self._remove_stale_leases(name for name in names if 0 < epoch_of(name) < epoch)
        return True

    def _withdraw(self, epoch: int) -> None:
        with contextlib.suppress(Exception):  # the lease expires
            self.storage.remove(lease_name(epoch))
        self._watch.close()
        self._unlock()

    def _lock(self, epoch: int) -> bool:
        """Lock the lease's lock file; return False if another process has it locked."""
        path = self.storage.inside(lock_name(epoch))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            return False  # another driver has withdrawn, and removed the directory just now
        except OSError as error:
            raise StorageError(f"cannot take the lead of {self.storage}: {error!r}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            return self._wait_for_locked_lease()
        except OSError:
            self._unlock()  # a disk without locks: only renewals show that the driver lives
            return True
        if os.fstat(self._descriptor).st_nlink == 0:
            self._unlock()  # a driver has withdrawn and deleted the file before it was locked
            return False
        return True

    def _wait_for_locked_lease(self) -> bool:
        """Wait a little for a lease that is locked but not written yet.

        Return True if the process that holds the lock has not written the lease for a whole ttl.
        """
        now = self._clock()
        self._blocked_since = self._blocked_since or now
        if now - self._blocked_since >= self.ttl_s:
            return True
        self._sleep(self.ttl_s / _CHECKS)
        return False

    def _unlock(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _stamped(self, lease: LeaderLease) -> LeaderLease:
        expires = datetime.now(timezone.utc) + timedelta(seconds=self.ttl_s)
        return replace(lease, renewed=self._clock(), expires=expires.isoformat(timespec="seconds"))

    def _write(self, lease: LeaderLease) -> None:
        try:
            self.storage.write_bytes(lease_name(self.epoch), lease.encode())
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"cannot renew the lead of {self.storage}: {error!r}") from error

    def _renew_until_closed(self) -> None:
        failing = False
        while not self._ending.wait(self.ttl_s / 3):
            try:
                if not self.renew():
                    return
                failing = False
            except StorageError as error:
                if not failing:
                    logger.warning(
                        "%s. The renewal is retried; after %g s another driver may take the lead.",
                        error,
                        self.ttl_s,
                    )
                failing = True

    def _remove_stale_leases(self, names: Iterable[str]) -> None:
        """Delete the leases before this driver's, which no longer matter."""
        try:
            for name in names:
                self.storage.remove(f"{DIRECTORY}/{name}")
        except Exception as error:  # old leases do no harm
            logger.info("could not remove old leases of %s: %r", self.storage, error)


class _LeaseWatch:
    """Waits until the leader's lease has ended, or raises if the leader lives."""

    def __init__(self, lock: LeaderLock) -> None:
        self._lock, self._storage = lock, lock.storage
        self._clock, self._sleep = lock._clock, lock._sleep
        #: Number and content of the lease when it was first seen, and the time.
        self._seen: tuple[int, bytes] | None = None
        self._since = 0.0

    def wait_for_end(self) -> int:
        """Wait until no driver leads, and return the number of the lease to claim.

        Raises
        ------
        StorageError
            If another driver leads.
        """
        while True:
            with reading(DIRECTORY, self._storage):
                epoch = newest_epoch(self._storage)
                data = self._content(epoch)
            if epoch >= LAST_EPOCH:
                raise StorageError(
                    f"{lease_name(epoch)} in {self._storage} has a number that no driver can have "
                    "reached. If no driver runs, remove it."
                )
            lease = LeaderLease.decode(data)
            if epoch == 0 or self._has_ended(epoch, data, lease):
                return epoch + 1
            self._sleep((self._lock.ttl_s if lease is None else lease.ttl_s) / _CHECKS)

    def _content(self, epoch: int) -> bytes:
        try:
            return self._storage.read_bytes(lease_name(epoch)) if epoch else b""
        except FileNotFoundError:
            return b""  # a successor has just removed it, and is found at the next check

    def _has_ended(self, epoch: int, data: bytes, lease: LeaderLease | None) -> bool:
        if lease is not None and lease.released:
            return True
        now = self._clock()
        known = lease or _lease_in_lock_file(self._storage, epoch)
        is_here = known is not None and known.machine != "" and known.machine == self._lock.machine
        if known is not None and is_here and _leader_has_died(self._storage, epoch, known):
            return True
        if lease is not None and is_here:
            # The same clock: the age is known without waiting.
            age = now - lease.renewed
            if 0 <= age < lease.ttl_s:
                self._refuse(lease)
            if age >= lease.ttl_s:
                return True
        if self._seen is None or self._seen[0] != epoch:
            self._seen, self._since = (epoch, data), now
            logger.info("checking whether the driver that leads %s is alive", self._storage)
            if lease is None and data:
                logger.warning(
                    "%s of %s is damaged. Waiting %g s, in case its driver is alive and rewrites it",
                    lease_name(epoch),
                    self._storage,
                    self._lock.ttl_s,
                )
        if self._seen[1] != data:
            self._refuse(lease)
        return now - self._since >= (self._lock.ttl_s if lease is None else lease.ttl_s)

    def _refuse(self, lease: LeaderLease | None) -> NoReturn:
        who = "" if lease is None else f" (pid {lease.pid} on host {lease.host})"
        ttl_s = self._lock.ttl_s if lease is None else lease.ttl_s
        raise OtherDriverLeadsError(
            f"another driver{who} leads the experiment at {self._storage}: stop it, or wait until "
            f"it has not renewed its lease for {ttl_s:g} s"
        )


def current_leader(storage: Storage, *, clock: Callable[[], float] = time.monotonic) -> LeaderLease | None:
    """Return the lease of the current leader, None without one; for display only.

    It does not wait, so it trusts the wall clock of another machine: a driver that has died there
    counts as alive until its lease expires, and longer if the clocks differ.

    Parameters
    ----------
    storage : Storage
        The experiment's directory. Nothing is written.
    clock : callable, default=time.monotonic
        Returns seconds; the same for all processes of this machine.

    Raises
    ------
    StorageError
        If it cannot be read.

    Examples
    --------
    >>> storage = Storage("memory://doctest-leader")
    >>> with LeaderLock(storage):
    ...     current_leader(storage).pid == os.getpid()
    True
    >>> print(current_leader(storage))
    None
    """
    lease, word = _read_lease(storage, clock, machine_id())
    return lease if word == "alive" else None


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The status of the current or last leader, for display.

    Parameters
    ----------
    word : {"none", "alive", "ended", "lost"}
        No driver has led yet; a driver leads; the last driver has released the lead; the last
        driver has died.
    age_s : float or None
        Seconds since the last renewal of its lease; None if unknown.
    """

    word: Literal["none", "alive", "ended", "lost"]
    age_s: float | None = None


def leader_status(
    storage: Storage, *, clock: Callable[[], float] = time.monotonic, machine: str | None = None
) -> LeaderStatus:
    """Return the status of the current or last leader; as reliable as `current_leader`.

    Parameters
    ----------
    storage, clock
        As for :func:`current_leader`.
    machine : str, optional
        As for :class:`LeaderLock`.

    Raises
    ------
    StorageError
        If it cannot be read.

    Examples
    --------
    >>> storage = Storage("memory://doctest-life")
    >>> with LeaderLock(storage):
    ...     leader_status(storage).word
    'alive'
    >>> leader_status(storage).word
    'ended'
    """
    machine = machine_id() if machine is None else machine
    lease, word = _read_lease(storage, clock, machine)
    if lease is None:
        return LeaderStatus(word)
    if lease.machine == machine:
        return LeaderStatus(word, max(0.0, clock() - lease.renewed))
    try:
        last = datetime.fromisoformat(lease.expires) - timedelta(seconds=lease.ttl_s)
        return LeaderStatus(word, max(0.0, (datetime.now(timezone.utc) - last).total_seconds()))
    except (ValueError, TypeError, OverflowError):  # not a time
        return LeaderStatus(word)


def _read_lease(
    storage: Storage, clock: Callable[[], float], machine: str
) -> tuple[LeaderLease | None, Literal["none", "alive", "ended", "lost"]]:
    with reading(DIRECTORY, storage):
        epoch = newest_epoch(storage)
        try:
            lease = LeaderLease.decode(storage.read_bytes(lease_name(epoch))) if epoch else None
        except FileNotFoundError:
            lease = None  # a successor has just removed it
    if lease is None:
        return None, "none"
    if lease.released:
        return lease, "ended"
    if lease.machine == machine:
        is_late = not 0 <= clock() - lease.renewed < lease.ttl_s
        return lease, "lost" if is_late or _leader_has_died(storage, epoch, lease) else "alive"
    try:
        expires = datetime.fromisoformat(lease.expires)
        return lease, "alive" if datetime.now(timezone.utc) < expires else "lost"
    except (ValueError, TypeError):  # not a time
        return lease, "lost"


def _how_to_continue(change: str) -> str:
    return (
        f"{change} while the experiment ran, so what it has written since then may be missing or "
        "elsewhere. If the experiment's files are there again, or were moved, give their path to "
        "Tuner.restore(); if they are lost, run the experiment again under another name"
    )


def _lease_in_lock_file(storage: Storage, epoch: int) -> LeaderLease | None:
    """Return the first lease of a leader that has a lock file; only its process matters."""
    if not storage.is_local:
        return None
    try:
        descriptor = os.open(storage.inside(lock_name(epoch)), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return LeaderLease.decode(file.read(_LARGEST))
    except OSError:
        return None


def _leader_has_died(storage: Storage, epoch: int, lease: LeaderLease) -> bool:
    """Whether the leader is known to have died; only reliable on its own machine."""
    return _is_unlocked(storage, epoch, lease) or has_died(lease.pid, lease.process)


def _is_unlocked(storage: Storage, epoch: int, lease: LeaderLease) -> bool:
    """Whether the leader's lock is free, so it has died; only reliable on its own machine."""
    if not (lease.flock and storage.is_local):
        return False
    try:
        descriptor = os.open(storage.inside(lock_name(epoch)), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    with contextlib.closing(os.fdopen(descriptor, "rb")) as file:
        try:
            # Shared, so that several processes may check at the same time.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
