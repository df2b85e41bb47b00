"""Evaluate each suggestion several times, where a single result is too noisy to learn from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from typing import Any, Final, Literal

import numpy as np

from dasktune.errors import check
from dasktune.search.suggest import FINISHED, EvaluatedPoint, Finished, Searcher
from dasktune.space.checks import as_int
from dasktune.trial.metrics import Metric, Modes, lookup, number

__all__ = ["TRIAL_INDEX", "Repeater"]

logger = logging.getLogger(__name__)

#: The key of a configuration that numbers the repeats.
TRIAL_INDEX: Final = "__trial_index__"


@dataclass(slots=True)
class _Group:
    """The repeats of one suggestion."""

    config: dict[str, Any]
    #: How many repeats there are to be.
    size: int
    #: Repeats that have not ended, and those of them that are paused.
    running: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    #: For each repeat that has ended and not failed, its metrics; None where there is no number.
    values: list[list[float | None]] = field(default_factory=list)
    #: How many have failed.
    failed: int = 0
    #: The last result of whoever had one and ended last.
    last: dict[str, Any] | None = None

    @property
    def count(self) -> int:
        """How many repeats there were."""
        return len(self.running) + len(self.values) + self.failed

    @property
    def is_full(self) -> bool:
        """Whether there will be no more."""
        return self.count >= self.size

    @property
    def is_over(self) -> bool:
        """Whether the last one has ended."""
        return self.is_full and not self.running

    @property
    def rests(self) -> bool:
        """Whether it goes on only when a paused one does."""
        return self.is_full and bool(self.running) and len(self.paused) == len(self.running)


class Repeater(Searcher):
    """Have each suggestion evaluated several times, and tell the searcher the mean once.

    Parameters
    ----------
    searcher : Searcher
        Who suggests. To limit it, put a `ConcurrencyLimiter` around the repeater to count trials,
        or inside to count suggestions.
    repeat : int, default=1
        How often; at least 1. ``num_samples`` counts every repeat.
    set_index : bool, default=True
        Whether the configuration has ``"__trial_index__"``, 0 for the first repeat: to seed with.

    Raises
    ------
    ConfigError
        If `searcher` is no searcher, or `repeat` is below 1.

    Notes
    -----
    The searcher knows a suggestion by the name of its first trial, and hears of it when the last
    one has ended: the last trial's result with the means of the metrics in place of its own. A
    repeat whose metric is missing or NaN, or that failed, does not count in the mean; if none
    counts, the metric is left out. Only if all have failed has the suggestion failed.

    Examples
    --------
    >>> class Told(Searcher):
    ...     def suggest(self, trial_id):
    ...         return {"x": 1}
    ...     def on_trial_complete(self, trial_id, result=None, error=False):
    ...         print(trial_id, result)
    >>> repeater = Repeater(Told(metric="loss", mode="min"), repeat=2)
    >>> repeater.suggest("a"), repeater.suggest("b")
    ({'x': 1, '__trial_index__': 0}, {'x': 1, '__trial_index__': 1})
    >>> repeater.on_trial_complete("b", {"loss": 0.25})
    >>> repeater.on_trial_complete("a", {"loss": 0.75})
    a {'loss': 0.5}
    """

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        given: object = searcher
        check(isinstance(given, Searcher), "searcher", "a Searcher", searcher)
        super().__init__(metric=searcher.metric, mode=searcher.mode)
        self.searcher = searcher
        self.answers_at_once = searcher.answers_at_once
        self.repeat = as_int("repeat", repeat, least=1)
        self.set_index = set_index
        #: Groups that have not ended, by the name of their first trial.
        self._groups: dict[str, _Group] = {}
        #: The group of each trial that has not ended.
        self._group_of: dict[str, str] = {}
        #: Trials that may still be asked for; None if there is no end.
        self._left: int | None = None

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass it on, with the number of suggestions in place of the number of trials."""
        samples = spec.get("num_samples", -1)
        self._left = samples if samples >= 0 else None
        if samples >= 0:
            spec["num_samples"] = -(-samples // self.repeat)
            if samples % self.repeat:
                logger.warning(
                    "num_samples=%s is no multiple of repeat=%s: the last suggestion is evaluated "
                    "less often",
                    samples,
                    self.repeat,
                )
        taken = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        return taken

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return the suggestion that is still to be repeated, or the next one."""
        name = self._unfilled()
        if name is None:
            answer = self.searcher.suggest(trial_id)
            if answer is None or answer is FINISHED:
                return answer
            name = trial_id
            self._open(name, answer)
        index = self._join(trial_id, name)
        return {**self._groups[name].config, **({TRIAL_INDEX: index} if self.set_index else {})}

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Take back the trial if it has no configuration; else give its group this one."""
        name = self._group_of.get(trial_id)
        own = None if config is None else {k: v for k, v in config.items() if k != TRIAL_INDEX}
        if own is None:
            if name is not None:
                self._groups[name].running.remove(trial_id)
                del self._group_of[trial_id]
                self._left = None if self._left is None else self._left + 1
            if name == trial_id:
                del self._groups[name]
        elif name is None:
            self._open(trial_id, own)
            self._join(trial_id, trial_id)
        elif name == trial_id:
            self._groups[name].config = own
        if name in (None, trial_id):
            self.searcher.adopt(trial_id, own)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the searcher of the whole group if it was the last of it."""
        name = self._group_of.pop(trial_id, None)
        if name is None:
            return
        group = self._groups[name]
        rested = group.rests
        group.running.remove(trial_id)
        if trial_id in group.paused:
            group.paused.remove(trial_id)
        group.failed += error
        if result is not None:
            group.last = dict(result)
        if not error:
            group.values.append([_defined(result or {}, metric) for metric in self._metrics])
        if group.is_over:
            del self._groups[name]
            self.searcher.on_trial_complete(name, self._told(group), group.failed == group.size)
        else:
            self._tell_of_rest(name, rested)

    def on_pause(self, trial_id: str) -> None:
        """Pass it on, if all of the group that has not ended is paused."""
        self._set_paused(trial_id, paused=True)

    def on_unpause(self, trial_id: str) -> None:
        """Pass it on, if all of the group that had not ended was paused."""
        self._set_paused(trial_id, paused=False)

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Pass it on, without the number of its repeat."""
        own = {name: given for name, given in point.parameters.items() if name != TRIAL_INDEX}
        replace(point, parameters=own).add_to(self.searcher)

    def state_dict(self) -> dict[str, Any]:
        """Return the groups that have not ended, and the searcher's own state."""
        return {
            "groups": {name: asdict(group) for name, group in self._groups.items()},
            "left": self._left,
            "searcher": self.searcher.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._groups = {name: _Group(**deepcopy(each)) for name, each in state["groups"].items()}
        self._group_of = {
            trial_id: name for name, group in self._groups.items() for trial_id in group.running
        }
        self._left = state["left"]
        self.searcher.load_state_dict(state["searcher"])

    @property
    def _metrics(self) -> list[str]:
        return self.metric if isinstance(self.metric, list) else [self.metric or ""]

    def _unfilled(self) -> str | None:
        return next((name for name, group in self._groups.items() if not group.is_full), None)

    def _open(self, name: str, config: Mapping[str, Any]) -> None:
        size = self.repeat if self._left is None else min(self.repeat, max(1, self._left))
        self._groups[name] = _Group(dict(config), size)

    def _join(self, trial_id: str, name: str) -> int:
        """Add a trial to a group, and return its number there."""
        group = self._groups[name]
        index = group.count
        group.running.append(trial_id)
        self._group_of[trial_id] = name
        self._left = None if self._left is None else self._left - 1
        return index

    def _set_paused(self, trial_id: str, *, paused: bool) -> None:
        name = self._group_of.get(trial_id)
        if name is None:
            return
        group = self._groups[name]
        rested = group.rests
        if trial_id in group.paused:
            group.paused.remove(trial_id)
        if paused:
            group.paused.append(trial_id)
        self._tell_of_rest(name, rested)

    def _tell_of_rest(self, name: str, rested: bool) -> None:
        rests = self._groups[name].rests
        if rests and not rested:
            self.searcher.on_pause(name)
        elif rested and not rests:
            self.searcher.on_unpause(name)

    def _told(self, group: _Group) -> dict[str, Any] | None:
        if group.last is None:
            return None
        told = {name: value for name, value in group.last.items() if name not in self._metrics}
        for index, name in enumerate(self._metrics):
            mean = _mean([row[index] for row in group.values])
            if mean is not None:
                told[name] = mean
        return told


def _defined(result: Mapping[str, Any], metric: str) -> float | None:
    value = number(lookup(result, metric))
    return None if value is None or isnan(value) else value


def _mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    if not defined:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(np.mean(defined))
    return None if isnan(mean) else mean  # of infinities of both signs
