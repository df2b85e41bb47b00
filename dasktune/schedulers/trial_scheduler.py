"""The interface of trial schedulers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import check
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.decision import Command, Decision, StopOther
from dasktune.text.formatting import call_text
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.trial import Trial

_NO_QUESTIONS: Final[Mapping[int, Callable[[], Any]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pending trials and the paused trials, each in the order in which they entered the status.

    Examples
    --------
    >>> Waiting(pending={}, paused={}).pending
    {}
    """

    pending: Mapping[str, Trial]
    paused: Mapping[str, Trial]


class _RayDecisionName:
    """A decision constant of Ray Tune; reading it raises an error that names the replacement."""

    def __init__(self, here: str) -> None:
        self._here = here
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> str:
        raise AttributeError(
            f"{owner.__name__}.{self._name} is a constant of Ray Tune: return {self._here}, "
            "from dasktune.schedulers"
        )


class _DecisionsOfRayTune:
    CONTINUE = _RayDecisionName("Continue()")
    PAUSE = _RayDecisionName('Pause("why")')
    STOP = _RayDecisionName('Stop("why")')
    NOOP = _RayDecisionName('a decision such as Continue() or Pause("why")')


class TrialScheduler(_DecisionsOfRayTune, ABC):
    """Decides which trial runs next, and which trials continue, pause or stop.

    A scheduler returns decisions as values. It has no reference to the experiment, the runner or
    the executor, and uses neither a clock nor a global random generator. Each trial is added once,
    even if its worker dies, and ends with exactly one call of :meth:`on_trial_complete`,
    :meth:`on_trial_error` or :meth:`on_trial_remove`. :meth:`on_trial_start` is called at each
    start.

    :class:`dasktune.testing.SchedulerContract` tests a scheduler against this interface.

    Attributes
    ----------
    metric : str or None
        The metric to compare trials by; set by the experiment if the constructor left it None.
    mode : {"min", "max"} or None
        Whether to minimise or maximise `metric`; set in the same way.

    Examples
    --------
    >>> from dasktune.schedulers import Continue, Stop, TrialScheduler
    >>> class StopAfterTen(TrialScheduler):
    ...     def on_trial_result(self, trial, result):
    ...         done = result["training_iteration"] >= 10
    ...         return Stop("ten iterations") if done else Continue()
    """

    metric: str | None = None
    mode: Mode | None = None

    #: The call that made it, as text; None if its class has no constructor of its own.
    _made_by: str | None = None
    #: The name under which a class is best known, if it is not the name of the class.
    _known_as: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        init = cls.__dict__.get("__init__")
        if init is None:
            return

        # Constructors convert their arguments, so what a user wrote can only be kept here.
        @wraps(init)
        def init_and_keep_call(self: TrialScheduler, *args: Any, **kwargs: Any) -> None:
            if "_made_by" not in self.__dict__:  # else the constructor of a subclass calls this one
                self._made_by = call_text(self._class_name(), args, kwargs)
            init(self, *args, **kwargs)

        cls.__init__ = init_and_keep_call  # type: ignore[assignment, method-assign]

    def __repr__(self) -> str:
        if self._made_by is not None:
            return self._made_by
        # The constructor may be that of another base class, which nothing wraps.
        name = self._class_name()
        return f"{name}()" if type(self).__init__ is object.__init__ else f"<{name}>"

    @classmethod
    def _class_name(cls) -> str:
        return cls.__dict__.get("_known_as") or cls.__name__

    def set_search_properties(self, metric: str | None, mode: Mode | None) -> None:
        """Set metric and mode from the experiment where the constructor left them None.

        Raises
        ------
        ConfigError
            If the scheduler and `TuneConfig` set different values.
        """
        for name, given in (("metric", metric), ("mode", mode)):
            own = getattr(self, name)
            check(
                own is None or given is None or own == given,
                f"{type(self).__name__}({name}=...)",
                f"equal to TuneConfig({name}={given!r})",
                own,
                f"Set {name} in one place.",
            )
            if own is None:
                setattr(self, name, given)

    def seed(self, seed: SeedSequence) -> None:
        """Seed the scheduler's random generator; called once, before any trial is added."""

    def observe(self, view: ClusterView) -> None:
        """Receive the view of the cluster and of all trials; called once.

        The view is always current. Values that a scheduler remembers from it must be part of
        :meth:`state_dict`, because the view may differ after a restore.
        """

    @property
    def follows_cluster(self) -> bool:
        """Whether the scheduler needs the cluster's resources and every change of them.

        Only then does the view contain them, and does the journal record their changes.
        """
        return False

    def on_cluster_change(self) -> tuple[Command, ...]:
        """Handle a change of the cluster's resources; return commands."""
        return ()

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Handle a new trial; return commands, or None for none.

        An :class:`ExploitOther` with the trial as its own donor gives it another configuration.
        """
        return None

    def on_trial_start(self, trial: Trial) -> None:
        """Handle a start of a trial: its first, or one after a pause or the loss of its worker."""

    @abstractmethod
    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Return the decision on a trial after a result.

        Parameters
        ----------
        trial : Trial
            The trial that reported the result.
        result : mapping
            Flat metrics (nested names joined by ``/``) with the auto-filled fields.
        """

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Handle that a trial has become a clone of `donor` by an exploit of this scheduler.

        The trial already has the configuration and history of the clone. Its `origin` is the
        checkpoint from which it will resume. If only its configuration changed, it is its own
        `donor`.
        """

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Handle the completion of a trial; `result` is its last, empty if it never reported."""
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Handle the failure of a trial, after all retries."""
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Handle the end of a trial that was pending or paused."""
        return ()

    def on_search_end(self) -> tuple[Command, ...]:
        """Handle the end of the search: no trials will be added; some may still be running."""
        return ()

    @abstractmethod
    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Return the trial that starts on the next free place, or None to leave it free.

        The method must have no side effects, because it may be called several times for one place.
        """

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Handle a standstill: trials wait, but none runs, none is chosen, and none will be added.

        By default all waiting trials are stopped. They are also stopped if an override returns no
        command and opens no question. So a call that changes the scheduler's state must do one of
        these. The method is not called while a question is open.

        Parameters
        ----------
        waiting : Waiting
            At least one trial; :meth:`choose_trial_to_run` returns None for them.
        """
        reason = f"{type(self).__name__} never chose it to run again"
        return tuple(StopOther(trial_id=key, reason=reason) for key in (*waiting.pending, *waiting.paused))

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        """Computations that take too long for the driver's loop, by unique number.

        The runner calls one in a background thread while the loop continues to call the
        scheduler's other methods. So a question must use only values that it holds itself and that
        are not changed any more; then the order of these calls does not matter. It returns plain
        values that survive a round trip through JSON. After a restore an open question is called
        again; in a replay its recorded answer is used instead. Reading this property must not
        change the scheduler, and a question stays open until :meth:`on_answer`.
        """
        return _NO_QUESTIONS

    def on_answer(self, number: int, answer: Any) -> tuple[Command, ...]:
        """Handle the answer to a question in the driver's loop, and close the question.

        Parameters
        ----------
        number : int
            Number of the question. It may be closed or obsolete already.
        answer : object
            The return value of the question, or None if it raised.
        """
        return ()

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the milestones at which the trial must wait for a decision; ``()`` means none.

        The trial streams results between milestones. So a scheduler may return fewer milestones
        than :data:`EVERY_RESULT` only if its state does not depend on the order in which results
        between milestones of different trials arrive.
        """
        return EVERY_RESULT

    @property
    def looks_between(self) -> bool:
        """Whether results between milestones can change later decisions.

        If False, a trial need not compute expensive scores for these results.
        """
        return True

    @property
    def starts_in_order(self) -> bool:
        """Whether trials always start in the order in which they were added.

        Only then can short trials be queued on workers ahead of time.
        """
        return False

    @property
    def waits_for_others(self) -> bool:
        """Whether trials that it pauses wait for trials that have not been suggested yet.

        If True, paused trials do not count towards the search's limit on unfinished trials.
        """
        return False

    @property
    def writes_policies(self) -> bool:
        """Whether ``pbt_global.txt`` and ``pbt_policy_<trial>.txt`` record its exploits."""
        return True

    @property
    def clones_trials(self) -> bool:
        """Whether it clones trials, as population based training does; False by default.

        Snapshots of the experiment then have the results that clones need from the beginning, and
        otherwise from the first clone on.
        """
        return False

    def search_info(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return entries to add to a result for the searcher; no metric may have their names.

        Parameters
        ----------
        trial : Trial
            The trial that reported the result. The decision is already made, so the trial may have
            ended.
        result : mapping
            The trial's last result.
        """
        return {}

    def debug_string(self) -> str:
        """Return a summary of the scheduler's state for people: one line, or several.

        The first line names the scheduler and its counts; a scheduler with rungs or brackets adds
        a line for each bracket. No line is empty, and the last one does not end with a line feed.
        """
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON-serializable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
