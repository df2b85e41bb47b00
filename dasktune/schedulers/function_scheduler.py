"""A scheduler that is defined by a function of the results so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import check
from dasktune.schedulers.decision import Command, Continue, Decision, Pause, StopOther, Unpause
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.space.checks import accepts_arguments, as_int
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

#: ``{trial_id: results so far}``, flat, oldest first; sorted by trial id.
History = dict[str, list[dict[str, Any]]]


class FunctionScheduler(TrialScheduler):
    """Train in rounds: a function of the results returns how many more iterations each trial gets.

    Every trial first trains for one iteration. When all trials have finished their iterations and
    the search has no more trials, the function gets the results of the unfinished trials. It
    returns how many more iterations each of them trains, until no number is above 0.

    Parameters
    ----------
    function : callable
        ``function(history)`` gets a dict from trial ids to lists of results and returns a mapping
        from ids to numbers of further iterations. A trial without an entry is stopped. A trial
        with 0 stays paused and may continue in a later round. If no number is above 0, all trials
        are stopped. The function must depend on the history only, because it is called again when
        an experiment is restored.

    Raises
    ------
    ConfigError
        If `function` cannot be called with the history; later, if its return value is invalid.

    Notes
    -----
    The function has the contract of ``additional_calls`` in dask-ml's incremental searches [1]_,
    with trial ids in place of model numbers. The history leaves out trials that failed or that a
    stop criterion ended.

    Trials are paused while they wait for each other, so a trainable should save checkpoints;
    checkpoints in memory are enough. If the search waits for trials to end before it suggests more,
    a round begins with the trials suggested so far. An exception in the function ends the run, and
    the experiment can be restored.

    References
    ----------
    .. [1] https://ml.dask.org/modules/generated/dask_ml.model_selection.IncrementalSearchCV.html

    Examples
    --------
    >>> def better_half(history):
    ...     if len(history) == 1:
    ...         return {}
    ...     best = sorted(history, key=lambda name: history[name][-1]["loss"])
    ...     return {name: 2 for name in best[: len(best) // 2]}
    >>> FunctionScheduler(better_half).debug_string()
    'FunctionScheduler(better_half): 0 rounds'
    """

    def __init__(self, function: Callable[[History], Mapping[str, int]]) -> None:
        check(accepts_arguments(function, {}), "function", "callable with the history", function)
        self.function = function
        #: ``{trial_id: iteration up to which it trains}``; 1 for a trial without an entry.
        self._targets: dict[str, int] = {}
        self._rounds = 0

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Pause the trial when it has finished its iterations of this round."""
        target = self._target(trial)
        if result["training_iteration"] < target:
            return Continue()
        return Pause(f"waits for the other trials: it reached iteration {target} of this round")

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Remove the trial's state."""
        self._targets.pop(trial.trial_id, None)
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial's state."""
        self._targets.pop(trial.trial_id, None)
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial's state."""
        self._targets.pop(trial.trial_id, None)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial: a new one, or one with iterations left."""
        return next(iter(waiting.pending.values()), None)

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Begin the next round: call the function with the results of all paused trials.

        Raises
        ------
        ConfigError
            If the function does not return numbers of iterations for trials in the history.
        """
        trials = dict(sorted(waiting.paused.items()))
        wishes = self._call_function({name: list(trial.history) for name, trial in trials.items()})
        self._rounds += 1
        name_of = _name(self.function)
        if not any(wishes.values()):
            reason = f"{name_of} requests no more iterations"
            return tuple(StopOther(trial_id=name, reason=reason) for name in trials)
        commands: list[Command] = []
        for name, trial in trials.items():
            if name not in wishes:
                reason = f"{name_of} returned no entry for it after iteration {trial.last_iteration}"
                commands.append(StopOther(trial_id=name, reason=reason))
            elif wishes[name]:
                self._targets[name] = trial.last_iteration + wishes[name]
                commands.append(Unpause(trial_id=name))
        return tuple(commands)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the iteration up to which the trial trains in this round."""
        return (Milestone("training_iteration", self._target(trial)),)

    def debug_string(self) -> str:
        """Return the number of rounds so far."""
        return f"FunctionScheduler({_name(self.function)}): {self._rounds} rounds"

    def state_dict(self) -> dict[str, Any]:
        """Return the iteration up to which each trial trains, and the number of rounds."""
        return {"targets": dict(self._targets), "rounds": self._rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._targets = dict(state["targets"])
        self._rounds = state["rounds"]

    def _target(self, trial: Trial) -> int:
        return self._targets.get(trial.trial_id, 1)

    def _call_function(self, history: History) -> dict[str, int]:
        known = set(history)
        answer: object = self.function(history)
        wishes: dict[str, Any] = dict(answer) if isinstance(answer, Mapping) else {"": None}
        rule = "a mapping from ids in the history to whole numbers, at least 0"
        check(known.issuperset(wishes), f"the return value of {_name(self.function)}", rule, answer)
        return {
            name: as_int(f"the further iterations of {name}", wish, least=0) for name, wish in wishes.items()
        }


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
