"""Which checkpoints somebody may still go on from, and which can go.

A trial has the checkpoints in the storage that retention leaves it, and perhaps a newer one in the
memory of the workers, which may be lost at any time. Another trial may go on from either: then it
stays until that one has a checkpoint of its own, or has ended. One that others may yet be told to
go on from is held, and stays until another one is.
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
        #: How many trials go on from a checkpoint or hold it, by its path.
        self._borrowers: Counter[str] = Counter()

    def recount(self) -> None:
        """Find out who needs what; to be called when the trials were read."""
        needs = (one for trial in self._trials.values() for one in (trial.origin, trial.held))
        self._borrowers = Counter(one.path for one in needs if one is not None)

    def keep(self, trial: Trial, record: CheckpointRecord) -> list[DeleteCheckpoint]:
        """Take a trial's new checkpoint, and return which ones are not needed any more."""
        trial.next_checkpoint = record.index + 1
        done = self._hold(trial, record) if record.iteration <= trial.held_at else []
        before, trial.memory = trial.memory, None
        expired = [] if before is None else [before]
        if record.kind is CheckpointKind.MEMORY:
            trial.memory = record
        else:
            trial.checkpoints.append(record)
            for old in self._retention.expired(trial.checkpoints):
                trial.checkpoints.remove(old)
                expired.append(old)
        if _place(record)[2] > trial.cloned_in:
            # Else it is late, and of the time before the trial was to be a clone.
            done += self._give_back(trial)
        return [*done, *self._give_up(trial, expired)]

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
        done = [*self._give_back(trial), *self._let_go(trial)]
        return [*done, *self._give_up(trial, expired)]

    def drop_all(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Return all checkpoints of a trial that is to begin anew."""
        gone, trial.checkpoints = trial.checkpoints, []
        return [*self._give_up(trial, gone), *self.settle(trial)]

    def newest(self, donor: Trial, iteration: int | None) -> CheckpointRecord | None:
        """Return what others can go on from to be as a trial was; None if there is nothing.

        Parameters
        ----------
        donor : Trial
            Whose it is.
        iteration : int or None
            Its ``training_iteration`` then: the newest checkpoint of this iteration or an earlier
            one is taken. None is now.
        """
        if donor.held is not None and donor.held_at == iteration:
            return donor.held
        # Where there is an origin, all of its own are older.
        known = [*donor.checkpoints, *filter(None, [donor.memory, donor.origin])]
        usable = [one for one in known if iteration is None or one.iteration <= iteration]
        return usable[-1] if usable else None

    def lend(self, trial: Trial, record: CheckpointRecord) -> list[DeleteCheckpoint]:
        """Let a trial go on from another one's checkpoint when it is started next.

        Parameters
        ----------
        trial : Trial
            Who goes on from it. It is on no worker, or about to leave its own.
        record : CheckpointRecord
            What :meth:`newest` gave.

        Returns
        -------
        list of DeleteCheckpoint
            Which checkpoints are not needed any more.
        """
        # First, lest it be given up when it is given back.
        self._borrowers[record.path] += 1
        done = [*self._give_back(trial), *self._let_go(trial)]
        trial.origin, trial.cloned_in = record, trial.incarnation
        return done

    def hold(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Keep what others may be told to go on from to be as a trial is now.

        Parameters
        ----------
        trial : Trial
            Who. A checkpoint that it is about to save is taken as soon as it is there.

        Returns
        -------
        list of DeleteCheckpoint
            Which checkpoints are not needed any more.
        """
        done = self._hold(trial, self.newest(trial, trial.last_iteration))
        trial.held_at = trial.last_iteration
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
            if trial.held is not None and trial.held.path == path:
                trial.held = None
                self._hold(trial, self.newest(trial, trial.held_at))

    def lose_memory(self) -> None:
        """Take note that all checkpoints in memory are gone."""
        for trial in self._trials.values():
            for record in (trial.memory, *trial.lent):
                if record is not None and record.kind is CheckpointKind.MEMORY:
                    self.lose(trial, record.path)

    def _hold(self, trial: Trial, record: CheckpointRecord | None) -> list[DeleteCheckpoint]:
        """Let a trial hold a checkpoint in the place of another one."""
        if record is not None:
            self._borrowers[record.path] += 1
        before, trial.held = trial.held, record
        return self._released(before)

    def _let_go(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Let a trial hold nothing any longer."""
        trial.held_at = -1
        return self._hold(trial, None)

    def _give_back(self, trial: Trial) -> list[DeleteCheckpoint]:
        """Let a trial need another one's checkpoint no longer."""
        origin, trial.origin = trial.origin, None
        return self._released(origin)

    def _released(self, record: CheckpointRecord | None) -> list[DeleteCheckpoint]:
        """Return a checkpoint that somebody needs no longer, if nobody else does."""
        if record is None:
            return []
        self._borrowers[record.path] -= 1
        owner = self._owner(record)
        if self._borrowers[record.path] or record not in owner.lent:
            return []
        owner.lent = tuple(one for one in owner.lent if one != record)
        return [DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=record)]

    def _owner(self, record: CheckpointRecord) -> Trial:
        folder = _place(record)[0]
        # Mostly directories have the names of their trials, and else trials are looked through.
        named = self._trials.get(folder)
        if named is not None and named.folder == folder:
            return named
        return next(trial for trial in self._trials.values() if trial.folder == folder)

    def _give_up(self, owner: Trial, records: list[CheckpointRecord]) -> list[DeleteCheckpoint]:
        """Return those of a trial's own checkpoints that nobody else needs; remember the others."""
        lent = [record for record in records if self._borrowers[record.path]]
        owner.lent += tuple(lent)
        free = [record for record in records if record not in lent]
        return [DeleteCheckpoint(trial_id=owner.trial_id, checkpoint=one) for one in free]


def _place(record: CheckpointRecord) -> tuple[str, int, int]:
    place = checkpoint_place(record.path)
    assert place is not None, "the path of a record is checked when it is read"
    return place
