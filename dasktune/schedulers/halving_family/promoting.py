"""ASHA (Li et al., 2020): asynchronous successive halving, promotion variant."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from dasktune.schedulers.decision import Command, Continue, Decision, Pause, Stop, StopOther
from dasktune.schedulers.halving_family.async_halving import AsyncHalving
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.trial import Trial

#: The loss (lower is better), the number of trials that reached the rung before, and the id.
_Entry = tuple[float, int, str]


@dataclass(slots=True)
class _Rung:
    #: Trials with a finite score, best first; ties in order of arrival.
    ranking: list[_Entry] = field(default_factory=list)
    #: The part of `ranking` that is paused and may be promoted, in the same order.
    held: list[_Entry] = field(default_factory=list)
    #: Number of trials without a finite score.
    undefined: int = 0

    def __len__(self) -> int:
        return len(self.ranking) + self.undefined

    def enter(self, loss: float, name: str) -> _Entry:
        entry = (loss, len(self), name)
        insort(self.ranking, entry)
        return entry

    def rank(self, entry: _Entry) -> int:
        """Return the number of trials that are better than an entry."""
        return bisect_left(self.ranking, entry)


class PromotingASHAScheduler(AsyncHalving):
    """ASHA with pauses: a trial waits at a rung until it is in the best ``1/reduction_factor``.

    :class:`ASHAScheduler` lets the first trials at a rung continue, because there are no others to
    compare them with. This scheduler pauses them until enough others have reached the rung. Fewer
    bad trials get a large budget, but each pause costs a checkpoint.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it must not decrease.
    metric : str, optional
        The metric to compare trials by; by default that of `TuneConfig`.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise `metric`; by default that of `TuneConfig`.
    max_t : float, default=100
        Maximum budget of a trial, in units of `time_attr`. R in the paper.
    grace_period : float, default=1
        Budget of the first rung, in units of `time_attr`. More than 0. r in the paper.
    reduction_factor : float, default=4
        Halving rate: the best ``1/reduction_factor`` of the trials at a rung are promoted.
        Unitless, more than 1. eta in the paper.
    brackets : int, default=1
        Number of brackets. Bracket s leaves out the lowest s rungs; a bracket without rungs trains
        its trials to `max_t`.
    stop_last_trials : bool, default=True
        Whether trials are stopped at `max_t`.

    Raises
    ------
    ConfigError
        If not ``max_t >= grace_period > 0``, or another argument is invalid.

    Notes
    -----
    This is algorithm 2 of [1]_:

    - Of the n trials that have reached a rung, the best ``floor(n / reduction_factor)`` are
      promotable; ties are won by the trial that arrived first. A trial that is promotable when it
      reaches the rung continues; any other is paused.
    - A free place goes to the best promotable trial of the highest rung that has one. If there is
      none, it goes to the first new trial.
    - A result that passes several rungs at once is recorded at each of them with the same score.
      The trial waits at the highest one only.
    - A score that is missing, not a number, NaN or infinite counts in n and is the worst. The trial
      is stopped, because it would never be promoted.
    - When no trial runs, none is promotable and no new one will come, the worse half of the paused
      trials is stopped. This repeats until all have ended.
    - The bracket of a trial is drawn once, with probabilities proportional to
      ``exp(number of its rungs)``.

    A trainable without checkpoints starts from the beginning when it is promoted. Paused trials
    count as unfinished in a :class:`~dasktune.search.ConcurrencyLimiter`: with a low limit, trials
    are stopped that might have been promoted later.

    With k trials on a rung, a result or a choice costs O(log k) comparisons and an insertion into a
    sorted list.

    References
    ----------
    .. [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
       arXiv:1810.05934.

    Examples
    --------
    >>> asha = PromotingASHAScheduler(metric="loss", mode="min", max_t=9, reduction_factor=3)
    >>> print(asha.debug_string())
    Using PromotingASHA: num_stopped=0
    Bracket: Iter 9.000: 0 of 0 wait | Iter 3.000: 0 of 0 wait | Iter 1.000: 0 of 0 wait
    """

    def __init__(
        self,
        *,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: Mode | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            max_t=max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
            stop_last_trials=stop_last_trials,
        )
        self._rungs = [[_Rung() for _ in budgets] for budgets in self._budgets]
        #: All rungs as (bracket, index), the highest budget first.
        self._from_the_top = sorted(
            (
                (bracket, index)
                for bracket, budgets in enumerate(self._budgets)
                for index in range(len(budgets))
            ),
            key=lambda place: -self._budgets[place[0]][place[1]],
        )
        #: ``{trial_id: entry on its last rung}`` of the trials that wait for promotion.
        self._held: dict[str, _Entry] = {}

    def on_trial_start(self, trial: Trial) -> None:
        """Remove the trial from those that wait for promotion."""
        self._release(trial)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Record the trial's last result at the rungs that it has reached."""
        super().on_trial_complete(trial, result)
        self._release(trial)
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from those that wait for promotion; its scores stay on the rungs."""
        self._release(trial)
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from those that wait for promotion; its scores stay on the rungs."""
        self._release(trial)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the best promotable trial of the highest rung, else the first new trial."""
        for bracket, index in self._from_the_top:
            for _, _, name in self._promotable(self._rungs[bracket][index]):
                trial = waiting.paused.get(name) or waiting.pending.get(name)
                if trial is not None:  # None while it is still leaving its worker
                    return trial
        # A trial that failed while it was being paused is pending, but must be promoted to start.
        return next((one for key, one in waiting.pending.items() if key not in self._held), None)

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Stop the worse half of the trials that wait for promotion.

        Only half are stopped, because a search with a limit on unfinished trials may then suggest
        new ones, whose results may make trials of the better half promotable.
        """
        names = [name for name in (*waiting.pending, *waiting.paused) if name in self._held]
        if not names:
            return super().on_standstill(waiting)
        names.sort(key=self._priority)
        return tuple(
            StopOther(trial_id=name, reason=f"was not promoted: {self._describe_rank(name)}")
            for name in names[: (len(names) + 1) // 2]
        )

    def debug_string(self) -> str:
        """Return a line for each bracket with the number of trials that wait at each rung."""
        lines = [f"Using PromotingASHA: num_stopped={self._num_stopped}"]
        for budgets, rungs in zip(self._budgets, self._rungs, strict=True):
            counts = (
                f"Iter {budget:.3f}: {len(rung.held)} of {len(rung)} wait"
                for budget, rung in reversed(list(zip(budgets, rungs, strict=True)))
            )
            lines.append(f"Bracket: {' | '.join(counts)}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, the position of each trial, and the state of the random generator."""
        return {
            **super().state_dict(),
            "rankings": [[list(map(list, rung.ranking)) for rung in own] for own in self._rungs],
            "undefined": [[rung.undefined for rung in own] for own in self._rungs],
            "held": {name: list(entry) for name, entry in self._held.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If the state was saved by a scheduler with other rungs.
        """
        super().load_state_dict(state)
        self._rungs = [
            [
                _Rung(ranking=[_entry(*entry) for entry in ranking], undefined=undefined)
                for ranking, undefined in zip(*bracket, strict=True)
            ]
            for bracket in zip(state["rankings"], state["undefined"], strict=True)
        ]
        self._held = {name: _entry(*entry) for name, entry in state["held"].items()}
        for name, entry in self._held.items():
            insort(self._rung_of(name).held, entry)

    def _reach(self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range) -> Decision:
        value = self._value(trial, result)
        score = self._score(value)
        if score is None:
            for index in rungs:
                self._rungs[bracket][index].undefined += 1
            return Stop(f"{self.metric} is {value} {self._place(bracket, rungs[-1])}")
        for index in rungs[:-1]:
            self._rungs[bracket][index].enter(-score, trial.trial_id)
        rung = self._rungs[bracket][rungs[-1]]
        entry = rung.enter(-score, trial.trial_id)
        if rung.rank(entry) < self._quota(rung):
            return Continue()
        insort(rung.held, entry)
        self._held[trial.trial_id] = entry
        return Pause(f"waits for promotion: {self._describe_rank(trial.trial_id)}")

    def _quota(self, rung: _Rung) -> int:
        """Return the number of trials of a rung that are promotable."""
        return int(len(rung) / self._factor)

    def _promotable(self, rung: _Rung) -> Iterator[_Entry]:
        quota = self._quota(rung)
        return takewhile(lambda entry: rung.rank(entry) < quota, rung.held)

    def _rung_of(self, name: str) -> _Rung:
        climber = self._climbers[name]
        return self._rungs[climber.bracket][climber.rungs - 1]

    def _release(self, trial: Trial) -> None:
        entry = self._held.pop(trial.trial_id, None)
        if entry is not None:
            held = self._rung_of(trial.trial_id).held
            del held[bisect_left(held, entry)]

    def _priority(self, name: str) -> tuple[float, int]:
        """Return a sort key: higher for a higher rung, then for a better rank on it."""
        climber = self._climbers[name]
        budget = self._budgets[climber.bracket][climber.rungs - 1]
        return budget, -self._rung_of(name).rank(self._held[name])

    def _describe_rank(self, name: str) -> str:
        """Return the rank of a waiting trial on its rung, and the rank that it needs, as text."""
        entry, rung, climber = self._held[name], self._rung_of(name), self._climbers[name]
        value = entry[0] if self.mode == "min" else -entry[0]
        return (
            f"{self.metric} {value:.6g} is number {rung.rank(entry) + 1} of {len(rung)} "
            f"{self._place(climber.bracket, climber.rungs - 1)}, of which the best "
            f"{self._quota(rung)} may continue"
        )


def _entry(loss: float, order: int, name: str) -> _Entry:
    return loss, order, name
