"""`Repeater`, a wrapper that evaluates each suggestion several times for noisy objectives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from typing import Any, Final, Literal

import numpy as np

from dasktune.errors import check
from dasktune.search.searcher import FINISHED, EvaluatedPoint, Finished, Searcher
from dasktune.space.checks import as_int
from dasktune.trial.metrics import Metric, Modes, lookup, number

logger = logging.getLogger(__name__)

#: The key of a configuration that holds the index of its repeat.
TRIAL_INDEX: Final = "__trial_index__"


@dataclass(slots=True)
class _Group:
    """The repeats of one suggestion."""

    config: dict[str, Any]
    #: The number of repeats that the group will have.
    size: int
    #: Repeats that have not ended, and those of them that are paused.
    running: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    #: The metrics of each successful repeat; None for a metric that is missing or NaN.
    values: list[list[float | None]] = field(default_factory=list)
    #: The number of failed repeats.
    failed: int = 0
    #: The last result of the repeat that ended last; repeats without a result do not count.
    last: dict[str, Any] | None = None

    @property
    def count(self) -> int:
        """The number of repeats started so far."""
        return len(self.running) + len(self.values) + self.failed

    @property
    def is_full(self) -> bool:
        """Whether all repeats have started."""
        return self.count >= self.size

    @property
    def is_over(self) -> bool:
        """Whether all repeats have ended."""
        return self.is_full and not self.running

    @property
    def is_paused(self) -> bool:
        """Whether all repeats that have not ended are paused, and no more will start."""
        return self.is_full and bool(self.running) and len(self.paused) == len(self.running)


class Repeater(Searcher):
    """Evaluate each suggestion in several trials, and report their mean to the searcher.

    Parameters
    ----------
    searcher : Searcher
        The searcher that suggests configurations. A `ConcurrencyLimiter` around the repeater limits
        trials; one around the inner searcher limits suggestions.
    repeat : int, default=1
        The number of trials for each suggestion, at least 1. ``num_samples`` counts every repeat.
    set_index : bool, default=True
        Whether to add ``"__trial_index__"`` to the configuration, 0 for the first repeat. Use it as
        a seed.

    Raises
    ------
    ConfigError
        If `searcher` is not a Searcher, or `repeat` is below 1.

    Notes
    -----
    The searcher knows a suggestion by the name of its first trial. It gets a result when the last
    repeat has ended: the last result of that repeat, with the mean of each metric. Repeats that
    failed, or whose metric is missing or NaN, are left out of the mean; if none remains, the metric
    is left out. The suggestion counts as failed only if all repeats failed.

    Examples
    --------
    >>> class Printing(Searcher):
    ...     def suggest(self, trial_id):
    ...         return {"x": 1}
    ...     def on_trial_complete(self, trial_id, result=None, error=False):
    ...         print(trial_id, result)
    >>> repeater = Repeater(Printing(metric="loss", mode="min"), repeat=2)
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
        #: Groups with repeats that have not ended, by the name of their first trial.
        self._groups: dict[str, _Group] = {}
        #: The group of each trial that has not ended.
        self._group_of: dict[str, str] = {}
        #: The number of trials still to suggest; None if there is no limit.
        self._left: int | None = None

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass the properties to the searcher, with `num_samples` counting suggestions."""
        samples = spec.get("num_samples", -1)
        self._left = samples if samples >= 0 else None
        if samples >= 0:
            spec["num_samples"] = -(-samples // self.repeat)
            if samples % self.repeat:
                logger.warning(
                    "num_samples=%s is no multiple of repeat=%s: the last suggestion gets fewer repeats",
                    samples,
                    self.repeat,
                )
        searches_config = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        # Trials of an earlier experiment, which `restore` has read: they never end in this one.
        self._groups, self._group_of = {}, {}
        return searches_config

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return another repeat of an incomplete group, or the first of the next suggestion."""
        name = self._incomplete_group()
        if name is None:
            answer = self.searcher.suggest(trial_id)
            if answer is None or answer is FINISHED:
                return answer
            name = trial_id
            self._open(name, answer)
        index = self._join(trial_id, name)
        return {**self._groups[name].config, **({TRIAL_INDEX: index} if self.set_index else {})}

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Remove the trial if it has no configuration; otherwise set its group's configuration."""
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
        """Report the mean result to the searcher if this was the last repeat of its group."""
        name = self._group_of.pop(trial_id, None)
        if name is None:
            return
        group = self._groups[name]
        was_paused = group.is_paused
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
            self.searcher.on_trial_complete(name, self._mean_result(group), group.failed == group.size)
        else:
            self._report_pause_change(name, was_paused)

    def on_pause(self, trial_id: str) -> None:
        """Notify the searcher if all unfinished repeats of the group are now paused."""
        self._set_paused(trial_id, paused=True)

    def on_unpause(self, trial_id: str) -> None:
        """Notify the searcher if all unfinished repeats of the group were paused until now."""
        self._set_paused(trial_id, paused=False)

    def read_past(self, read: Callable[[str], Any]) -> None:
        """Let the searcher read its earlier experiments."""
        self.searcher.read_past(read)

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Pass the point to the searcher, without the index of its repeat."""
        own = {name: given for name, given in point.parameters.items() if name != TRIAL_INDEX}
        replace(point, parameters=own).add_to(self.searcher)

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished groups, and the searcher's own state."""
        return {
            "groups": {name: asdict(group) for name, group in self._groups.items()},
            "left": self._left,
            "searcher": self.searcher.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._load_own(state)
        self.searcher.load_state_dict(state["searcher"])

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        self._load_own(state)
        self.searcher._restore_state(state["searcher"])

    def _load_own(self, state: Mapping[str, Any]) -> None:
        self._groups = {name: _Group(**deepcopy(each)) for name, each in state["groups"].items()}
        self._group_of = {
            trial_id: name for name, group in self._groups.items() for trial_id in group.running
        }
        self._left = state["left"]

    @property
    def _metrics(self) -> list[str]:
        return self.metric if isinstance(self.metric, list) else [self.metric or ""]

    def _incomplete_group(self) -> str | None:
        return next((name for name, group in self._groups.items() if not group.is_full), None)

    def _open(self, name: str, config: Mapping[str, Any]) -> None:
        size = self.repeat if self._left is None else min(self.repeat, max(1, self._left))
        self._groups[name] = _Group(dict(config), size)

    def _join(self, trial_id: str, name: str) -> int:
        """Add a trial to a group, and return its index there."""
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
        was_paused = group.is_paused
        if trial_id in group.paused:
            group.paused.remove(trial_id)
        if paused:
            group.paused.append(trial_id)
        self._report_pause_change(name, was_paused)

    def _report_pause_change(self, name: str, was_paused: bool) -> None:
        is_paused = self._groups[name].is_paused
        if is_paused and not was_paused:
            self.searcher.on_pause(name)
        elif was_paused and not is_paused:
            self.searcher.on_unpause(name)

    def _mean_result(self, group: _Group) -> dict[str, Any] | None:
        if group.last is None:
            return None
        result = {name: value for name, value in group.last.items() if name not in self._metrics}
        for index, name in enumerate(self._metrics):
            mean = _mean([row[index] for row in group.values])
            if mean is not None:
                result[name] = mean
        return result


def _defined(result: Mapping[str, Any], metric: str) -> float | None:
    value = number(lookup(result, metric))
    return None if value is None or isnan(value) else value


def _mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    if not defined:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(np.mean(defined))
    return None if isnan(mean) else mean  # NaN for infinities of both signs
