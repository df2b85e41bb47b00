"""One driver for an experiment: a second is refused while the first one lives.

A driver's *lease* is a small file that only the driver itself writes again, every third of its ttl.
Leases are numbered, and each number is created once, so that of many who want the next one exactly
one gets it, on every kind of storage; whoever sees a higher number than its own has lost the lead.
Nobody compares the clocks of two machines: a lease has expired when whoever wants the lead has seen
it unchanged for its ttl. On the machine of the driver there are shorter ways. Its processes share a
clock, and on a disk the driver holds a lock of the operating system for as long as it lives.

This is for clear words to the user. What a driver that was frozen meanwhile still writes is kept
out of the history by the epochs of the journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any, Final, Literal, NoReturn

from dasktune.errors import StorageError, check
from dasktune.storage.lease import (
    DIRECTORY,
    LAST_EPOCH,
    LONGEST_TTL,
    Lease,
    epoch_of,
    lease_name,
    lock_name,
    machine_id,
    newest_epoch,
)
from dasktune.storage.location import Storage
from dasktune.storage.masking import reading

__all__ = ["DriverLock", "LifeSign", "life_sign", "who_leads"]

logger = logging.getLogger(__name__)

#: Looks at a lease within its ttl.
_LOOKS: Final = 30


class DriverLock:
    """Holds the lead of an experiment; to be used as a context manager.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    ttl_s : float, default=30.0
        Seconds without a sign of life after which another driver may take the lead. At most 3,600.
    on_lost : callable, optional
        Called without arguments, once, in a thread of the lock, when another driver has the lead.
    clock : callable, default=time.monotonic
        Gives seconds; the same for all processes of this machine.
    sleep : callable, default=time.sleep
        Waits for seconds.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.
    StorageError
        On entering: if another driver leads, which the message names, or the storage failed.

    Notes
    -----
    Entering takes no time if nobody leads, if the last driver released the lead, or if it ran on
    this machine: whether it lives can then be seen. Else its lease is watched, a third of its ttl
    if it lives, and the whole of it if not.

    Examples
    --------
    >>> storage = Storage("memory://doctest-lock")
    >>> with DriverLock(storage) as lock:
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
    ) -> None:
        given: Any = ttl_s
        fits = type(given) in (int, float) and 0 < given <= LONGEST_TTL
        check(fits, "ttl_s", f"a positive number of seconds up to {LONGEST_TTL:.0f}", ttl_s)
        self.storage = storage
        self.ttl_s = float(ttl_s)
        #: Number of the lease, from 1; 0 before there is one.
        self.epoch = 0
        self._on_lost = on_lost
        self._clock, self._sleep = clock, sleep
        self._lease: Lease | None = None
        self._lost = False
        self._descriptor = -1
        #: When the next lease was first found locked and not written; it takes but a moment.
        self._blocked_since = 0.0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        #: Renewing and releasing, which come from different threads.
        self._turn = threading.Lock()

    @property
    def lost(self) -> bool:
        """Whether another driver has taken the lead. It is known a third of the ttl later."""
        return self._lost

    def acquire(self) -> None:
        """Take the lead.

        Raises
        ------
        StorageError
            If another driver leads, or the storage failed.
        """
        check(self.epoch == 0, "DriverLock", "acquired once", "a second time", "Make a new one.")
        watched = _Watch(self)
        while not self._claim(watched.wait_for_end()):
            pass  # somebody else was quicker, and is the one to be watched now
        self._sweep()
        name = f"dasktune-driver-lock-{self.epoch}"
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)
        self._thread.start()

    def renew(self) -> bool:
        """Look for a successor and give a sign of life; done by a thread, and harmless to repeat.

        Returns
        -------
        bool
            Whether the lead is still ours.

        Raises
        ------
        StorageError
            If the storage failed.
        """
        with self._turn:
            lease = self._lease
            if lease is None or self._lost:
                return False
            with reading(DIRECTORY, self.storage):
                newest = newest_epoch(self.storage)
            if newest <= self.epoch:
                self._lease = self._stamped(replace(lease, renewals=lease.renewals + 1))
                self._write(self._lease)
                return True
            self._lost = True
        logger.warning(
            "Another driver has taken the lead of the experiment at %s, since this one gave no "
            "sign of life for %g s. This one stops.",
            self.storage,
            self.ttl_s,
        )
        try:
            if self._on_lost is not None:
                self._on_lost()
        except Exception:  # the lead is lost all the same
            logger.exception("What was to be called at the loss of the lead has failed")
        return False

    def close(self) -> None:
        """Release the lead, if it is ours, so that the next driver need not wait.

        If the storage fails, a warning tells so, and the next driver waits until the lease expires.
        """
        self._ending.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._turn:
            lease, self._lease = self._lease, None
            if lease is not None and not self._lost:
                self._release(lease)
            self._unlock()

    def __enter__(self) -> DriverLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _release(self, lease: Lease) -> None:
        try:
            if newest_epoch(self.storage) == self.epoch:
                self._write(replace(lease, released=True))
        except Exception as error:  # whatever the store's client raises
            logger.warning(
                "Could not release the lead of %s: %r. The next driver has to wait for %g s.",
                self.storage,
                error,
                self.ttl_s,
            )

    def _claim(self, epoch: int) -> bool:
        """Try to get the lease of this number, and return whether it is ours."""
        # Locked before anyone can see the lease: one that is not locked is a dead driver's.
        if self.storage.is_local and not self._lock(epoch):
            return False
        lease = self._stamped(
            Lease(
                owner=uuid.uuid4().hex,
                host=platform.node()[:200],
                pid=os.getpid(),
                ttl_s=self.ttl_s,
                machine=machine_id(),
                flock=self._descriptor >= 0,
            )
        )
        try:
            self.storage.claim(lease_name(epoch), lease.encode(), durable=True)
        except FileExistsError:
            self._unlock()
            return False
        except Exception as error:
            self._unlock()
            raise StorageError(f"cannot take the lead of {self.storage}: {error!r}") from error
        self.epoch, self._lease = epoch, lease
        return True

    def _lock(self, epoch: int) -> bool:
        """Lock the lease's lock file, and return whether nobody else has it."""
        path = self.storage.inside(lock_name(epoch))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise StorageError(f"cannot take the lead of {self.storage}: {error!r}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            return self._may_do_without()
        except OSError:
            self._unlock()  # a disk without locks: there are still the signs of life
        return True

    def _may_do_without(self) -> bool:
        """Whether whoever has locked a lease that is not there yet had the time to write it."""
        now = self._clock()
        self._blocked_since = self._blocked_since or now
        if now - self._blocked_since >= self.ttl_s:
            return True
        self._sleep(self.ttl_s / _LOOKS)
        return False

    def _unlock(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _stamped(self, lease: Lease) -> Lease:
        expires = datetime.now(timezone.utc) + timedelta(seconds=self.ttl_s)
        return replace(lease, renewed=self._clock(), expires=expires.isoformat(timespec="seconds"))

    def _write(self, lease: Lease) -> None:
        try:
            self.storage.write_bytes(lease_name(self.epoch), lease.encode())
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"cannot renew the lead of {self.storage}: {error!r}") from error

    def _keep(self) -> None:
        failing = False
        while not self._ending.wait(self.ttl_s / 3):
            try:
                if not self.renew():
                    return
                failing = False
            except StorageError as error:
                if not failing:
                    logger.warning(
                        "%s. It is tried again; after %g s another driver may take the lead.",
                        error,
                        self.ttl_s,
                    )
                failing = True

    def _sweep(self) -> None:
        """Delete the leases before ours, of which nobody can learn anything any more."""
        try:
            for name in self.storage.names(DIRECTORY):
                if 0 < epoch_of(name) < self.epoch:
                    self.storage.remove(f"{DIRECTORY}/{name}")
        except Exception as error:  # they are in nobody's way
            logger.info("Could not remove old leases of %s: %r", self.storage, error)


class _Watch:
    """Waits for the end of whoever leads, or refuses."""

    def __init__(self, lock: DriverLock) -> None:
        self._lock, self._storage = lock, lock.storage
        self._clock, self._sleep = lock._clock, lock._sleep
        #: The lease as it was first seen, and when.
        self._seen: tuple[int, bytes] | None = None
        self._since = 0.0

    def wait_for_end(self) -> int:
        """Return the number of the lease that may be claimed now.

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
                    f"{lease_name(epoch)} in {self._storage} has a number that no driver ever came "
                    "to. If no driver runs, remove it."
                )
            lease = Lease.decode(data)
            if epoch == 0 or self._has_ended(epoch, data, lease):
                return epoch + 1
            self._sleep((self._lock.ttl_s if lease is None else lease.ttl_s) / _LOOKS)

    def _content(self, epoch: int) -> bytes:
        try:
            return self._storage.read_bytes(lease_name(epoch)) if epoch else b""
        except FileNotFoundError:
            return b""  # a successor has removed it just now, and is seen at the next look

    def _has_ended(self, epoch: int, data: bytes, lease: Lease | None) -> bool:
        if lease is not None and lease.released:
            return True
        now = self._clock()
        if lease is not None and lease.machine and lease.machine == machine_id():
            if _is_unlocked(self._storage, epoch, lease):
                return True
            # One clock, so that nothing has to be waited for.
            age = now - lease.renewed
            if 0 <= age < lease.ttl_s:
                self._refuse(lease)
            if age >= lease.ttl_s:
                return True
        if self._seen is None or self._seen[0] != epoch:
            self._seen, self._since = (epoch, data), now
            logger.info("Looking whether the driver that leads %s is alive", self._storage)
        if self._seen[1] != data:
            self._refuse(lease)
        return now - self._since >= (self._lock.ttl_s if lease is None else lease.ttl_s)

    def _refuse(self, lease: Lease | None) -> NoReturn:
        who = "" if lease is None else f" (pid {lease.pid} on host {lease.host})"
        ttl_s = self._lock.ttl_s if lease is None else lease.ttl_s
        raise StorageError(
            f"another driver{who} leads the experiment at {self._storage}: stop it, or wait until "
            f"it has given no sign of life for {ttl_s:g} s"
        )


def who_leads(storage: Storage, *, clock: Callable[[], float] = time.monotonic) -> Lease | None:
    """Return what the driver that leads says of itself, None if nobody does; for people.

    It does not wait, so of a driver on another machine it believes the clocks: one that has died
    there counts until its lease expires, and longer if the clocks differ.

    Parameters
    ----------
    storage : Storage
        The experiment's directory. Nothing is written.
    clock : callable, default=time.monotonic
        Gives seconds; the same for all processes of this machine.

    Raises
    ------
    StorageError
        If it cannot be read.

    Examples
    --------
    >>> storage = Storage("memory://doctest-leader")
    >>> with DriverLock(storage):
    ...     who_leads(storage).pid == os.getpid()
    True
    >>> print(who_leads(storage))
    None
    """
    lease, word = _look(storage, clock)
    return lease if word == "alive" else None


@dataclass(frozen=True, slots=True)
class LifeSign:
    """What a lease tells of a driver, for people.

    Parameters
    ----------
    word : {"none", "alive", "ended", "lost"}
        Whether nobody has led yet, a driver leads, the last one has come to its end, or has died.
    age_s : float or None
        Seconds since it has given its last sign of life; None if nobody knows.
    """

    word: Literal["none", "alive", "ended", "lost"]
    age_s: float | None = None


def life_sign(storage: Storage, *, clock: Callable[[], float] = time.monotonic) -> LifeSign:
    """Return how it is with the driver that leads, or led last, with the care of `who_leads`.

    Parameters
    ----------
    storage, clock
        As for :func:`who_leads`.

    Raises
    ------
    StorageError
        If it cannot be read.

    Examples
    --------
    >>> storage = Storage("memory://doctest-life")
    >>> with DriverLock(storage):
    ...     life_sign(storage).word
    'alive'
    >>> life_sign(storage).word
    'ended'
    """
    lease, word = _look(storage, clock)
    if lease is None:
        return LifeSign(word)
    if lease.machine == machine_id():
        return LifeSign(word, max(0.0, clock() - lease.renewed))
    try:
        last = datetime.fromisoformat(lease.expires) - timedelta(seconds=lease.ttl_s)
        return LifeSign(word, max(0.0, (datetime.now(timezone.utc) - last).total_seconds()))
    except (ValueError, TypeError, OverflowError):  # nobody knows
        return LifeSign(word)


def _look(
    storage: Storage, clock: Callable[[], float]
) -> tuple[Lease | None, Literal["none", "alive", "ended", "lost"]]:
    with reading(DIRECTORY, storage):
        epoch = newest_epoch(storage)
        try:
            lease = Lease.decode(storage.read_bytes(lease_name(epoch))) if epoch else None
        except FileNotFoundError:
            lease = None  # a successor is about to write another one
    if lease is None:
        return None, "none"
    if lease.released:
        return lease, "ended"
    if lease.machine == machine_id():
        is_late = not 0 <= clock() - lease.renewed < lease.ttl_s
        return lease, "lost" if is_late or _is_unlocked(storage, epoch, lease) else "alive"
    try:
        expires = datetime.fromisoformat(lease.expires)
        return lease, "alive" if datetime.now(timezone.utc) < expires else "lost"
    except (ValueError, TypeError):  # nobody knows
        return lease, "lost"


def _is_unlocked(storage: Storage, epoch: int, lease: Lease) -> bool:
    """Whether the driver's lock is free: it died. Locks of other machines may not be seen."""
    if not (lease.flock and storage.is_local):
        return False
    try:
        descriptor = os.open(storage.inside(lock_name(epoch)), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    with contextlib.closing(os.fdopen(descriptor, "rb")) as file:
        try:
            # Shared, so that many may look at the same time.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
