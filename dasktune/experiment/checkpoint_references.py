"""Reference counts of checkpoints: which ones a trial may still resume from.

A trial owns the checkpoints in the storage that retention keeps, and perhaps a newer one in the
memory of the workers, which may be lost at any time. Two other references keep a checkpoint:

- The origin of a clone, from which the clone resumes: it stays until the clone has a checkpoint of
  its own, or has ended.
- A held checkpoint, from which a scheduler may clone later: it stays until another one is held.

A checkpoint that retention drops while a reference remains is lent: its owner remembers it in
`Trial.lent`, and it is deleted with the last reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dasktune.trial.actions import DeleteCheckpoint
from dasktune.trial.apply import add_checkpoint
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import CheckpointLost, CheckpointStored
from dasktune.trial.names import checkpoint_place
from dasktune.trial.retention import Retention
from dasktune.trial.trial import Trial


class CheckpointReferences:
    """Counts the references to the checkpoints of all trials.

    Parameters
    ----------
    trials : mapping of str to Trial
        All trials. The experiment adds new ones to this mapping.
    retention : Retention
        Which checkpoints in the storage are kept.
    """

    def __init__(self, trials: Mapping[str, Trial], retention: Retention) -> None:
        self._trials = trials
        self._retention = retention
        #: Number of trials that have a checkpoint as origin or hold it, by the checkpoint's path.
        self._references: Counter[str] = Counter()

    def recount(self) -> None:
        """Rebuild the reference counts after loading trials."""
        records = (one for trial in self._trials.values() for one in (trial.origin, trial.held))
        self._references = Counter(one.path for one in records if one is not None)

    def keep(self, trial: Trial, record: CheckpointRecord) -> list[DeleteCheckpoint]:
        """Add a trial's new checkpoint; return deletions of the checkpoints that it replaces.

        Parameters
        ----------
        trial : Trial
            The trial that owns the checkpoint.
        record : CheckpointRecord
            The new checkpoint, newer than all others of this trial.
        """
        deletions = self._hold(trial, record) if record.iteration <= trial.held_at else []
        before = trial.memory
        add_checkpoint(trial, record)
        expired = [] if before is None else [before]
        if record.kind is CheckpointKind.PERSISTENT:
            for old in self._retention.expired(trial.checkpoints):
                trial.checkpoints.remove(old)
                expired.append(old)
        if _place(record.path)[2] > trial.cloned_in:
            # A checkpoint of an incarnation up to `cloned_in` was saved before the trial became a
            # clone and was reported late: it does not replace the origin.
            deletions += self._drop_origin(trial)
        return [*deletions, *self._release(trial, expired)]

    def store(self, owner: Trial, record: CheckpointRecord) -> list[DeleteCheckpoint]:
        """Record that a checkpoint in memory was written to the storage; return deletions.

        Parameters
        ----------
        owner : Trial
            The trial that owns the checkpoint.
        record : CheckpointRecord
            The checkpoint in the storage.
        """
        in_memory = owner.memory
        is_newest = in_memory is not None and in_memory.path == record.path
        if not is_newest and all(lent.path != record.path for lent in owner.lent):
            # The trial has committed a newer checkpoint while this one was being written.
            return [DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=record)]
        self._redirect(record)
        if not is_newest:
            owner.lent = tuple(record if lent.path == record.path else lent for lent in owner.lent)
            return []
        assert in_memory is not None
        owner.memory = None
        deletions = self.keep(owner, record)
        if self._references[record.path]:
            # The copy in memory is released at the end of the session, which is near.
            return deletions
        return [*deletions, DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=in_memory)]

    def on_event(self, event: CheckpointLost | CheckpointStored) -> list[DeleteCheckpoint]:
        """Apply an event about a checkpoint in memory; return deletions.

        The copy in memory may be lost after it was written to the storage, which changes nothing.
        """
        trial = self._trials[event.trial_id]
        if isinstance(event, CheckpointStored):
            return self.store(trial, event.checkpoint)
        self._lose_from_memory(trial, event.path)
        return []

    def release_all(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Drop an ended trial's references and memory checkpoint; its stored ones stay."""
        before, trial.memory = trial.memory, None
        expired = [] if before is None else [before]
        deletions = [*self._drop_origin(trial), *self._drop_hold(trial)]
        return [*deletions, *self._release(trial, expired)]

    def drop_all(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Drop all checkpoints of a trial that will start from its beginning."""
        dropped, trial.checkpoints = trial.checkpoints, []
        return [*self._release(trial, dropped), *self.release_all(trial)]

    def newest(self, donor: Trial, iteration: int | None) -> CheckpointRecord | None:
        """Return the checkpoint that a clone of a trial resumes from; None if there is none.

        Parameters
        ----------
        donor : Trial
            The trial to be cloned.
        iteration : int or None
            Clone the trial as it was at this ``training_iteration``: from its newest checkpoint up
            to then. None clones it as it is now.
        """
        if donor.held is not None and donor.held_at == iteration:
            return donor.held
        # A trial has an origin only until it has a newer checkpoint of its own.
        records = [*donor.checkpoints, *filter(None, [donor.memory, donor.origin])]
        usable = [one for one in records if iteration is None or one.iteration <= iteration]
        return usable[-1] if usable else None

    def add_reference(self, trial: Trial, record: CheckpointRecord) -> list[DeleteCheckpoint]:
        """Let a trial resume from another trial's checkpoint at its next start; return deletions.

        Parameters
        ----------
        trial : Trial
            The clone. It is on no worker, or about to leave its worker.
        record : CheckpointRecord
            The checkpoint that :meth:`newest` returned.
        """
        # Add the new reference before dropping the old ones: the trial may hold this very
        # checkpoint, which must not be deleted in between.
        self._references[record.path] += 1
        deletions = [*self._drop_origin(trial), *self._drop_hold(trial)]
        trial.origin = record
        return deletions

    def hold(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Hold a trial's newest checkpoint for clones of the trial as it is now; return deletions.

        Parameters
        ----------
        trial : Trial
            The trial. If it is about to save a checkpoint, that one is held as soon as it is
            committed.
        """
        deletions = self._hold(trial, self.newest(trial, trial.last_iteration))
        trial.held_at = trial.last_iteration
        return deletions

    def lose(self, path: str) -> None:
        """Forget a checkpoint, in the storage or in memory, that cannot be used any more.

        Its owner and every trial that refers to it resume from an older one. The files, if there
        are any, stay for the user.

        Parameters
        ----------
        path : str
            The path of its record.
        """
        self._lose(self.owner_of(path), path)

    def _lose(self, owner: Trial, path: str) -> None:
        # The checkpoint may have been deleted in the meantime. Then nothing refers to its path, and
        # nothing changes.
        owner.lent = tuple(record for record in owner.lent if record.path != path)
        owner.checkpoints = [record for record in owner.checkpoints if record.path != path]
        if owner.memory is not None and owner.memory.path == path:
            owner.memory = None
        if not self._references.pop(path, 0):
            return
        for trial in self._trials.values():
            if trial.origin is not None and trial.origin.path == path:
                index, trial.origin = trial.origin.index, None
                older = [one for one in owner.checkpoints if one.index < index]
                if older:
                    trial.origin = older[-1]
                    self._references[older[-1].path] += 1
            if trial.held is not None and trial.held.path == path:
                trial.held = None
                self._hold(trial, self.newest(trial, trial.held_at))

    def lose_memory(self) -> None:
        """Record that all checkpoints in memory are lost."""
        for trial in self._trials.values():
            for record in trial.memory_checkpoints:
                self._lose_from_memory(trial, record.path)

    def _lose_from_memory(self, owner: Trial, path: str) -> None:
        if any(record.path == path for record in owner.memory_checkpoints):
            self._lose(owner, path)

    def _redirect(self, record: CheckpointRecord) -> None:
        """Let the references to a checkpoint in memory name its stored record.

        Otherwise the next session, which has no memory of this one, would count them as lost and
        set the clones back to an older checkpoint.
        """
        for trial in self._trials.values() if self._references[record.path] else ():
            if trial.origin is not None and trial.origin.path == record.path:
                trial.origin = record
            if trial.held is not None and trial.held.path == record.path:
                trial.held = record

    def _hold(self, trial: Trial, record: CheckpointRecord | None) -> list[DeleteCheckpoint]:
        """Replace the checkpoint that a trial holds."""
        if record is not None:
            self._references[record.path] += 1
        before, trial.held = trial.held, record
        return self._drop_reference(before)

    def _drop_hold(self, trial: Trial) -> list[DeleteCheckpoint]:
        trial.held_at = -1
        return self._hold(trial, None)

    def _drop_origin(self, trial: Trial) -> list[DeleteCheckpoint]:
        origin, trial.origin = trial.origin, None
        return self._drop_reference(origin)

    def _drop_reference(self, record: CheckpointRecord | None) -> list[DeleteCheckpoint]:
        """Remove one reference; delete the checkpoint if it was lent and this was the last one."""
        if record is None:
            return []
        self._references[record.path] -= 1
        owner = self.owner_of(record.path)
        if self._references[record.path] or record not in owner.lent:
            return []
        owner.lent = tuple(one for one in owner.lent if one != record)
        return [DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=record)]

    def owner_of(self, path: str) -> Trial:
        """Return the trial in whose directory a checkpoint is.

        Parameters
        ----------
        path : str
            The path of the checkpoint, relative to the experiment's directory.
        """
        folder = _place(path)[0]
        # Most directories are named after their trials; otherwise all trials are searched.
        named = self._trials.get(folder)
        if named is not None and named.folder == folder:
            return named
        return next(trial for trial in self._trials.values() if trial.folder == folder)

    def _release(self, owner: Trial, records: list[CheckpointRecord]) -> list[DeleteCheckpoint]:
        """Delete a trial's checkpoints that have no references; lend the others."""
        lent = [record for record in records if self._references[record.path]]
        owner.lent += tuple(lent)
        free = [record for record in records if record not in lent]
        return [DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=one) for one in free]


def _place(path: str) -> tuple[str, int, int]:
    """Return a checkpoint's folder, number and incarnation."""
    place = checkpoint_place(path)
    assert place is not None, "the path of a record is checked when it is read"
    return place
