"""Asynchronous successive halving, in its promoting variant."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from dasktune.schedulers.async_halving import AsyncHalving
from dasktune.schedulers.decision import Command, Continue, Decision, Pause, Stop, StopOther
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.trial import Trial

__all__ = ["PromotingASHAScheduler"]

#: The score turned so that lower is better, how many were on the rung before, the trial's id.
_Entry = tuple[float, int, str]


@dataclass(slots=True)
class _Rung:
    #: Who has come here with a finite score, the best first; of equals the earlier one.
    ranking: list[_Entry] = field(default_factory=list)
    #: Those of them that wait to be promoted, in the same order.
    held: list[_Entry] = field(default_factory=list)
    #: How many have come without a finite score.
    undefined: int = 0

    def __len__(self) -> int:
        return len(self.ranking) + self.undefined

    def enter(self, loss: float, name: str) -> _Entry:
        entry = (loss, len(self), name)
        insort(self.ranking, entry)
        return entry

    def rank(self, entry: _Entry) -> int:
        """Return how many are better."""
        return bisect_left(self.ranking, entry)


class PromotingASHAScheduler(AsyncHalving):
    """Pause a trial at each rung until it is in the rung's best ``1/reduction_factor``.

    Where :class:`ASHAScheduler` lets the first trials at a rung pass, as nobody is there to be
    compared with, this one has them wait for others. So fewer trials get far that should not, and
    each pause costs a checkpoint.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it never falls.
    metric : str, optional
        What to judge by; the experiment's if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.
    max_t : float, default=100
        Most that a trial gets, in units of `time_attr`. The paper's R.
    grace_period : float, default=1
        First rung, in units of `time_attr`. More than 0. The paper's r.
    reduction_factor : float, default=4
        One in so many is promoted from a rung. Unitless, more than 1. The paper's eta.
    brackets : int, default=1
        How many sets of rungs there are; each starts one rung later than the one before. Those
        beyond the number of rungs have none, and let their trials train up to `max_t`.
    stop_last_trials : bool, default=True
        Whether trials end at `max_t`.

    Raises
    ------
    ConfigError
        If ``max_t >= grace_period > 0`` does not hold, or another argument breaks its rule.

    Notes
    -----
    Algorithm 2 of [1]_. Precisely:

    - Of the n trials that have come to a rung, the best ``floor(n / reduction_factor)`` may go on;
      of equals the earlier one is better. Who may, goes on at once; who may not, is paused.
    - A free place goes to a trial that may go on, from the highest rung where there is one, the
      best first; else to the first trial that has not begun.
    - A trial that jumps over rungs is entered at each of them with the score that it crosses them
      with, and waits at the highest only.
    - A score that is missing, no number, NaN or infinite counts in n and is the worst there is: the
      trial stops, as it would never be promoted.
    - When nobody runs, may go on or is to come, the worse half of those that wait is stopped, and
      so on.
    - A trial's bracket is drawn with probabilities proportional to ``exp(number of its rungs)``,
      and kept for life.

    A trainable without checkpoints begins anew when it is promoted. To a
    :class:`~dasktune.search.ConcurrencyLimiter` a paused trial is one that has not ended: with a
    narrow one many are stopped that might have been promoted later.

    A result and a choice cost O(log k) comparisons in the k trials on a rung, and the shift of a
    list of k.

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
        #: The rungs' places, the highest first.
        self._from_the_top = sorted(
            (
                (bracket, index)
                for bracket, budgets in enumerate(self._budgets)
                for index in range(len(budgets))
            ),
            key=lambda place: -self._budgets[place[0]][place[1]],
        )
        #: Who waits to be promoted -> what it has left on the last rung that it has come to.
        self._held: dict[str, _Entry] = {}

    def on_trial_start(self, trial: Trial) -> None:
        """Count it as promoted, if it was waiting for that."""
        self._release(trial)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Record the trial at the rungs that it has passed; it waits at none."""
        super().on_trial_complete(trial, result)
        self._release(trial)
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Promote it no more; what it has left on the rungs stays."""
        self._release(trial)
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Promote it no more; what it has left on the rungs stays."""
        self._release(trial)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the best trial that may go on from the highest rung, else the first new one."""
        for bracket, index in self._from_the_top:
            for _, _, name in self._promotable(self._rungs[bracket][index]):
                trial = waiting.paused.get(name) or waiting.pending.get(name)
                if trial is not None:  # or it is still on its way from its place
                    return trial
        # Whoever failed while it was being paused is pending, and must wait all the same.
        return next((one for key, one in waiting.pending.items() if key not in self._held), None)

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Stop the worse half of those that wait: nobody makes room for them among the best.

        Only half, because a search that lets so many trials be unfinished may suggest others then,
        which make room for the better half.
        """
        names = [name for name in (*waiting.pending, *waiting.paused) if name in self._held]
        if not names:
            return super().on_standstill(waiting)
        names.sort(key=self._prospects)
        return tuple(
            StopOther(trial_id=name, reason=f"was not promoted: {self._standing(name)}")
            for name in names[: (len(names) + 1) // 2]
        )

    def debug_string(self) -> str:
        """Return a line for each bracket: how many trials wait at its rungs."""
        lines = [f"Using PromotingASHA: num_stopped={self._num_stopped}"]
        for budgets, rungs in zip(self._budgets, self._rungs, strict=True):
            told = (
                f"Iter {budget:.3f}: {len(rung.held)} of {len(rung)} wait"
                for budget, rung in reversed(list(zip(budgets, rungs, strict=True)))
            )
            lines.append(f"Bracket: {' | '.join(told)}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, where each trial is, and the state of the random generator."""
        return {
            **super().state_dict(),
            "rankings": [[list(map(list, rung.ranking)) for rung in own] for own in self._rungs],
            "undefined": [[rung.undefined for rung in own] for own in self._rungs],
            "held": {name: list(entry) for name, entry in self._held.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If it comes from a scheduler with other rungs.
        """
        super().load_state_dict(state)
        self._rungs = [
            [
                _Rung(ranking=[_entry(*told) for told in ranking], undefined=undefined)
                for ranking, undefined in zip(*told, strict=True)
            ]
            for told in zip(state["rankings"], state["undefined"], strict=True)
        ]
        self._held = {name: _entry(*told) for name, told in state["held"].items()}
        for name, entry in self._held.items():
            insort(self._rung_of(name).held, entry)

    def _reach(
        self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range
    ) -> Decision:
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
        return Pause(f"waits for its promotion: {self._standing(trial.trial_id)}")

    def _quota(self, rung: _Rung) -> int:
        """Return how many may go on from a rung."""
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

    def _prospects(self, name: str) -> tuple[float, int]:
        """Return what is higher for a trial on a higher rung, and for a better one there."""
        climber = self._climbers[name]
        budget = self._budgets[climber.bracket][climber.rungs - 1]
        return budget, -self._rung_of(name).rank(self._held[name])

    def _standing(self, name: str) -> str:
        """Return how good a trial that waits was, and how good it would have to be."""
        entry, rung, climber = self._held[name], self._rung_of(name), self._climbers[name]
        value = entry[0] if self.mode == "min" else -entry[0]
        return (
            f"{self.metric} {value:.6g} is number {rung.rank(entry) + 1} of {len(rung)} "
            f"{self._place(climber.bracket, climber.rungs - 1)}, of which the best "
            f"{self._quota(rung)} may go on"
        )


def _entry(loss: float, order: int, name: str) -> _Entry:
    return loss, order, name
