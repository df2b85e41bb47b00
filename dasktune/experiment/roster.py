"""Who is there and what each is doing: every change of a status goes through here.

Invariants, checked by :meth:`Roster.validate`:

1. A trial stands in `pending` exactly if it is PENDING, in `paused` exactly if it is PAUSED, in
   `resting` exactly if the user lets it rest, in `active` exactly if it holds resources on a
   worker.
2. Only a trial that runs awaits an answer.
3. Its history has one row per ``training_iteration``, in increasing order.
4. Its checkpoints have increasing numbers, one in memory the highest, all below
   `next_checkpoint`.
5. When it has ended, it keeps nothing but what is in the storage, or lent to others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from itertools import pairwise, takewhile
from typing import Any

from dasktune.errors import InvalidTransition
from dasktune.experiment.trial_state import state_of, trial_of
from dasktune.trial.actions import TrialAction
from dasktune.trial.events import TrialEvent
from dasktune.trial.status import TRANSITIONS, PublicStatus, TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["Roster", "is_news", "tell"]


def tell(trial: Trial) -> tuple[str, ...]:
    """Return the trial's story as lines, oldest first."""
    return tuple(
        f"{before.value}: {cause.__name__} of incarnation {incarnation}"
        + (f", seq {seq}" if seq else "")
        for before, cause, incarnation, seq in trial.story
    )


class Roster:
    """The trials of an experiment, indexed by what they are doing.

    Attributes
    ----------
    trials : dict of str to Trial
        All that were ever added, in order.
    pending, paused : OrderedDict of str to Trial
        Those that wait, in the order in which they should be taken.
    resting : dict of str to Trial
        Those that wait for the user alone.
    active : dict of str to Trial
        Those that hold resources on a worker.
    """

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self.pending: OrderedDict[str, Trial] = OrderedDict()
        self.paused: OrderedDict[str, Trial] = OrderedDict()
        self.resting: dict[str, Trial] = {}
        self.active: dict[str, Trial] = {}
        self._counts: Counter[TrialStatus] = Counter()

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def unfinished(self) -> int:
        """How many trials have not ended for good."""
        return len(self.pending) + len(self.paused) + len(self.resting) + len(self.active)

    def public_counts(self) -> dict[PublicStatus, int]:
        """Return how many trials stand at each public status."""
        counts = dict.fromkeys(PublicStatus, 0)
        for status, count in self._counts.items():
            counts[status.public] += count
        return counts

    def add(self, trial: Trial) -> None:
        """Take in a new, pending trial.

        One that the user has added goes before all that have not begun, but for those that were
        added before it.
        """
        if trial.trial_id in self.trials:
            raise InvalidTransition(f"a second trial {trial.trial_id} was added")
        self.trials[trial.trial_id] = trial
        self._counts[trial.status] += 1
        self.pending[trial.trial_id] = trial
        if trial.added:
            ahead = list(takewhile(lambda one: one.added or one.incarnation, self.pending.values()))
            self.pending.move_to_end(trial.trial_id, last=False)
            for one in reversed(ahead):
                if one is not trial:
                    self.pending.move_to_end(one.trial_id, last=False)

    def move(self, trial: Trial, cause: TrialEvent | TrialAction) -> TrialStatus:
        """Change a trial's status as the table says, and return what it was before."""
        before = trial.status
        after = TRANSITIONS.get((before, type(cause)))
        trial.story.append((before, type(cause), cause.incarnation, getattr(cause, "seq", 0)))
        if after is None:
            name = type(cause).__name__
            raise InvalidTransition(
                f"trial {trial.trial_id} is {before.value} and got {name}", tell(trial)
            )
        if after is not before:
            self._reindex(trial, before, after)
        return before

    def _reindex(self, trial: Trial, before: TrialStatus, after: TrialStatus) -> None:
        key = trial.trial_id
        trial.status = after
        trial.awaiting_seq = 0
        self._counts[before] -= 1
        self._counts[after] += 1
        for index in self._indexes(before):
            del index[key]
        for index in self._indexes(after):
            index[key] = trial
        if after is TrialStatus.PENDING and (before.is_active or before.is_resting):
            # It was on its way: whoever lost its worker has progress to save and goes first. And
            # whom the user has let go on is to go on.
            self.pending.move_to_end(key, last=False)

    def _indexes(self, status: TrialStatus) -> Iterator[dict[str, Trial]]:
        if status is TrialStatus.PENDING:
            yield self.pending
        elif status is TrialStatus.PAUSED:
            yield self.paused
        elif status.is_resting:
            yield self.resting
        elif status.is_active:
            yield self.active

    def state_dict(self) -> dict[str, Any]:
        """Return all trials, and the order of those that wait."""
        return {
            "trials": [state_of(trial) for trial in self.trials.values()],
            "pending": list(self.pending),
            "paused": list(self.paused),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the trials that :meth:`state_dict` gave; to be called on a roster without any."""
        for trial in map(trial_of, state["trials"]):
            self.trials[trial.trial_id] = trial
            self._counts[trial.status] += 1
            if trial.status.is_active:
                self.active[trial.trial_id] = trial
            elif trial.status.is_resting:
                self.resting[trial.trial_id] = trial
        self.pending.update((key, self.trials[key]) for key in state["pending"])
        self.paused.update((key, self.trials[key]) for key in state["paused"])
        self.validate()

    def validate(self, *trials: Trial) -> None:
        """Check the invariants of `trials`, by default of all, and of the indexes.

        Raises
        ------
        InvalidTransition
            If one does not hold.
        """
        for trial in trials or tuple(self.trials.values()):
            for held, sentence in _invariants(self, trial):
                if not held:
                    raise InvalidTransition(f"trial {trial}: {sentence}", tell(trial))
        counted = sum(self._counts.values())
        if counted != len(self.trials):
            raise InvalidTransition(f"{counted} trials are counted, {len(self.trials)} exist")


def is_news(trial: Trial, event: TrialEvent) -> bool:
    """Whether an event is neither of a past incarnation of its trial nor a repetition."""
    if event.incarnation != trial.incarnation or not trial.status.is_active:
        return False
    return event.seq > trial.last_seq or not event.seq


def _invariants(roster: Roster, trial: Trial) -> Iterator[tuple[bool, str]]:
    key, status = trial.trial_id, trial.status
    yield (key in roster.pending) == (status is TrialStatus.PENDING), "pending index is wrong"
    yield (key in roster.paused) == (status is TrialStatus.PAUSED), "paused index is wrong"
    yield (key in roster.resting) == status.is_resting, "resting index is wrong"
    yield (key in roster.active) == status.is_active, "active index is wrong"
    yield not trial.awaiting_seq or status is TrialStatus.RUNNING, "awaits but does not run"
    yield not status.is_active or trial.incarnation > 0, "active without an incarnation"
    yield len(trial.rows) == len(trial.history), "not one row per iteration"
    yield _increasing(list(trial.rows)), "history is out of order"
    numbers = [record.index for record in trial.checkpoints]
    if trial.memory is not None:
        numbers.append(trial.memory.index)
    yield _increasing([*numbers, trial.next_checkpoint]), "checkpoint numbers are out of order"
    needs = (trial.memory, trial.origin, trial.held) != (None, None, None)
    yield not (needs and status.is_final), "has ended but holds what it could go on from"


def _increasing(values: list[Any]) -> bool:
    return all(a < b for a, b in pairwise(values))
