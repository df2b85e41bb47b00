"""The scheduler of incremental searches: it decides when all models of a batch have been scored."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from time import monotonic
from typing import Any, Final

from dasktune.schedulers import decision as decisions
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.sklearn.steps.candidate_space import CandidateQueue
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

#: {number of a model: its records, as in `model_history_`}
Info = dict[int, list[dict[str, Any]]]

#: The metrics of a result that a model's record keeps.
_SCORED_VALUES: Final = ("training_iteration", "partial_fit_time", "score", "score_time")


def _ignore_state(state: Mapping[str, Any]) -> None:
    """Do nothing: a search without a state decides from the records alone."""


@dataclass(slots=True, eq=False)
class Bracket:
    """Models that are compared with each other, with their records.

    Parameters
    ----------
    params : sequence of dict
        The parameters of each model.
    additional_calls : callable
        ``additional_calls(info)`` returns the number of further calls of each model before it is
        scored again, by the model's number. 0 keeps a model without further training; a missing
        model is dropped. If no model gets further calls, the bracket is over.
    error_score : float
        Score of a model that fails.
    most_calls : int, default=0
        Maximum number of calls of a model; 0 if it is unknown.
    """

    params: Sequence[Mapping[str, Any]]
    additional_calls: Callable[[Info], Mapping[int, int]]
    error_score: float
    most_calls: int = 0
    #: Returns the state of `additional_calls` beyond the records, as plain values.
    save_policy: Callable[[], dict[str, Any]] = dict
    #: Restores the state that `save_policy` returned.
    load_policy: Callable[[Mapping[str, Any]], None] = _ignore_state
    #: The records of the models that have neither failed nor been dropped.
    info: Info = field(default_factory=dict)
    #: All records, in the order in which batches were completed.
    history: list[dict[str, Any]] = field(default_factory=list)
    #: {number of a failed model: id of its trial}
    failed: dict[int, str] = field(default_factory=dict)
    #: {number of a model: number of calls at which it is scored next}
    targets: dict[int, int] = field(default_factory=dict)
    #: {number of a model of the current batch: its result, None until it is scored}, in the order
    #: in which they are recorded.
    batch: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)
    #: {number of a model: id of its trial}
    trials: dict[int, str] = field(default_factory=dict)
    #: {id of a trial to start for the current batch: number of its model}, in starting order.
    ready: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    @property
    def is_full(self) -> bool:
        """Whether all models have been added."""
        return len(self.trials) == len(self.params)

    @property
    def is_batch_complete(self) -> bool:
        """Whether all models of the current batch have been scored or have failed."""
        return self.is_full and not self.is_over and all(self.batch.values())

    @property
    def last_eliminated(self) -> Info:
        """The dropped models that were trained longest, with their records."""
        records: Info = {}
        for record in self.history:
            if record["model_id"] not in self.failed:
                records.setdefault(record["model_id"], []).append(record)
        calls = {number: rows[-1]["partial_fit_calls"] for number, rows in records.items()}
        max_calls = max(calls.values(), default=0)
        return {number: rows for number, rows in records.items() if calls[number] == max_calls}

    @property
    def urgency(self) -> float:
        """The priority of the next trial: its remaining calls divided by its calls in this batch.

        So a short batch, for which other models wait, runs before a long batch of a single model.
        With eight threads, the brackets of Hyperband then take 1.1 times as long as the training
        alone. If trials start in the order of their arrival, they take up to 1.5 times as long.
        """
        number = next(iter(self.ready.values()), None)
        if number is None:
            return -1.0
        records = self.info[number]
        done = records[-1]["partial_fit_calls"] if records else 0
        return (self.most_calls - done) / (self.targets[number] - done)

    def record(self, number: int, result: Mapping[str, Any], elapsed: float) -> None:
        """Append a record of a model's result."""
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

    def mark_failed(self, number: int, trial: Trial) -> None:
        """Record that a model has failed, and give it `error_score` in this batch."""
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
        """Return the state without the constructor's arguments, as plain values."""
        return {
            "left": list(self.info),
            "history": [
                {name: _to_json(value) for name, value in record.items() if name != "params"}
                for record in self.history
            ],
            "failed": list(self.failed.items()),
            "targets": list(self.targets.items()),
            "batch": [
                [number, result and {name: _to_json(value) for name, value in result.items()}]
                for number, result in self.batch.items()
            ],
            "trials": list(self.trials.items()),
            "ready": list(self.ready.items()),
            "is_over": self.is_over,
            "policy": self.save_policy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self.history = [
            {
                "model_id": record["model_id"],
                "params": self.params[record["model_id"]],
                **{name: _from_json(value) for name, value in record.items()},
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
            number: result and {name: _from_json(value) for name, value in result.items()}
            for number, result in state["batch"]
        }
        self.trials = dict(state["trials"])
        self.ready = dict(state["ready"])
        self.is_over = state["is_over"]
        self.load_policy(state["policy"])


def _to_json(value: Any) -> Any:
    """Return a number for JSON: NaN and infinity become text."""
    return value if isfinite(value) else repr(float(value))


def _from_json(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


class SynchronousScheduler(TrialScheduler):
    """Lets each bracket decide about its models when the last model of a batch has been scored.

    Waiting models are paused, with a checkpoint in the storage, so that a lost worker costs them
    nothing. Brackets do not wait for each other.

    Parameters
    ----------
    brackets : sequence of Bracket
        The brackets; a new trial gets a model of the first bracket that is not full.
    timer : callable, default=time.monotonic
        A monotonic clock, in seconds.
    on_batch : callable, optional
        Called with the index of a bracket and the records of each completed batch.
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
        #: {id of a trial: bracket and number of its model}, for models that may be trained further.
        self._places: dict[str, tuple[Bracket, int]] = {}
        self._unfilled = deque(brackets)

    def __deepcopy__(self, memo: Any) -> SynchronousScheduler:
        # The search reads its results from these brackets, so the tuner must not copy them.
        return self

    @property
    def waits_for_others(self) -> bool:
        """True: a decision needs all models of a batch."""
        return True

    @property
    def writes_policies(self) -> bool:
        """False: trials are never cloned."""
        return False

    def on_trial_add(self, trial: Trial) -> None:
        """Assign the next model of the first unfilled bracket to the trial."""
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
        """Remove the trial from its bracket's trials to start."""
        self._remove_ready(trial)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> decisions.Decision:
        """Pause a model that has been scored; if its batch is complete, let its bracket decide."""
        entry = self._places.get(trial.trial_id)
        if entry is None:
            return decisions.Stop("its bracket is over")
        bracket, number = entry
        if result["training_iteration"] < bracket.targets[number]:
            return decisions.Continue()
        if bracket.batch.get(number, result) is None:
            bracket.batch[number] = self._scored_values(result)
        commands_by_trial = dict(self._decide(bracket))
        own_command = commands_by_trial.pop(trial.trial_id, None)
        # The checkpoint is stored, because the search reads the best model from the storage, and
        # because a waiting model must survive the loss of its worker.
        kind = CheckpointKind.PERSISTENT
        commands = tuple(commands_by_trial.values())
        if isinstance(own_command, decisions.StopOther):
            return decisions.Stop(own_command.reason, commands)
        if own_command is None:
            return decisions.Pause("waits for the others of its batch", commands=commands, kind=kind)
        if any(one.urgency > bracket.urgency for one in self._brackets):
            # The model could continue at once, but would hold its resources for long, while trials
            # of more urgent brackets wait for resources.
            return decisions.Pause("yields to a more urgent bracket", commands=commands, kind=kind)
        self._remove_ready(trial)
        return decisions.Continue(save=True, commands=commands, kind=kind)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[decisions.Command, ...]:
        """Remove the model; unless the scheduler stopped it, it counts as failed."""
        return self._on_trial_end(trial)

    def on_trial_error(self, trial: Trial) -> tuple[decisions.Command, ...]:
        """Count the model as failed, so that its batch does not wait for it."""
        return self._on_trial_end(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[decisions.Command, ...]:
        """Remove the model; it counts as failed if its bracket still needed it."""
        return self._on_trial_end(trial)

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose a trial that lost its worker, else the next trial of the most urgent bracket."""
        first = next(iter(waiting.pending.values()), None)
        # A trial that is ready for its next batch has an incarnation, too, but did not lose its
        # worker.
        if first is not None and first.incarnation and not self._is_ready(first):
            return first
        brackets = sorted(self._brackets, key=lambda one: one.urgency, reverse=True)
        for key in chain.from_iterable(bracket.ready for bracket in brackets):
            # Usually `Unpause` has made the trial pending. But the bracket may decide while the
            # trial is still leaving its worker: the experiment ignores `Unpause` then, and the
            # trial is found among the paused ones once it has left.
            trial = waiting.pending.get(key) or waiting.paused.get(key)
            if trial is not None:
                return trial
        return first

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the number of calls at which the model is scored next."""
        entry = self._places.get(trial.trial_id)
        value = 0 if entry is None else entry[0].targets[entry[1]]
        return (Milestone("training_iteration", value),)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all brackets, and the elapsed seconds."""
        return {
            "elapsed": None if self._started is None else self._timer() - self._started,
            "brackets": [bracket.state_dict() for bracket in self._brackets],
            "places": [
                [key, self._brackets.index(bracket), number]
                for key, (bracket, number) in self._places.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned for brackets of the same models."""
        elapsed = state["elapsed"]
        self._started = None if elapsed is None else self._timer() - elapsed
        for bracket, one in zip(self._brackets, state["brackets"], strict=True):
            bracket.load_state_dict(one)
        self._places = {key: (self._brackets[place], number) for key, place, number in state["places"]}
        self._unfilled = deque(one for one in self._brackets if not one.is_full)

    def _is_ready(self, trial: Trial) -> bool:
        entry = self._places.get(trial.trial_id)
        return entry is not None and trial.trial_id in entry[0].ready

    def _remove_ready(self, trial: Trial) -> None:
        entry = self._places.get(trial.trial_id)
        if entry is not None:
            entry[0].ready.pop(trial.trial_id, None)

    def _scored_values(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kept metrics of a result; a value that is not a number becomes NaN."""
        named = {**result, "score": result.get(self.metric or "score")}
        if self.mode == "min" and isinstance(named["score"], int | float):
            named["score"] = -named["score"]
        values = {name: named.get(name, 0.0) for name in _SCORED_VALUES}
        return {
            name: value if isinstance(value, int | float) else float("nan") for name, value in values.items()
        }

    def _on_trial_end(self, trial: Trial) -> tuple[decisions.Command, ...]:
        self._remove_ready(trial)
        entry = self._places.pop(trial.trial_id, None)
        if entry is None:
            return ()
        bracket, number = entry
        bracket.mark_failed(number, trial)
        return tuple(command for _, command in self._decide(bracket))

    def _decide(self, bracket: Bracket) -> Iterator[tuple[str, decisions.Command]]:
        """Yield a command for each affected trial, if the bracket's batch is complete."""
        if not bracket.is_batch_complete:
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
            # If all models are dropped in one decision, keep the models of the batch as the result.
            for number in set(bracket.info) - set(calls):
                del bracket.info[number]
        bracket.is_over = not any(calls.values())
        for number, count in calls.items():
            if count:
                key = bracket.trials[number]
                bracket.targets[number] += int(count)
                bracket.batch[number] = None
                bracket.ready[key] = number
                yield key, decisions.Unpause(trial_id=key)
        for key, (other, number) in tuple(self._places.items()):
            if other is bracket and (bracket.is_over or number not in bracket.info):
                del self._places[key]
                bracket.ready.pop(key, None)
                reason = "its bracket is over" if number in bracket.info else "dropped by its bracket"
                yield key, decisions.StopOther(trial_id=key, reason=reason)


class ModelQueue(CandidateQueue):
    """Suggests the models of all brackets, bracket by bracket.

    Parameters
    ----------
    brackets : sequence of (int, sequence of dict)
        The number of each bracket, and the parameters of its models.

    Examples
    --------
    >>> queue = ModelQueue([(1, [{"C": 1}]), (0, [{"C": 2}])])
    >>> queue.next_trial("t0").config
    {'bracket': 1, 'model': 0, 'params': {'C': 1}}
    >>> queue.next_trial("t1").config["bracket"], queue.next_trial("t2").finished
    (0, True)
    """

    def __init__(self, brackets: Sequence[tuple[int, Sequence[Mapping[str, Any]]]]) -> None:
        super().__init__(
            {"bracket": bracket, "model": number, "params": dict(params)}
            for bracket, models in brackets
            for number, params in enumerate(models)
        )

    def __deepcopy__(self, memo: Any) -> ModelQueue:
        # The queue is created for one search, so the tuner need not copy the parameters.
        return self

    def _tag(self, number: int) -> str:
        config = self._candidates[number]
        return f"model={config['bracket']}-{config['model']}"
