"""A few trials on a cluster, and a scheduler that may resize them."""

from __future__ import annotations

from typing import Any

from dasktune.schedulers import ClusterView, Continue, Resize, ResourceChangingScheduler
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


def cpus(amount: float) -> PlacementGroupFactory:
    return PlacementGroupFactory([{"CPU": amount}])


class Stage:
    """Trials that run, all on the first worker, and what is decided about them."""

    def __init__(
        self,
        function: Any,
        *workers: dict[str, float],
        base: PlacementGroupFactory = ONE_CPU,
        trials: int = 4,
        scheduler: Any = None,
        limit: int = 0,
    ) -> None:
        self.workers = {f"w{number}": one for number, one in enumerate(workers)}
        self.pending: dict[str, Trial] = {}
        self.paused: dict[str, Trial] = {}
        self.active: dict[str, Trial] = {}
        self.scheduler = ResourceChangingScheduler(scheduler, function)
        self.scheduler.set_search_properties("acc", "max")
        self.view = ClusterView(
            trials={},
            pending=self.pending,
            paused=self.paused,
            active=self.active,
            workers=self.workers,
            limit=limit,
        )
        self.scheduler.observe(self.view)
        self.trials = [self.add(base) for _ in range(trials)]

    def add(self, request: PlacementGroupFactory = ONE_CPU, *, worker: str = "w0") -> Trial:
        number = len(self.active) + len(self.pending) + len(self.paused)
        trial = Trial(trial_id=f"t{number}", config={}, resources=request, worker=worker)
        trial.status = TrialStatus.RUNNING
        self.active[trial.trial_id] = trial
        self.scheduler.on_trial_add(trial)
        self.scheduler.on_trial_start(trial)
        return trial

    def report(self, trial: Trial, **metrics: Any) -> Any:
        """Let a trial report, and carry out what is decided unless it has to leave."""
        row = {"training_iteration": len(trial.history) + 1, **metrics}
        trial.history.append(row)
        return self.scheduler.on_trial_result(trial, row)

    def resize(self, trial: Trial, **metrics: Any) -> PlacementGroupFactory | None:
        """Let a trial report and come back with what it is given; return that, None if nothing."""
        decision = self.report(trial, **metrics)
        if isinstance(decision, Continue):
            return None
        assert isinstance(decision, Resize)
        self.leave(trial, decision)
        self.come_back(trial)
        return trial.resources

    def leave(self, trial: Trial, decision: Resize) -> None:
        trial.first_resources, trial.resources = trial.base_resources, decision.resources
        self.wait(trial)

    def wait(self, trial: Trial) -> None:
        trial.status = TrialStatus.PENDING
        self.pending[trial.trial_id] = self.active.pop(trial.trial_id)

    def come_back(self, trial: Trial, worker: str = "w0") -> None:
        trial.status, trial.worker = TrialStatus.RUNNING, worker
        self.active[trial.trial_id] = self.pending.pop(trial.trial_id)
        self.scheduler.on_trial_start(trial)

    def end(self, trial: Trial, status: TrialStatus = TrialStatus.TERMINATED) -> None:
        trial.status = status
        del self.active[trial.trial_id]
        if status is TrialStatus.ERROR:
            self.scheduler.on_trial_error(trial)
        else:
            self.scheduler.on_trial_complete(trial, trial.last_result)
