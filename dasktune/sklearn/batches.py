"""Models that are trained in batches: all wait until the last one is scored, then some go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from time import monotonic
from typing import Any, Final

from dasktune.schedulers.decision import (
    Command,
    Continue,
    Decision,
    Pause,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.search.searcher import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.trial.checkpoint import CheckpointKind
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["BatchScheduler", "Bracket", "ModelQueue"]

#: A model's records, as `model_history_` has them, by the number of the model.
Info = dict[int, list[dict[str, Any]]]

#: What is kept of a result.
_FIGURES: Final = ("training_iteration", "partial_fit_time", "score", "score_time")


def _forget(state: Mapping[str, Any]) -> None:
    """Do nothing: the records are all that a policy without a state needs."""


@dataclass(slots=True, eq=False)
class Bracket:
    """Models that are compared with each other, and what came of them.

    Parameters
    ----------
    params : sequence of dict
        The parameters of each model.
    additional_calls : callable
        ``additional_calls(info)`` says how often each model is to be trained once more before it is
        scored again, by its number. 0 keeps it as it is, and who is missing is given up. When
        nobody is to go on, the bracket is over.
    error_score : float
        Score of a model that fails.
    most_calls : int, default=0
        For how many calls its last models train at most, as far as that is known.
    """

    params: Sequence[Mapping[str, Any]]
    additional_calls: Callable[[Info], Mapping[int, int]]
    error_score: float
    most_calls: int = 0
    #: Returns what the decisions hang on beside the records, as plain values.
    save_policy: Callable[[], dict[str, Any]] = dict
    #: Takes it back.
    load_policy: Callable[[Mapping[str, Any]], None] = _forget
    #: Those that have not been given up, with their records.
    info: Info = field(default_factory=dict)
    #: All records, in the order in which batches were complete.
    history: list[dict[str, Any]] = field(default_factory=list)
    #: Models that failed, with the ids of their trials.
    failed: dict[int, str] = field(default_factory=dict)
    #: After how many calls each model is scored next.
    targets: dict[int, int] = field(default_factory=dict)
    #: The models of the present batch, in the order in which they are told of, with what came of
    #: those that have been scored.
    batch: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)
    #: The ids of the trials, by the number of their model.
    trials: dict[int, str] = field(default_factory=dict)
    #: The trials that go on and have not been started for it, in the order in which they may, each
    #: with the number of its model.
    ready: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    @property
    def is_full(self) -> bool:
        """Whether all models have been added."""
        return len(self.trials) == len(self.params)

    @property
    def is_complete(self) -> bool:
        """Whether nobody is waited for."""
        return self.is_full and not self.is_over and all(self.batch.values())

    @property
    def given_up_last(self) -> Info:
        """Those that were trained longest before they were given up, with their records."""
        records: Info = {}
        for record in self.history:
            if record["model_id"] not in self.failed:
                records.setdefault(record["model_id"], []).append(record)
        calls = {number: rows[-1]["partial_fit_calls"] for number, rows in records.items()}
        most = max(calls.values(), default=0)
        return {number: rows for number, rows in records.items() if calls[number] == most}

    @property
    def urgency(self) -> float:
        """What is to come at most for who goes on, in multiples of what he is to do now.

        The batches that others wait for go first, and before a model trains for long that nobody
        waits for. At eight threads the brackets of Hyperband then take 1.1 times what the work
        alone takes; in the order in which they came it is up to 1.5 times.
        """
        number = next(iter(self.ready.values()), None)
        if number is None:
            return -1.0
        records = self.info[number]
        done = records[-1]["partial_fit_calls"] if records else 0
        return (self.most_calls - done) / (self.targets[number] - done)

    def record(self, number: int, result: Mapping[str, Any], elapsed: float) -> None:
        """Note what a model has come to."""
        record = {
            "model_id": number,
            "params": self.params[number],
            "partial_fit_calls": result["training_iteration"],
            "partial_fit_time": result["partial_fit_time"],
            "score": result["score"],
            "score_time": result["score_time"],
            "elapsed_wall_time": elapsed,
        }
        self.history.append(record)
        if number not in self.failed:
            self.info.setdefault(number, []).append(record)

    def give_up(self, number: int, trial: Trial) -> None:
        """Take note that a model has failed."""
        self.failed[number] = trial.trial_id
        self.info.pop(number, None)
        failure = {
            "training_iteration": trial.last_iteration,
            "partial_fit_time": 0.0,
            "score": self.error_score,
            "score_time": 0.0,
        }
        self.batch[number] = failure

    def state_dict(self) -> dict[str, Any]:
        """Return all but what it was made of, as plain values; records name their model."""
        return {
            "left": list(self.info),
            "history": [
                {name: _plain(value) for name, value in record.items() if name != "params"}
                for record in self.history
            ],
            "failed": list(self.failed.items()),
            "targets": list(self.targets.items()),
            "batch": [
                [number, result and {name: _plain(value) for name, value in result.items()}]
                for number, result in self.batch.items()
            ],
            "trials": list(self.trials.items()),
            "ready": list(self.ready.items()),
            "is_over": self.is_over,
            "policy": self.save_policy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.history = [
            {
                "model_id": record["model_id"],
                "params": self.params[record["model_id"]],
                **{name: _number(value) for name, value in record.items()},
            }
            for record in state["history"]
        ]
        self.info = {number: [] for number in state["left"]}
        for record in self.history:
            if record["model_id"] in self.info:
                self.info[record["model_id"]].append(record)
        self.failed = dict(state["failed"])
        self.targets = dict(state["targets"])
        self.batch = {
            number: result and {name: _number(value) for name, value in result.items()}
            for number, result in state["batch"]
        }
        self.trials = dict(state["trials"])
        self.ready = dict(state["ready"])
        self.is_over = state["is_over"]
        self.load_policy(state["policy"])


def _plain(value: Any) -> Any:
    """Return a number as JSON can hold it."""
    return value if isfinite(value) else repr(float(value))


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


class BatchScheduler(TrialScheduler):
    """Lets each bracket decide about its models whenever the last of a batch has been scored.

    Models that wait are paused, with a checkpoint in the storage: a worker that is lost meanwhile
    costs nothing. Brackets do not wait for each other.

    Parameters
    ----------
    brackets : sequence of Bracket
        They are filled one after the other.
    timer : callable, default=time.monotonic
        Seconds since any fixed moment.
    on_batch : callable, optional
        Called with the place of a bracket and the records of each batch that is complete.
    """

    def __init__(
        self,
        brackets: Sequence[Bracket],
        *,
        timer: Callable[[], float] = monotonic,
        on_batch: Callable[[int, list[dict[str, Any]]], None] | None = None,
    ) -> None:
        self._brackets = brackets
        self._timer = timer
        self._on_batch = on_batch
        self._started: float | None = None
        #: Bracket and number of each model that is still in the game.
        self._places: dict[str, tuple[Bracket, int]] = {}
        self._unfilled = deque(brackets)

    def __deepcopy__(self, memo: Any) -> BatchScheduler:
        # It is made for one search, whose brackets it fills.
        return self

    @property
    def waits_for_others(self) -> bool:
        """Always."""
        return True

    @property
    def writes_policies(self) -> bool:
        """Nobody is cloned."""
        return False

    def on_trial_add(self, trial: Trial) -> None:
        """Give the trial the next model."""
        if self._started is None:
            self._started = self._timer()
        bracket = self._unfilled[0]
        number = len(bracket.trials)
        bracket.trials[number] = trial.trial_id
        bracket.info[number] = []
        bracket.batch[number] = None
        bracket.targets[number] = 1
        self._places[trial.trial_id] = bracket, number
        bracket.ready[trial.trial_id] = number
        if bracket.is_full:
            self._unfilled.popleft()

    def on_trial_start(self, trial: Trial) -> None:
        """Offer it no more."""
        self._unready(trial)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Let a model wait that has been scored, and decide if it was the last one."""
        place = self._places.get(trial.trial_id)
        if place is None:
            return Stop("its bracket is over")
        bracket, number = place
        if result["training_iteration"] < bracket.targets[number]:
            return Continue()
        if bracket.batch.get(number, result) is None:
            bracket.batch[number] = self._figures(result)
        orders = dict(self._decide(bracket))
        own = orders.pop(trial.trial_id, None)
        # The best one is read from there, and a lost worker costs what came after it.
        kind = CheckpointKind.PERSISTENT
        commands = tuple(orders.values())
        if isinstance(own, StopOther):
            return Stop(own.reason, commands)
        if own is None:
            return Pause("waits for the others of its batch", commands=commands, kind=kind)
        if any(one.urgency > bracket.urgency for one in self._brackets):
            # It would keep its place for long, and they would wait for those who have none.
            return Pause("lets a more urgent bracket go first", commands=commands, kind=kind)
        self._unready(trial)
        return Continue(save=True, commands=commands, kind=kind)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Forget it; one that was not told to end counts as failed."""
        return self._give_up(trial)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Wait no longer for a model that has failed."""
        return self._give_up(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Forget it; one that still was to be trained has failed."""
        return self._give_up(trial)

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose one that has lost its worker, then of the most urgent bracket who goes on."""
        first = next(iter(waiting.pending.values()), None)
        # Who goes on with the next batch has been on a worker, too, and waits for its turn.
        if first is not None and first.incarnation and not self._is_ready(first):
            return first
        brackets = sorted(self._brackets, key=lambda one: one.urgency, reverse=True)
        for key in chain.from_iterable(bracket.ready for bracket in brackets):
            # It is paused if it had not left its worker yet when it was to go on.
            trial = waiting.pending.get(key) or waiting.paused.get(key)
            if trial is not None:
                return trial
        return first

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return after how many calls the model is scored."""
        place = self._places.get(trial.trial_id)
        value = 0 if place is None else place[0].targets[place[1]]
        return (Milestone("training_iteration", value),)

    def state_dict(self) -> dict[str, Any]:
        """Return how far all brackets are, and what has passed of their time."""
        return {
            "elapsed": None if self._started is None else self._timer() - self._started,
            "brackets": [bracket.state_dict() for bracket in self._brackets],
            "places": [
                [key, self._brackets.index(bracket), number]
                for key, (bracket, number) in self._places.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave, of brackets with the same models."""
        elapsed = state["elapsed"]
        self._started = None if elapsed is None else self._timer() - elapsed
        for bracket, one in zip(self._brackets, state["brackets"], strict=True):
            bracket.load_state_dict(one)
        self._places = {
            key: (self._brackets[place], number) for key, place, number in state["places"]
        }
        self._unfilled = deque(one for one in self._brackets if not one.is_full)

    def _is_ready(self, trial: Trial) -> bool:
        place = self._places.get(trial.trial_id)
        return place is not None and trial.trial_id in place[0].ready

    def _unready(self, trial: Trial) -> None:
        place = self._places.get(trial.trial_id)
        if place is not None:
            place[0].ready.pop(trial.trial_id, None)

    def _figures(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is kept of a result; what is no number counts as none."""
        named = {**result, "score": result.get(self.metric or "score")}
        if self.mode == "min" and isinstance(named["score"], int | float):
            named["score"] = -named["score"]
        figures = {name: named.get(name, 0.0) for name in _FIGURES}
        return {
            name: value if isinstance(value, int | float) else float("nan")
            for name, value in figures.items()
        }

    def _give_up(self, trial: Trial) -> tuple[Command, ...]:
        self._unready(trial)
        place = self._places.pop(trial.trial_id, None)
        if place is None:
            return ()
        bracket, number = place
        bracket.give_up(number, trial)
        return tuple(command for _, command in self._decide(bracket))

    def _decide(self, bracket: Bracket) -> Iterator[tuple[str, Command]]:
        """Yield what happens to whom, if nobody of a bracket is waited for."""
        if not bracket.is_complete:
            return
        assert self._started is not None
        elapsed = self._timer() - self._started
        before = len(bracket.history)
        for number, result in bracket.batch.items():
            assert result is not None, "the batch is complete"
            bracket.record(number, result, elapsed)
        bracket.batch = {}
        if self._on_batch is not None:
            self._on_batch(self._brackets.index(bracket), bracket.history[before:])
        calls = dict(bracket.additional_calls(bracket.info)) if bracket.info else {}
        calls = {number: count for number, count in calls.items() if number in bracket.info}
        if calls:
            # Where all are given up at once, the last ones are what is left.
            for number in set(bracket.info) - set(calls):
                del bracket.info[number]
        bracket.is_over = not any(calls.values())
        for number, count in calls.items():
            if count:
                key = bracket.trials[number]
                bracket.targets[number] += int(count)
                bracket.batch[number] = None
                bracket.ready[key] = number
                yield key, Unpause(trial_id=key)
        for key, (other, number) in tuple(self._places.items()):
            if other is bracket and (bracket.is_over or number not in bracket.info):
                del self._places[key]
                bracket.ready.pop(key, None)
                reason = "its bracket is over" if number in bracket.info else "it was given up"
                yield key, StopOther(trial_id=key, reason=reason)


class ModelQueue(SearchAlgorithm):
    """Gives out the models of all brackets, bracket by bracket.

    Parameters
    ----------
    brackets : sequence of (int, sequence of dict)
        What each bracket is called, and the parameters of its models.

    Examples
    --------
    >>> queue = ModelQueue([(1, [{"C": 1}]), (0, [{"C": 2}])])
    >>> queue.next_trial("t0").config
    {'bracket': 1, 'model': 0, 'params': {'C': 1}}
    >>> queue.next_trial("t1").config["bracket"], queue.next_trial("t2").finished
    (0, True)
    """

    lookahead = 64
    answers_at_once = True

    def __init__(self, brackets: Sequence[tuple[int, Sequence[Mapping[str, Any]]]]) -> None:
        self._brackets = brackets
        self._counts = [len(models) for _, models in brackets]
        self._given = 0

    def __deepcopy__(self, memo: Any) -> ModelQueue:
        return self

    def setup(self, spec: SearchSpec) -> None:
        """Take the task: there is nothing to know."""

    @property
    def total_samples(self) -> int | None:
        """How many models there are."""
        return sum(self._counts)

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the next model."""
        number = self._given
        for (bracket, models), count in zip(self._brackets, self._counts, strict=True):
            if number < count:
                self._given += 1
                config = {"bracket": bracket, "model": number, "params": dict(models[number])}
                return Suggestion(config=config, tag=f"model={bracket}-{number}")
            number -= count
        return Suggestion(config=None, finished=True)

    def state_dict(self) -> dict[str, Any]:
        """Return how many models were given out."""
        return {"given": self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._given = state["given"]
