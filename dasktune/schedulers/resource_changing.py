"""A scheduler around another one, which gives trials other resources while they train."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import check
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.decision import (
    Command,
    Continue,
    Decision,
    Resize,
    ResizeWaiting,
)
from dasktune.schedulers.distribute import DistributeResources
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.space.checks import takes
from dasktune.trial.checkpoint import CheckpointKind
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.resources import PlacementGroupFactory, Resources, as_placement_group
from dasktune.trial.trial import Trial

__all__ = ["AllocationFunction", "ResourceChangingScheduler"]

logger = logging.getLogger(__name__)

#: ``function(view, trial, result, scheduler)`` returns what the trial should hold from now on.
AllocationFunction = Callable[
    [ClusterView, Trial, Mapping[str, Any], "ResourceChangingScheduler"],
    PlacementGroupFactory | Resources | Mapping[str, Any] | None,
]

#: It keeps nothing in mind, so that experiments may share it.
_EVENLY: Final = DistributeResources()


class ResourceChangingScheduler(TrialScheduler):
    """Let a function say after each result what the trial should hold from then on.

    If that is something else than it holds, the trial saves a checkpoint, leaves its worker, and
    goes on with its new resources before any other that waits. All else is for the scheduler
    inside to say: which trials go on, pause or end, and which is next.

    Parameters
    ----------
    base_scheduler : TrialScheduler, optional
        Decides about trials; a new :class:`FIFOScheduler` if left out.
    resources_allocation_function : callable or None, optional
        ``function(view, trial, result, scheduler)`` gets a :class:`ClusterView` of the cluster and
        its trials, which it can only read, the trial whose result it is, the result, and this
        scheduler. It returns a `PlacementGroupFactory`, a dict or `Resources`, or None to change
        nothing. It must decide by nothing else: it is asked again when an experiment is restored.
        A :class:`DistributeResources` by default; with None nothing ever changes.

    Raises
    ------
    ConfigError
        If an argument breaks its rule; later, if what the function returns is no request.

    Notes
    -----
    A trial that has saved no checkpoint begins anew each time it is resized. With the class API it
    is saved by itself, as for a pause; a function has to report checkpoints.

    What no worker has room for is not granted, and the trial goes on as it is. One that waits goes
    back to what it first asked for (`Trial.base_resources`) if it would not find a place otherwise,
    because the cluster has shrunk or others have come.

    Every result waits for its answer. Trials may ask for different things at first, and slots are
    reused (``TuneConfig(reuse_actors=True)``) where they have what is needed.

    Examples
    --------
    >>> from dasktune.schedulers import ASHAScheduler
    >>> scheduler = ResourceChangingScheduler(
    ...     ASHAScheduler(max_t=16), DistributeResources(increase_by={"CPU": 2})
    ... )
    >>> def two_for_the_patient(view, trial, result, scheduler):
    ...     return {"CPU": 2} if result["training_iteration"] >= 10 else None
    >>> ResourceChangingScheduler(resources_allocation_function=two_for_the_patient).debug_string()
    'ResourceChangingScheduler(two_for_the_patient): FIFOScheduler'
    """

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: AllocationFunction | None = _EVENLY,
    ) -> None:
        function = resources_allocation_function
        base = FIFOScheduler() if base_scheduler is None else base_scheduler
        check(isinstance(base, TrialScheduler), "base_scheduler", "a TrialScheduler", base)
        usable = function is None or takes(function, None, None, {}, self)
        rule = "None, or callable with (view, trial, result, scheduler)"
        check(usable, "resources_allocation_function", rule, function)
        self.base_scheduler = base
        self.resources_allocation_function = function
        self._view = ClusterView(trials={}, pending={}, paused={}, active={}, workers={})
        #: Trials that are to come back with other resources; a dict for a set that keeps the order.
        self._leaving: dict[str, None] = {}

    def set_search_properties(self, metric: str | None, mode: Mode | None) -> None:
        """Hand metric and mode to the scheduler inside, and take what it judges by.

        Raises
        ------
        ConfigError
            If one is given differently in two places, or nowhere and needed.
        """
        self.base_scheduler.set_search_properties(metric, mode)
        self.metric = self.base_scheduler.metric or metric
        self.mode = self.base_scheduler.mode or mode
        if isinstance(self.resources_allocation_function, DistributeResources):
            self.resources_allocation_function.check_goal(self.metric, self.mode)

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """What the first of the trials that live asked for at first; None without any."""
        return next((trial.base_resources for trial in self._view.get_live_trials()), None)

    def seed(self, seed: SeedSequence) -> None:
        """Seed the scheduler inside."""
        self.base_scheduler.seed(seed)

    def observe(self, view: ClusterView) -> None:
        """Take the view of the cluster and of all trials."""
        self._view = view
        self.base_scheduler.observe(view)

    @property
    def follows_cluster(self) -> bool:
        """Always."""
        return True

    def on_cluster_change(self) -> tuple[Command, ...]:
        """Let trials that wait ask for less where they would not find a place otherwise."""
        return (*self.base_scheduler.on_cluster_change(), *self._cut_back())

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Tell the scheduler inside."""
        return self.base_scheduler.on_trial_add(trial)

    def on_trial_start(self, trial: Trial) -> None:
        """Tell the scheduler inside."""
        self._leaving.pop(trial.trial_id, None)
        self.base_scheduler.on_trial_start(trial)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Decide as the scheduler inside does, and resize the trial if it goes on."""
        decision = self.base_scheduler.on_trial_result(trial, result)
        if isinstance(decision, Continue) and not result.get("done"):
            decision = self._resized(trial, result, decision)
        smaller = self._cut_back()
        return replace(decision, commands=(*decision.commands, *smaller)) if smaller else decision

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Tell the scheduler inside."""
        self.base_scheduler.on_trial_exploit(trial, donor)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Tell the scheduler inside."""
        self._leaving.pop(trial.trial_id, None)
        return self.base_scheduler.on_trial_complete(trial, result)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Tell the scheduler inside."""
        self._leaving.pop(trial.trial_id, None)
        return self.base_scheduler.on_trial_error(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Tell the scheduler inside."""
        self._leaving.pop(trial.trial_id, None)
        return self.base_scheduler.on_trial_remove(trial)

    def on_search_end(self) -> tuple[Command, ...]:
        """Tell the scheduler inside."""
        return self.base_scheduler.on_search_end()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose one that has left for other resources, lest its place be taken; else as inside."""
        left = (waiting.pending[key] for key in self._leaving if key in waiting.pending)
        trial = next(left, None) or self.base_scheduler.choose_trial_to_run(waiting)
        # It must not wait for a place that nobody will leave; see `on_standstill`.
        stuck = trial is not None and self._view.is_idle and self._asks_too_much(trial)
        return None if stuck else trial

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Let trials ask for less; if that is not it, ask the scheduler inside."""
        return self._cut_back() or self.base_scheduler.on_standstill(waiting)

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        """Those of the scheduler inside."""
        return self.base_scheduler.questions

    def on_answer(self, number: int, answer: Any) -> tuple[Command, ...]:
        """Tell the scheduler inside."""
        return self.base_scheduler.on_answer(number, answer)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return every result, as each may change what the trial should hold."""
        if self.resources_allocation_function is None:
            return self.base_scheduler.next_milestones(trial)
        return EVERY_RESULT

    @property
    def looks_between(self) -> bool:
        """As the scheduler inside."""
        return self.base_scheduler.looks_between

    @property
    def waits_for_others(self) -> bool:
        """As the scheduler inside."""
        return self.base_scheduler.waits_for_others

    @property
    def writes_policies(self) -> bool:
        """As the scheduler inside."""
        return self.base_scheduler.writes_policies

    def search_info(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the scheduler inside has to say."""
        return self.base_scheduler.search_info(trial, result)

    def debug_string(self) -> str:
        """Return what the scheduler inside is doing."""
        function = self.resources_allocation_function
        name = getattr(function, "__name__", type(function).__name__)
        return f"ResourceChangingScheduler({name}): {self.base_scheduler.debug_string()}"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler inside, and who has left for other resources."""
        return {"base": self.base_scheduler.state_dict(), "leaving": list(self._leaving)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.base_scheduler.load_state_dict(state["base"])
        self._leaving = dict.fromkeys(state["leaving"])

    def _resized(self, trial: Trial, result: Mapping[str, Any], decision: Continue) -> Decision:
        if self.resources_allocation_function is None:
            return decision
        wish = self.resources_allocation_function(self._view, trial, result, self)
        request = trial.resources if wish is None else as_placement_group(wish)
        if request == trial.resources:
            return decision
        if not self._is_possible(trial, request):
            logger.debug("no worker has room for %s of trial %s", request, trial.trial_id)
            return decision
        self._leaving[trial.trial_id] = None
        reason = f"goes on with {_told(request)} instead of {_told(trial.resources)}"
        kind = decision.kind if decision.save else CheckpointKind.MEMORY
        return Resize(request, reason, commands=decision.commands, kind=kind, hold=decision.hold)

    def _cut_back(self) -> tuple[Command, ...]:
        """Let trials that wait ask for less where they would not find a place otherwise."""
        return tuple(
            ResizeWaiting(trial_id=trial.trial_id, resources=trial.base_resources)
            for trial in self._view.waiting()
            if self._asks_too_much(trial)
        )

    def _asks_too_much(self, trial: Trial) -> bool:
        grown = self._view.is_known and _is_more(trial.resources, trial.base_resources)
        return grown and not self._view.fits(trial, trial.resources)

    def _is_possible(self, trial: Trial, request: PlacementGroupFactory) -> bool:
        """Whether a trial would find a place for a request; it may have less in any case."""
        grows = self._view.is_known and _is_more(request, trial.resources)
        return not grows or self._view.fits(trial, request)


def _is_more(request: PlacementGroupFactory, other: PlacementGroupFactory) -> bool:
    """Whether a request asks for more of anything than another."""
    less = other.required_resources
    return any(amount > less.get(kind, 0) for kind, amount in request.required_resources.items())


def _told(request: PlacementGroupFactory) -> str:
    amounts = request.required_resources
    return ", ".join(f"{amount:g} {kind}" for kind, amount in amounts.items()) or "nothing"
