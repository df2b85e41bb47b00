"""Chooses and reserves the directory of a new experiment, by ``RunConfig(if_exists=...)``."""

# Orders of events:
#
# - Two drivers start at once with the same name. The leader lock of a directory is its reservation:
#   it is taken before the driver writes anything else there. Its lease is created exclusively on
#   every kind of storage, so one driver gets the lock. The other one is refused, and tries the next
#   name.
# - A driver ends between the other driver's look at the directory and its lock. So each driver
#   looks again when it holds the lock.
# - A driver dies after it has reserved a directory and before it has recorded anything. There is a
#   lease without a specification, which is not an experiment: the next driver may use the directory
#   when the lease has ended.
# - A directory is reserved for an entry of a queue, and another driver gets its lock before the
#   entry's driver does. Only `if_exists="replace"` takes the reservation away, and it does so under
#   the lock. The entry's driver looks at the reservation again when it holds the lock.
# - An entry reserves a directory while another driver begins there. That driver takes the lock
#   before it looks for a reservation, and the entry reserves before it looks for a lock. So at
#   least one of them sees the other and leaves: the entry gives its reservation up, the other
#   driver ends.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Final

from dasktune.config import RunConfig
from dasktune.config.validation import LONGEST_NAME
from dasktune.errors import StorageError
from dasktune.storage.experiment.experiment_store import (
    SPEC_FILE,
    ExperimentStore,
    check_no_leftovers,
    has_parts,
    is_half_created,
)
from dasktune.storage.experiment.tuner_json import SETUP_FILE
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.segments import segments
from dasktune.storage.leader.leader_lock import LeaderLock, OtherDriverLeadsError, current_leader
from dasktune.tuner.restore import hold_leader_lock

logger = logging.getLogger(__name__)

#: The file in an experiment's directory that has the ID of its entry in a queue.
_OWNER_FILE: Final = "queued.txt"


@contextmanager
def reserved_directory(
    config: RunConfig, name: str, on_lost: Callable[[], None], entry_id: str = ""
) -> Iterator[tuple[str, Storage, LeaderLock]]:
    """Reserve the directory of a new experiment, and yield its name, the directory and its lock.

    A directory that is reserved for another entry of a queue is refused, except with
    ``if_exists="replace"``, which ends its reservation.

    Parameters
    ----------
    config : RunConfig
        Where experiments are stored, and what to do if there is one of this name.
    name : str
        The experiment's name.
    on_lost : callable
        Called in any thread if this driver loses the directory.
    entry_id : str, optional
        The entry of a queue whose experiment begins, and which must own the directory.

    Raises
    ------
    PreflightError
        If the storage cannot be used.
    StorageError
        If there is no directory that this experiment may use.
    """
    from dasktune.cluster.checks.preflight import check_storage

    check_storage(directory_of(config, name))
    with ExitStack() as held:
        for each in _names(name) if config.if_exists == "new" else [name]:
            storage = directory_of(config, each)
            if config.if_exists == "new" and not _is_free(storage):
                continue
            if config.if_exists in ("error", "resume"):
                _check_is_free(storage, each, entry_id)
            try:
                lock = held.enter_context(hold_leader_lock(storage, config.driver_ttl, None, on_lost))
            except OtherDriverLeadsError:
                if config.if_exists != "new":
                    raise
                continue
            try:
                if config.if_exists == "replace":
                    remove_experiment(storage, lock)  # and the reservation
                if config.if_exists == "new" and (has_experiment(storage) or queued_owner(storage)):
                    held.close()  # another driver was faster, and has ended
                    continue
                _check_is_free(storage, each, entry_id)
                if each != name:
                    _log_new_name(config, name, storage)
                yield each, storage, lock
            except BaseException:
                # A driver that has stored nothing leaves nothing.
                with suppress(Exception):
                    if not storage.exists(SPEC_FILE) and not lock.lost:
                        lock.withdraw()
                raise
            return


def free_names(config: RunConfig, name: str, entry_id: str = "") -> Iterator[str]:
    """Yield those of ``name``, ``name_2``, ... that have no experiment, no driver and no owner.

    Nothing is reserved: a caller that does not get the name elsewhere takes the next one.

    Parameters
    ----------
    config, name
        As for :func:`reserved_directory`.
    entry_id : str, optional
        The entry of a queue for which a name is searched; it may own a directory already.
    """
    for each in _names(name):
        storage = directory_of(config, each)
        if _is_free(storage, entry_id):
            if each != name:
                _log_new_name(config, name, storage)
            yield each


def queued_owner(storage: Storage) -> str:
    """Return the ID of the entry in a queue that owns an experiment's directory; empty without one.

    Parameters
    ----------
    storage : Storage
        The directory.
    """
    try:
        return storage.read_bytes(_OWNER_FILE).decode(errors="replace")
    except FileNotFoundError:
        return ""


def set_queued_owner(storage: Storage, entry_id: str, *, replaces: bool = False) -> bool:
    """Let an entry of a queue own an experiment's directory, and return whether it does.

    Parameters
    ----------
    storage : Storage
        The directory.
    entry_id : str
        The entry.
    replaces : bool, default=False
        Whether to take the directory over from another entry.
    """
    if replaces:
        storage.write_bytes(_OWNER_FILE, entry_id.encode())
    else:
        with suppress(FileExistsError):
            storage.claim(_OWNER_FILE, entry_id.encode())
    return queued_owner(storage) == entry_id


def reserve_for_entry(storage: Storage, entry_id: str) -> bool:
    """Reserve a directory for an entry of a queue, and return whether it is reserved.

    It is not if another entry owns it, or if another driver runs or has begun an experiment there.

    Parameters
    ----------
    storage, entry_id
        As for :func:`set_queued_owner`.
    """
    if current_leader(storage) is not None or not set_queued_owner(storage, entry_id):
        return False
    if current_leader(storage) is None and not can_resume(storage):
        return True
    storage.remove(_OWNER_FILE)
    return False


def check_queued_owner(storage: Storage, entry_id: str) -> None:
    """Check that an entry of a queue owns an experiment's directory.

    Parameters
    ----------
    storage, entry_id
        As for :func:`set_queued_owner`.

    Raises
    ------
    StorageError
        If no entry or another one owns it.
    """
    owner = queued_owner(storage)
    if owner != entry_id:
        other = f"entry {owner!r:.100} of a queue" if owner else "no entry of a queue"
        raise StorageError(
            f"{storage} belongs to {other}, not to {entry_id}. Submit the experiment again, with another "
            "name or RunConfig(if_exists='new')"
        )


def _end_reservation(storage: Storage) -> None:
    """Let no entry of a queue own a directory; an entry that does fails when it starts again."""
    owner = queued_owner(storage)
    if owner:
        logger.warning(
            "%s no longer belongs to entry %r of a queue, which fails if it starts", storage, owner
        )
        storage.remove(_OWNER_FILE)


def _check_reservation(storage: Storage, entry_id: str) -> None:
    if entry_id:
        check_queued_owner(storage, entry_id)
        return
    owner = queued_owner(storage)
    if owner:
        raise StorageError(
            f"{storage} is reserved for entry {owner!r:.100} of a queue. Choose another name or "
            "RunConfig(if_exists='new'). If that experiment shall not run, use if_exists='replace', or "
            f"delete {_OWNER_FILE} there."
        )


def _is_free(storage: Storage, entry_id: str = "") -> bool:
    if has_experiment(storage) or current_leader(storage) is not None:
        return False
    return queued_owner(storage) in ("", entry_id)


def has_experiment(storage: Storage) -> bool:
    """Whether a directory has an experiment, or parts of one.

    A reservation, or a specification whose driver has died before it stored anything else, is not
    an experiment.

    Parameters
    ----------
    storage : Storage
        The directory.
    """
    if storage.exists(SPEC_FILE):
        return not is_half_created(storage)
    return has_parts(storage)


def remove_experiment(storage: Storage, lock: LeaderLock) -> None:
    """Delete an experiment, and the reservation of the directory; its other files stay.

    Parameters
    ----------
    storage : Storage
        The directory. It may have no experiment.
    lock : LeaderLock
        The directory's lock, which this driver holds.

    Raises
    ------
    StorageError
        If it has the parts of an experiment without its specification, or the specification is
        not one of dasktune.
    """
    if not has_experiment(storage):
        _end_reservation(storage)
        return
    _check_is_ours(storage)
    logger.warning("the experiment in %s is deleted, as if_exists='replace' says", storage)
    for part in ("trials", "snapshots"):
        storage.remove_tree(part)

    def delete() -> None:
        for name in storage.find("journal"):
            storage.remove(f"journal/{name}")
        # The specification is last, so that a deletion that was cut short can be repeated.
        for name in (SETUP_FILE, SPEC_FILE):
            storage.remove(name)

    lock.delete_files(delete)
    _end_reservation(storage)


def _check_is_ours(storage: Storage) -> None:
    if "dasktune" not in ExperimentStore(storage).spec():
        raise StorageError(
            f"{SPEC_FILE} of {storage} is not of a dasktune experiment, so if_exists='replace' deletes "
            "nothing. Delete the directory by hand, or give the experiment another name."
        )


def can_resume(storage: Storage) -> bool:
    """Whether a directory has an experiment that `Tuner.restore` can read.

    Parameters
    ----------
    storage : Storage
        The directory.
    """
    return storage.exists(SETUP_FILE) and bool(segments(storage))


def _check_is_free(storage: Storage, name: str, entry_id: str) -> None:
    if storage.exists(SPEC_FILE) and not is_half_created(storage):
        raise StorageError(
            f"name must be new to its storage_path, got {name!r}: {storage} holds an "
            "experiment already. Choose another name or RunConfig(if_exists='new'), or resume that "
            "experiment with RunConfig(if_exists='resume') or Tuner.restore()."
        )
    check_no_leftovers(storage)
    _check_reservation(storage, entry_id)


def directory_of(config: RunConfig, name: str | None = None) -> Storage:
    """Return the directory of an experiment, by default of the name in its configuration."""
    name = config.name if name is None else name
    assert name is not None
    return Storage(config.storage_url, config.storage_options or {}).child(name)


def _names(name: str) -> Iterator[str]:
    yield name
    for number in count(2):
        ending = f"_{number}"
        kept = name.encode()[: LONGEST_NAME - len(ending)].decode(errors="ignore")
        yield f"{kept}{ending}"


def _log_new_name(config: RunConfig, name: str, storage: Storage) -> None:
    logger.warning(
        "%s has an experiment %r, or its driver runs: this one is stored in %s. RunConfig(if_exists=...) "
        "may be 'resume', 'replace' or 'error' instead of %r",
        Storage(config.storage_url, config.storage_options or {}),
        name,
        storage,
        config.if_exists,
    )
