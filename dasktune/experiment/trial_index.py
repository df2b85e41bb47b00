"""All trials of an experiment by status. Every change of a status is made here.

Invariants, checked by :meth:`TrialIndex.validate`:

1. A trial is in `pending` exactly if it is PENDING, in `paused` exactly if it is PAUSED, in
   `paused_by_user` exactly if the user has paused it, and in `active` exactly if it holds resources
   on a worker.
2. Only a running trial awaits a decision.
3. A trial's history has one row per ``training_iteration``, in increasing order.
4. The numbers of a trial's checkpoints increase, a checkpoint in memory has the highest number, and
   all numbers are below `next_checkpoint`.
5. A trial that has ended keeps only checkpoints in the storage and lent ones.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from itertools import pairwise, takewhile
from typing import Any

from dasktune.errors import InvalidTransition
from dasktune.experiment.trial_state import StoredHistories, trial_from_state, trial_state
from dasktune.trial.actions import TrialAction
from dasktune.trial.apply import apply_action, apply_event
from dasktune.trial.events import TrialEvent
from dasktune.trial.result_keys import TRAINING_ITERATION
from dasktune.trial.rows.row_blocks import IN_MEMORY, BlockStore
from dasktune.trial.status import TRANSITIONS, PublicStatus, TrialStatus
from dasktune.trial.trial import NO_STATUS_LOG, Trial, new_status_log


class TrialIndex:
    """The trials of an experiment, indexed by status.

    Attributes
    ----------
    trials : dict of str to Trial
        All trials that were ever added, in order.
    pending, paused : OrderedDict of str to Trial
        Waiting trials, in the order in which they should start.
    paused_by_user : dict of str to Trial
        Trials that the user has paused.
    active : dict of str to Trial
        Trials that hold resources on a worker.
    num_added : int
        The number of trials that the user has added.
    """

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self.pending: OrderedDict[str, Trial] = OrderedDict()
        self.paused: OrderedDict[str, Trial] = OrderedDict()
        self.paused_by_user: dict[str, Trial] = {}
        self.active: dict[str, Trial] = {}
        self.num_added = 0
        self._counts: Counter[TrialStatus] = Counter()

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def unfinished(self) -> int:
        """How many trials have not ended."""
        return len(self.pending) + len(self.paused) + len(self.paused_by_user) + len(self.active)

    def public_counts(self) -> dict[PublicStatus, int]:
        """Return the number of trials by public status."""
        counts = dict.fromkeys(PublicStatus, 0)
        for status, count in self._counts.items():
            counts[status.public] += count
        return counts

    def add(self, trial: Trial) -> None:
        """Add a new, pending trial.

        A trial that the user has added goes before all trials that have not started yet, except
        trials that the user has added earlier.
        """
        if trial.trial_id in self.trials:
            raise InvalidTransition(f"a second trial {trial.trial_id} was added")
        self.trials[trial.trial_id] = trial
        trial.status_log = new_status_log()
        self._counts[trial.status] += 1
        self.pending[trial.trial_id] = trial
        if trial.added:
            self.num_added += 1
            ahead = list(takewhile(lambda one: one.added or one.incarnation, self.pending.values()))
            self.pending.move_to_end(trial.trial_id, last=False)
            for one in reversed(ahead):
                if one is not trial:
                    self.pending.move_to_end(one.trial_id, last=False)

    def apply(self, trial: Trial, cause: TrialEvent | TrialAction, time: float) -> bool:
        """Apply an event or an action to its trial; return whether it brought a new result.

        Raises
        ------
        InvalidTransition
            If `TRANSITIONS` has no row for it.
        """
        before = trial.status
        trial.status_log.append((before, type(cause), cause.incarnation, getattr(cause, "seq", 0)))
        if (before, type(cause)) not in TRANSITIONS:
            name = type(cause).__name__
            raise InvalidTransition(
                f"trial {trial.trial_id} is {before.value} and got {name}", status_log_lines(trial)
            )
        is_new_result = False
        if isinstance(cause, TrialEvent):
            is_new_result = apply_event(trial, cause)
        else:
            apply_action(trial, cause, time)
        if trial.status is not before:
            self._reindex(trial, before)
        return is_new_result

    def _reindex(self, trial: Trial, before: TrialStatus) -> None:
        key, after = trial.trial_id, trial.status
        self._counts[before] -= 1
        self._counts[after] += 1
        for index in self._indexes(before):
            del index[key]
        for index in self._indexes(after):
            index[key] = trial
        if after is TrialStatus.PENDING and (before.is_active or before.is_paused_by_user):
            # A trial that has lost its worker has progress to recover, and one that the user has
            # unpaused should continue: both start before the others.
            self.pending.move_to_end(key, last=False)

    def _indexes(self, status: TrialStatus) -> Iterator[dict[str, Trial]]:
        if status is TrialStatus.PENDING:
            yield self.pending
        elif status is TrialStatus.PAUSED:
            yield self.paused
        elif status.is_paused_by_user:
            yield self.paused_by_user
        elif status.is_active:
            yield self.active

    def state_dict(self, *, rows: bool = True, clones: bool = False) -> dict[str, Any]:
        """Return all trials and the order of those that wait.

        Parameters
        ----------
        rows : bool, default=True
            Whether the states of the trials have all of their results.
        clones : bool, default=False
            Whether the scheduler clones trials, although no trial may have been cloned yet.
        """
        has_clones = clones or any(trial.ancestry for trial in self.trials.values())
        since = self._first_clone_point() if has_clones and not rows else None
        return {
            "trials": [
                trial_state(trial, rows=rows, since=None if trial.status.is_final else since)
                for trial in self.trials.values()
            ],
            "pending": list(self.pending),
            "paused": list(self.paused),
        }

    def _first_clone_point(self) -> int | None:
        """Return the ``training_iteration`` to which clones go back at most; None if there is none.

        A clone resumes from the newest checkpoint of its donor, and keeps its own results up to
        there. These results are part of a snapshot, so that a driver which has restored it clones
        trials without reading the journal first.
        """
        points = []
        for trial in self.trials.values():
            records = [record for record in (trial.checkpoint, trial.memory) if record is not None]
            if records and not trial.status.is_final:
                points.append(max(record.iteration for record in records))
        return min(points, default=None)

    def cut_short(self) -> Trial | None:
        """Return a trial that would have to read stored results if it became a clone; None if none.

        The snapshot has only so many results of each trial.
        """
        point = self._first_clone_point()
        if point is None:
            return None
        for trial in self.trials.values():
            history = trial.history
            if trial.status.is_final or history.is_at_hand:
                continue
            if int(history.newest[0][TRAINING_ITERATION]) > point:
                return trial
        return None

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        histories: StoredHistories | None = None,
        blocks: BlockStore = IN_MEMORY,
    ) -> None:
        """Add the trials that :meth:`state_dict` returned; the index must be empty.

        Parameters
        ----------
        state : mapping
            The state.
        histories, blocks
            As for :func:`~dasktune.experiment.trial_state.trial_from_state`.
        """
        for one in state["trials"]:
            trial = trial_from_state(one, histories, blocks)
            trial.status_log = NO_STATUS_LOG if trial.status.is_final else new_status_log()
            self.trials[trial.trial_id] = trial
            self._counts[trial.status] += 1
            self.num_added += trial.added
            if trial.status.is_active:
                self.active[trial.trial_id] = trial
            elif trial.status.is_paused_by_user:
                self.paused_by_user[trial.trial_id] = trial
        self.pending.update((key, self.trials[key]) for key in state["pending"])
        self.paused.update((key, self.trials[key]) for key in state["paused"])
        self.validate()

    def validate(self, *trials: Trial) -> None:
        """Check the invariants of `trials`, by default of all, and of the indexes.

        Raises
        ------
        InvalidTransition
            If an invariant does not hold.
        """
        for trial in trials or tuple(self.trials.values()):
            for holds, violation in _invariants(self, trial):
                if not holds:
                    raise InvalidTransition(f"trial {trial}: {violation}", status_log_lines(trial))
        counted = sum(self._counts.values())
        if counted != len(self.trials):
            raise InvalidTransition(f"{counted} trials are counted, {len(self.trials)} exist")


def status_log_lines(trial: Trial) -> tuple[str, ...]:
    """Return the log of a trial's statuses as lines of text, oldest first."""
    return tuple(
        f"{before.value}: {cause.__name__} of incarnation {incarnation}" + (f", seq {seq}" if seq else "")
        for before, cause, incarnation, seq in trial.status_log
    )


def _invariants(index: TrialIndex, trial: Trial) -> Iterator[tuple[bool, str]]:
    key, status = trial.trial_id, trial.status
    yield (key in index.pending) == (status is TrialStatus.PENDING), "pending index is wrong"
    yield (key in index.paused) == (status is TrialStatus.PAUSED), "paused index is wrong"
    by_user = (key in index.paused_by_user) == status.is_paused_by_user
    yield by_user, "paused_by_user index is wrong"
    yield (key in index.active) == status.is_active, "active index is wrong"
    yield not trial.awaiting_seq or status is TrialStatus.RUNNING, "awaits but does not run"
    yield not status.is_active or trial.incarnation > 0, "active without an incarnation"
    newest = [row[TRAINING_ITERATION] for row in trial.history.newest]
    yield _increasing(newest), "history is out of order"
    numbers = [record.index for record in trial.checkpoints]
    if trial.memory is not None:
        numbers.append(trial.memory.index)
    yield _increasing([*numbers, trial.next_checkpoint]), "checkpoint numbers are out of order"
    needs = (trial.memory, trial.origin, trial.held) != (None, None, None)
    yield not (needs and status.is_final), "has ended but keeps a checkpoint to resume from"


def _increasing(values: list[Any]) -> bool:
    return all(a < b for a, b in pairwise(values))
