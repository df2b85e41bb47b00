"""ResourceChangingScheduler: changes the resources of trials while they train."""

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
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.resources.distribute import DistributeResources
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.space.checks import accepts_arguments
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.resources import (
    HostPlacement,
    PlacementGroupFactory,
    Resources,
    as_placement_group,
    with_bundles,
)
from dasktune.trial.trial import Trial

logger = logging.getLogger(__name__)

#: ``function(view, trial, result, scheduler)`` returns the resources that the trial should have.
AllocationFunction = Callable[
    [ClusterView, Trial, Mapping[str, Any], "ResourceChangingScheduler"],
    PlacementGroupFactory | Resources | Mapping[str, Any] | None,
]

#: The default allocation function; it has no state, so experiments can share it.
_DEFAULT_FUNCTION: Final = DistributeResources()


class ResourceChangingScheduler(TrialScheduler):
    """Change the resources of a trial by a function that is called at each result.

    If the function returns other resources than the trial has, the trial saves a checkpoint, leaves
    its worker and resumes with the new resources before any waiting trial starts. All other
    decisions are made by `base_scheduler`.

    Parameters
    ----------
    base_scheduler : TrialScheduler, optional
        The scheduler that makes all other decisions; by default a new :class:`FIFOScheduler`.
    resources_allocation_function : callable or None, optional
        ``function(view, trial, result, scheduler)`` gets a read-only :class:`ClusterView`, the
        trial, its result and this scheduler. It returns a `PlacementGroupFactory`, a dict or
        `Resources`, or None to change nothing. It must depend on its arguments only, because it is
        called again when an experiment is restored. Default: a :class:`DistributeResources`. With
        None, resources never change.

    Raises
    ------
    ConfigError
        If an argument is invalid; later, if the function returns an invalid request.

    Notes
    -----
    A trial without checkpoints starts from the beginning each time it is resized. Class trainables
    are saved automatically, as for a pause; a function trainable must report checkpoints.

    The request of a trial of :func:`~dasktune.with_ranks` keeps its layout by host: the `per_host`
    of the trial, and its strategy if the function returns a dict or `Resources`. A dict or
    `Resources` are then those of each rank. A `PlacementGroupFactory` has a bundle for each rank,
    all equal, so it may change the number of ranks.

    A request that does not fit on the workers is ignored, and the trial continues with what it has.
    A waiting trial returns to its initial request (`Trial.base_resources`) if its larger request
    cannot be placed, because the cluster has shrunk or other trials were added.

    Trials wait for a decision at every result. Initial requests may differ between trials. Actors
    are reused (``TuneConfig(reuse_actors=True)``) if they have the requested resources.

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
        resources_allocation_function: AllocationFunction | None = _DEFAULT_FUNCTION,
    ) -> None:
        function = resources_allocation_function
        base = FIFOScheduler() if base_scheduler is None else base_scheduler
        check(isinstance(base, TrialScheduler), "base_scheduler", "a TrialScheduler", base)
        usable = function is None or accepts_arguments(function, None, None, {}, self)
        rule = "None, or callable with (view, trial, result, scheduler)"
        check(usable, "resources_allocation_function", rule, function)
        self.base_scheduler = base
        self.resources_allocation_function = function
        self._view = ClusterView(trials={}, pending={}, paused={}, active={}, workers={})
        #: Trials that left their worker to be resized; a dict as an ordered set.
        self._leaving: dict[str, None] = {}

    def set_search_properties(self, metric: str | None, mode: Mode | None) -> None:
        """Pass metric and mode to the base scheduler, and adopt its own if it has any.

        Raises
        ------
        ConfigError
            If one is set differently in two places, or needed and set nowhere.
        """
        self.base_scheduler.set_search_properties(metric, mode)
        self.metric = self.base_scheduler.metric or metric
        self.mode = self.base_scheduler.mode or mode
        if isinstance(self.resources_allocation_function, DistributeResources):
            self.resources_allocation_function.check_goal(self.metric, self.mode)

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """The initial request of the first unfinished trial; None if there is none."""
        return next((trial.base_resources for trial in self._view.get_live_trials()), None)

    @property
    def _base_trial_resources(self) -> PlacementGroupFactory | None:
        """As `base_trial_resources`: the name that Ray Tune's example of a function reads."""
        return self.base_trial_resources

    def seed(self, seed: SeedSequence) -> None:
        """Seed the base scheduler."""
        self.base_scheduler.seed(seed)

    def observe(self, view: ClusterView) -> None:
        """Keep the view, and pass it to the base scheduler."""
        self._view = view
        self.base_scheduler.observe(view)

    @property
    def follows_cluster(self) -> bool:
        """True: requests depend on the resources of the cluster."""
        return True

    def on_cluster_change(self) -> tuple[Command, ...]:
        """Reduce the requests of waiting trials that cannot be placed."""
        return (*self.base_scheduler.on_cluster_change(), *self._shrink_waiting())

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Forward the event to the base scheduler."""
        return self.base_scheduler.on_trial_add(trial)

    def on_trial_start(self, trial: Trial) -> None:
        """Forward the event to the base scheduler."""
        self._leaving.pop(trial.trial_id, None)
        self.base_scheduler.on_trial_start(trial)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Return the base scheduler's decision, or a resize if the trial continues."""
        decision = self.base_scheduler.on_trial_result(trial, result)
        if isinstance(decision, Continue) and not result.get("done"):
            decision = self._maybe_resize(trial, result, decision)
        smaller = self._shrink_waiting()
        return replace(decision, commands=(*decision.commands, *smaller)) if smaller else decision

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Forward the event to the base scheduler."""
        self.base_scheduler.on_trial_exploit(trial, donor)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Forward the event to the base scheduler."""
        self._leaving.pop(trial.trial_id, None)
        return self.base_scheduler.on_trial_complete(trial, result)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Forward the event to the base scheduler."""
        self._leaving.pop(trial.trial_id, None)
        return self.base_scheduler.on_trial_error(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Forward the event to the base scheduler."""
        self._leaving.pop(trial.trial_id, None)
        return self.base_scheduler.on_trial_remove(trial)

    def on_search_end(self) -> tuple[Command, ...]:
        """Forward the event to the base scheduler."""
        return self.base_scheduler.on_search_end()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose a trial that is being resized, else the base scheduler's choice.

        A resized trial comes first, because another trial might take its place otherwise.
        """
        left = (waiting.pending[key] for key in self._leaving if key in waiting.pending)
        trial = next(left, None) or self.base_scheduler.choose_trial_to_run(waiting)
        # If no trial runs, none can free a place for it. on_standstill() reduces its request then.
        stuck = trial is not None and self._view.is_idle and self._cannot_be_placed(trial)
        return None if stuck else trial

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Reduce requests that cannot be placed; if there are none, ask the base scheduler."""
        return self._shrink_waiting() or self.base_scheduler.on_standstill(waiting)

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        """The questions of the base scheduler."""
        return self.base_scheduler.questions

    def on_answer(self, number: int, answer: Any) -> tuple[Command, ...]:
        """Forward the event to the base scheduler."""
        return self.base_scheduler.on_answer(number, answer)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return every result as a milestone, because each may change the trial's resources."""
        if self.resources_allocation_function is None:
            return self.base_scheduler.next_milestones(trial)
        return EVERY_RESULT

    @property
    def looks_between(self) -> bool:
        """The value of the base scheduler."""
        return self.base_scheduler.looks_between

    @property
    def waits_for_others(self) -> bool:
        """The value of the base scheduler."""
        return self.base_scheduler.waits_for_others

    @property
    def writes_policies(self) -> bool:
        """The value of the base scheduler."""
        return self.base_scheduler.writes_policies

    @property
    def clones_trials(self) -> bool:
        """The value of the base scheduler."""
        return self.base_scheduler.clones_trials

    def search_info(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries of the base scheduler."""
        return self.base_scheduler.search_info(trial, result)

    def debug_string(self) -> str:
        """Return the name of the function and the summary of the base scheduler."""
        function = self.resources_allocation_function
        name = getattr(function, "__name__", type(function).__name__)
        return f"ResourceChangingScheduler({name}): {self.base_scheduler.debug_string()}"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base scheduler, and the trials that are being resized."""
        return {"base": self.base_scheduler.state_dict(), "leaving": list(self._leaving)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self.base_scheduler.load_state_dict(state["base"])
        self._leaving = dict.fromkeys(state["leaving"])

    def _maybe_resize(self, trial: Trial, result: Mapping[str, Any], decision: Continue) -> Decision:
        if self.resources_allocation_function is None:
            return decision
        requested = self.resources_allocation_function(self._view, trial, result, self)
        request = trial.resources if requested is None else _request_of(trial, requested)
        if request == trial.resources:
            return decision
        if not self._is_possible(trial, request):
            logger.debug("request %s of trial %s does not fit on the workers", request, trial.trial_id)
            return decision
        self._leaving[trial.trial_id] = None
        reason = f"resumes with {_describe(request)} instead of {_describe(trial.resources)}"
        kind = decision.kind if decision.save else CheckpointKind.MEMORY
        return Resize(request, reason, commands=decision.commands, kind=kind, hold=decision.hold)

    def _shrink_waiting(self) -> tuple[Command, ...]:
        """Return commands that reduce the requests of waiting trials that cannot be placed."""
        return tuple(
            ResizeWaiting(trial_id=trial.trial_id, resources=trial.base_resources)
            for trial in self._view.waiting()
            if self._cannot_be_placed(trial)
        )

    def _cannot_be_placed(self, trial: Trial) -> bool:
        grown = self._view.is_known and _is_more(trial.resources, trial.base_resources)
        return grown and not self._view.fits(trial, trial.resources)

    def _is_possible(self, trial: Trial, request: PlacementGroupFactory) -> bool:
        """Whether a request of a trial can be placed; a smaller one always can."""
        grows = self._view.is_known and _is_more(request, trial.resources)
        return not grows or self._view.fits(trial, request)


def _request_of(
    trial: Trial, requested: PlacementGroupFactory | Resources | Mapping[str, Any]
) -> PlacementGroupFactory:
    """Return the request of an allocation function, with the layout of a distributed trial."""
    request = as_placement_group(requested)
    if isinstance(request, HostPlacement) or not isinstance(trial.resources, HostPlacement):
        return request
    if isinstance(requested, PlacementGroupFactory):
        return with_bundles(trial.resources, request.bundles, request.strategy)
    return with_bundles(trial.resources, request.bundles * len(trial.resources.bundles))


def _is_more(request: PlacementGroupFactory, other: PlacementGroupFactory) -> bool:
    """Whether a request has more of any resource than another."""
    less = other.required_resources
    return any(amount > less.get(kind, 0) for kind, amount in request.required_resources.items())


def _describe(request: PlacementGroupFactory) -> str:
    amounts = request.required_resources
    return ", ".join(f"{amount:g} {kind}" for kind, amount in amounts.items()) or "nothing"
