"""The contract of a trial scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import check
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.decision import Command, Decision, StopOther
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.trial import Trial

__all__ = ["TrialScheduler", "Waiting"]


_NO_QUESTIONS: Final[Mapping[int, Callable[[], Any]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Waiting:
    """The trials that are on no worker and could be, each kind in the order in which it came.

    Examples
    --------
    >>> Waiting(pending={}, paused={}).pending
    {}
    """

    pending: Mapping[str, Trial]
    paused: Mapping[str, Trial]


class _Moved:
    """A name of Ray Tune's that says what to write here, and is not there otherwise."""

    def __init__(self, here: str) -> None:
        self._here = here
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> str:
        raise AttributeError(
            f"{owner.__name__}.{self._name} is Ray Tune's: a scheduler here returns {self._here}, "
            "from dasktune.schedulers"
        )


class _DecisionsOfRayTune:
    CONTINUE = _Moved("Continue()")
    PAUSE = _Moved('Pause("why")')
    STOP = _Moved('Stop("why")')
    NOOP = _Moved('what is to become of the trial, such as Continue() or Pause("why")')


class TrialScheduler(_DecisionsOfRayTune, ABC):
    """Decides which trial runs next, and which goes on, pauses or stops.

    A scheduler proposes by returning values; it never holds the experiment, the runner or the
    executor, and it knows neither clock nor global RNG. It is told everything once: each trial is
    added once, however often its worker dies, and ends with exactly one of
    :meth:`on_trial_complete`, :meth:`on_trial_error` or :meth:`on_trial_remove`. Only its starts
    are as many as there are.

    :class:`dasktune.testing.SchedulerContract` tests whether a scheduler keeps to all this.

    Attributes
    ----------
    metric : str or None
        The metric to judge by; set by the experiment if the constructor left it None.
    mode : {"min", "max"} or None
        Which way `metric` is better; likewise.

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

    def set_search_properties(self, metric: str | None, mode: Mode | None) -> None:
        """Take metric and mode from the experiment where the constructor left them open.

        Raises
        ------
        ConfigError
            If both name one, and they differ.
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
        """Take the source of all randomness of this scheduler; called once, before any trial."""

    def observe(self, view: ClusterView) -> None:
        """Take the view of the cluster and of all trials, which stays up to date; called once.

        What a scheduler learns from it is to be in its state all the same, where it may have
        changed since.
        """

    @property
    def follows_cluster(self) -> bool:
        """Whether it wants to know what the cluster has, and to hear of every change.

        Only then the view shows it, and the journal tells of it.
        """
        return False

    def on_cluster_change(self) -> tuple[Command, ...]:
        """Hear that the cluster has more or less to give than it had."""
        return ()

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Hear of a new trial, and say what is to happen at once; None is nothing.

        With an :class:`ExploitOther` that names the trial itself as its donor, it gets another
        configuration.
        """
        return None

    def on_trial_start(self, trial: Trial) -> None:
        """Hear that a trial gets a place: for the first time, after a pause, or after a loss."""

    @abstractmethod
    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Judge a result.

        Parameters
        ----------
        trial : Trial
            Who reported it.
        result : mapping
            Flat metrics (nested names joined by ``/``) with the auto-filled fields.
        """

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Hear that a trial was given up for a clone, as this scheduler wanted.

        Its configuration and its history are the clone's already, and its `origin` is the
        checkpoint that it will go on from. It is its own `donor` where only its configuration has
        changed.
        """

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Hear that a trial has ended well; `result` is its last, empty if it never reported."""
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Hear that a trial was given up for good. Retries are not told."""
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Hear that a trial has ended while it was on no worker (pending or paused)."""
        return ()

    def on_search_end(self) -> tuple[Command, ...]:
        """Hear that the search has no more trials. Those that were added may still be running."""
        return ()

    @abstractmethod
    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Return the trial that should get the next free place, or None to leave it free.

        Must be without side effects: it may be asked any number of times before there is room.
        """

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Say what becomes of those that wait: nobody runs, is chosen to run, or will yet be added.

        By default all of them end. Whoever answers with nothing has them ended, too, unless that
        has opened a question; so whatever else this changes in the scheduler must come with a
        command. As long as a question is open this is not asked.

        Parameters
        ----------
        waiting : Waiting
            At least one trial, none of which :meth:`choose_trial_to_run` chooses.
        """
        reason = f"{type(self).__name__} never chose it to run again"
        return tuple(
            StopOther(trial_id=key, reason=reason) for key in (*waiting.pending, *waiting.paused)
        )

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        """What takes too long to be thought about here, by numbers that are given once.

        Each is called in another thread while results are judged, perhaps again after the
        experiment was restored, and never in replay. So it depends on nothing but what it holds,
        which nobody changes any more, and returns plain values that JSON gives back as they were.
        It is open until it is answered; asking for it changes nothing.
        """
        return _NO_QUESTIONS

    def on_answer(self, number: int, answer: Any) -> tuple[Command, ...]:
        """Hear what comes of a question, which is not open any more then.

        Parameters
        ----------
        number : int
            Which one. It may be one that has been answered, or does not matter any more.
        answer : object
            What it has returned, or None if it raised.
        """
        return ()

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return where the trial must next wait for a decision; ``()`` is never.

        A scheduler may state milestones only if the results between them commute across trials.
        """
        return EVERY_RESULT

    @property
    def looks_between(self) -> bool:
        """Whether results between the milestones of a trial may change what is decided at them.

        Where they do not a trial may leave out of them what takes long: their scores.
        """
        return True

    @property
    def starts_in_order(self) -> bool:
        """Whether trials always start in the order in which they came, whatever is reported.

        Only then short trials are handed to the workers ahead of time.
        """
        return False

    @property
    def waits_for_others(self) -> bool:
        """Whether a trial that it pauses waits for others, so that these must be let come.

        Then paused trials do not count in the limit that a search has for unfinished ones.
        """
        return False

    @property
    def writes_policies(self) -> bool:
        """Whether files shall tell which trials were cloned from which, where any are."""
        return True

    def search_info(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the search is told along with a result, by names that no metric has.

        Parameters
        ----------
        trial : Trial
            Who reported it; it has been judged, and may have ended.
        result : mapping
            Its last result.
        """
        return {}

    def debug_string(self) -> str:
        """Return one line on what it is doing."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """Return all that it has learnt, as plain values that JSON can hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
