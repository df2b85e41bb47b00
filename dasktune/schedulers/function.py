"""A scheduler that is a function of the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import check
from dasktune.schedulers.decision import Command, Continue, Decision, Pause, StopOther, Unpause
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.space.checks import as_int, takes
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["FunctionScheduler", "History"]

#: Trial id -> its results so far, flat, the oldest first; trials in the order of their ids.
History = dict[str, list[dict[str, Any]]]


class FunctionScheduler(TrialScheduler):
    """Let a function of the history say how much further each trial trains, round by round.

    Every trial trains for one iteration. When all have done what they were asked for, and no more
    are to come, the function sees the results of those that have not ended, and says how many more
    iterations each of them gets. So it goes on, until it asks for nothing more.

    Parameters
    ----------
    function : callable
        ``function(history)`` takes a dict from each trial's id to the list of its results, and
        returns a mapping from ids to numbers of further iterations. A trial that it leaves out is
        stopped; one that gets 0 waits, and may be asked for more in a later round. If no number is
        above 0, all are stopped. It must decide by nothing but the history: it is asked again when
        an experiment is restored.

    Raises
    ------
    ConfigError
        If `function` cannot be called so; later, if what it returns is not what it should.

    Notes
    -----
    It is the contract of ``additional_calls`` in dask-ml's incremental searches [1]_, where models
    are numbered instead. A trial that ends by a stop criterion, or fails, is shown no more.

    Trials wait for each other in paused state, so a trainable should save checkpoints; those in
    memory will do. Where a search waits for trials to end before it suggests more, a round begins
    with those that are there. An exception of the function ends the run; the experiment can be
    restored.

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
        check(takes(function, {}), "function", "callable with the history", function)
        self.function = function
        #: Up to which iteration each trial was asked to train; 1 where nothing is said.
        self._targets: dict[str, int] = {}
        self._rounds = 0

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Pause the trial when it has done what it was asked for."""
        target = self._target(trial)
        if result["training_iteration"] < target:
            return Continue()
        return Pause(f"waits for the others: it has come to iteration {target} in this round")

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Forget the trial."""
        self._targets.pop(trial.trial_id, None)
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Forget the trial."""
        self._targets.pop(trial.trial_id, None)
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Forget the trial."""
        self._targets.pop(trial.trial_id, None)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial: new, or asked to go on."""
        return next(iter(waiting.pending.values()), None)

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Begin the next round: ask the function what becomes of each trial.

        Raises
        ------
        ConfigError
            If it does not return numbers of iterations for trials that it was shown.
        """
        trials = dict(sorted(waiting.paused.items()))
        wishes = self._ask({name: list(trial.history) for name, trial in trials.items()})
        self._rounds += 1
        name_of = _name(self.function)
        if not any(wishes.values()):
            reason = f"{name_of} asks for nothing more"
            return tuple(StopOther(trial_id=name, reason=reason) for name in trials)
        commands: list[Command] = []
        for name, trial in trials.items():
            if name not in wishes:
                reason = f"{name_of} leaves it out after iteration {trial.last_iteration}"
                commands.append(StopOther(trial_id=name, reason=reason))
            elif wishes[name]:
                self._targets[name] = trial.last_iteration + wishes[name]
                commands.append(Unpause(trial_id=name))
        return tuple(commands)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the iteration up to which the trial was asked to train."""
        return (Milestone("training_iteration", self._target(trial)),)

    def debug_string(self) -> str:
        """Return how many rounds there were."""
        return f"FunctionScheduler({_name(self.function)}): {self._rounds} rounds"

    def state_dict(self) -> dict[str, Any]:
        """Return up to where each trial was asked to train."""
        return {"targets": dict(self._targets), "rounds": self._rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._targets = dict(state["targets"])
        self._rounds = state["rounds"]

    def _target(self, trial: Trial) -> int:
        return self._targets.get(trial.trial_id, 1)

    def _ask(self, history: History) -> dict[str, int]:
        known = set(history)
        answer: object = self.function(history)
        wishes: dict[str, Any] = dict(answer) if isinstance(answer, Mapping) else {"": None}
        rule = "a mapping from ids that it was shown to whole numbers, at least 0"
        check(known.issuperset(wishes), f"what {_name(self.function)} returns", rule, answer)
        return {
            name: as_int(f"the further iterations of {name}", wish, least=0)
            for name, wish in wishes.items()
        }


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
