"""Which checkpoints somebody may still go on from, and which can go.

A trial has the checkpoints in the storage that retention leaves it, and perhaps a newer one in the
memory of the workers, which may be lost at any time. Another trial may go on from either: then it
stays until that one has a checkpoint of its own, or has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dasktune.trial.actions import DeleteCheckpoint
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import CheckpointLost, CheckpointStored
from dasktune.trial.names import checkpoint_place
from dasktune.trial.retention import Retention
from dasktune.trial.trial import Trial

__all__ = ["Custody"]


class Custody:
    """Keeps account of the checkpoints of all trials.

    Parameters
    ----------
    trials : mapping of str to Trial
        All there are, now and later.
    retention : Retention
        Which checkpoints in the storage are kept.
    """

    def __init__(self, trials: Mapping[str, Trial], retention: Retention) -> None:
        self._trials = trials
        self._retention = retention
        #: How many other trials go on from a checkpoint, by its path.
        self._borrowers: Counter[str] = Counter()

    def recount(self) -> None:
        """Find out who goes on from what; to be called when the trials were read."""
        origins = (trial.origin for trial in self._trials.values())
        self._borrowers = Counter(origin.path for origin in origins if origin is not None)

    def keep(self, trial: Trial, record: CheckpointRecord) -> list[DeleteCheckpoint]:
        """Take a trial's new checkpoint, and return which ones are not needed any more."""
        trial.next_checkpoint = record.index + 1
        before, trial.memory = trial.memory, None
        expired = [] if before is None else [before]
        if record.kind is CheckpointKind.MEMORY:
            trial.memory = record
        else:
            trial.checkpoints.append(record)
            for old in self._retention.expired(trial.checkpoints):
                trial.checkpoints.remove(old)
                expired.append(old)
        return [*self._give_back(trial), *self._give_up(trial, expired)]

    def store(self, trial: Trial, record: CheckpointRecord) -> list[DeleteCheckpoint]:
        """Take note that a checkpoint in memory is in the storage now; as :meth:`keep`."""
        if trial.memory is None or trial.memory.path != record.path:
            # A newer one was quicker.
            return [DeleteCheckpoint(trial_id=trial.trial_id, checkpoint=record)]
        return self.keep(trial, record)

    def hear(self, event: CheckpointLost | CheckpointStored) -> list[DeleteCheckpoint]:
        """Take note of what became of a checkpoint in memory; as :meth:`keep`."""
        trial = self._trials[event.trial_id]
        if isinstance(event, CheckpointStored):
            return self.store(trial, event.checkpoint)
        self.lose(trial, event.path)
        return []

    def settle(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Return what is not needed any more when a trial has ended: it keeps what is stored."""
        before, trial.memory = trial.memory, None
        expired = [] if before is None else [before]
        return [*self._give_back(trial), *self._give_up(trial, expired)]

    def drop_all(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Return all checkpoints of a trial that is to begin anew."""
        gone, trial.checkpoints = trial.checkpoints, []
        return [*self._give_up(trial, gone), *self.settle(trial)]

    def lend(self, trial: Trial, donor: Trial, iteration: int) -> list[DeleteCheckpoint] | None:
        """Let a trial go on from another one's checkpoint when it is started next.

        Parameters
        ----------
        trial : Trial
            Who goes on from it. It is on no worker, or about to leave its own.
        donor : Trial
            Whose it is.
        iteration : int
            ``training_iteration`` of the donor that is to be cloned: its newest checkpoint of this
            iteration or an earlier one is taken.

        Returns
        -------
        list of DeleteCheckpoint or None
            Which checkpoints are not needed any more; None if the donor has none that is so old.
        """
        own = [*donor.checkpoints, *filter(None, [donor.memory])]
        usable = [one for one in own or filter(None, [donor.origin]) if one.iteration <= iteration]
        if not usable:
            return None
        done = self._give_back(trial)
        trial.origin = usable[-1]
        self._borrowers[usable[-1].path] += 1
        return done

    def lose(self, owner: Trial, path: str) -> None:
        """Take note that a checkpoint in memory is gone: whoever needs it takes an older one."""
        owner.lent = tuple(record for record in owner.lent if record.path != path)
        if owner.memory is not None and owner.memory.path == path:
            owner.memory = None
        if not self._borrowers.pop(path, 0):
            return
        for trial in self._trials.values():
            if trial.origin is not None and trial.origin.path == path:
                index, trial.origin = trial.origin.index, None
                older = [one for one in owner.checkpoints if one.index < index]
                if older:
                    trial.origin = older[-1]
                    self._borrowers[older[-1].path] += 1

    def lose_memory(self) -> None:
        """Take note that all checkpoints in memory are gone."""
        for trial in self._trials.values():
            for record in (trial.memory, *trial.lent):
                if record is not None and record.kind is CheckpointKind.MEMORY:
                    self.lose(trial, record.path)

    def _give_back(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Let a trial need another one's checkpoint no longer."""
        origin, trial.origin = trial.origin, None
        if origin is None:
            return []
        self._borrowers[origin.path] -= 1
        place = checkpoint_place(origin.path)
        assert place is not None, "the path of a record is checked when it is read"
        owner = self._trials[place[0]]
        if self._borrowers[origin.path] or origin not in owner.lent:
            return []
        owner.lent = tuple(record for record in owner.lent if record != origin)
        return [DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=origin)]

    def _give_up(self, owner: Trial, records: list[CheckpointRecord]) -> list[DeleteCheckpoint]:
        """Return those of a trial's own checkpoints that nobody else needs; remember the others."""
        lent = [record for record in records if self._borrowers[record.path]]
        owner.lent += tuple(lent)
        free = [record for record in records if record not in lent]
        return [DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=one) for one in free]
