"""An executor that plays a script, stores that lag or break, and a runner with both."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.config import RunConfig, TuneConfig
from dasktune.runner import RunInline, TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import ManualClock, MemoryStore
from dasktune.trial.actions import (
    CheckpointTrial,
    ContinueTraining,
    GrowTrial,
    PauseTrial,
    RestoreTrial,
    SaveTrial,
    SetShare,
    StartTrial,
    StopTrial,
)
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import (
    ResultReported,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialStarted,
    TrialStopped,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.user_error import ErrorInfo

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])

#: What a worker does step by step: report, report and save, save, fail.
REPORT, SAVE, FAIL = "report", "save", "fail"


class ScriptedExecutor:
    """Every trial does what the script says, a second for each step, and ends."""

    def __init__(
        self,
        clock: ManualClock,
        script: Sequence[str] = (REPORT, REPORT),
        places: int = 1,
        ahead: int = 0,
    ) -> None:
        self.clock = clock
        self.script = script
        self.places = places
        self.ahead = ahead
        self.calls: list[tuple[Any, ...]] = []
        self.events: deque[TrialEvent] = deque()
        self.runs: dict[str, list[int]] = {}
        self.closed = False
        self.timeouts: list[float] = []
        self.waiting = 0
        self.growing: list[str] = []
        self.room_instead = False

    def has_resources(self, request: PlacementGroupFactory) -> bool:
        return len(self.runs) < self.places

    def has_room_instead(self, requests: Mapping[str, PlacementGroupFactory]) -> bool:
        return self.room_instead

    def worker_resources(self) -> dict[str, dict[str, float]]:
        return {}

    def cluster_shares(self) -> None:
        return None

    def note_waiting(self, request: PlacementGroupFactory | None, count: int) -> None:
        self.waiting = count

    def note_growing(self, requests: Mapping[str, PlacementGroupFactory]) -> None:
        self.growing = list(requests)

    def can_prefetch(self, request: PlacementGroupFactory) -> bool:
        return len(self.runs) < self.places + self.ahead

    def start_trial(self, action: StartTrial) -> None:
        self._begin(action, 0, 0)

    def restore(self, action: RestoreTrial) -> None:
        self._begin(action, action.checkpoint.iteration, action.next_checkpoint)

    def continue_training(self, action: ContinueTraining) -> None:
        self.calls.append(("continue", action.trial_id, action.seq))
        self._step(action.trial_id)

    def save(self, action: SaveTrial) -> None:
        self.calls.append(("save", action.trial_id, action.seq))
        self._step(action.trial_id)

    def checkpoint_trial(self, action: CheckpointTrial) -> None:
        self.calls.append(("checkpoint", action.trial_id))

    def grow_trial(self, action: GrowTrial) -> None:
        self.calls.append(("grow", action.trial_id))

    def set_share(self, action: SetShare) -> None:
        self.calls.append(("share", action.weight, action.priority, action.yields_after))

    def pause_trial(self, action: PauseTrial) -> None:
        self.calls.append(("pause", action.trial_id))
        self.tell(action.trial_id, TrialPaused)

    def stop_trial(self, action: StopTrial) -> None:
        self.calls.append(("stop", action.trial_id))
        self.tell(action.trial_id, TrialStopped)

    def withdraw(self) -> None:
        self.events.clear()
        for trial_id in tuple(self.runs):
            self.tell(trial_id, TrialLost, reason="interrupted", charged=False)

    def next_events(self, timeout: float) -> Sequence[TrialEvent]:
        self.timeouts.append(timeout)
        if not self.events:
            self.clock.advance_to(self.clock.now() + timeout)
            return []
        event = self.events.popleft()
        self.clock.advance_to(max(event.time, self.clock.now()))
        if isinstance(event, TrialEnded | TrialPaused | TrialStopped | TrialFailed | TrialLost):
            self.runs.pop(event.trial_id, None)
        return [event]

    def wake(self) -> None:
        self.calls.append(("wake",))

    def acknowledge(self, trial_id: str, incarnation: int, seq: int) -> None:
        self.calls.append(("acknowledge", trial_id, incarnation, seq))

    def close(self) -> None:
        self.calls.append(("close",))
        self.closed = True

    def acknowledged(self) -> list[int]:
        return [call[3] for call in self.calls if call[0] == "acknowledge"]

    def _begin(self, action: StartTrial | RestoreTrial, iteration: int, checkpoint: int) -> None:
        kind = "restore" if isinstance(action, RestoreTrial) else "start"
        self.calls.append((kind, action.trial_id))
        self.runs[action.trial_id] = [action.incarnation, iteration, checkpoint, 0]
        self.tell(action.trial_id, TrialStarted, worker="w")
        self._step(action.trial_id)

    def _step(self, trial_id: str) -> None:
        run = self.runs[trial_id]
        incarnation, iteration, checkpoint, _ = run
        if iteration == len(self.script):
            self.tell(trial_id, TrialEnded)
            return
        run[1] += 1
        what = self.script[iteration]
        if what == FAIL:
            error = ErrorInfo(message="ValueError: bad", traceback="Traceback: bad")
            self.tell(trial_id, TrialFailed, error=error)
            return
        record = None
        if what == SAVE:
            run[2] += 1
            path = f"trials/{trial_id}/checkpoint_{checkpoint:06d}_i{incarnation:02d}"
            record = CheckpointRecord(path=path, index=checkpoint, iteration=iteration + 1, seconds=0.5)
        metrics = {"training_iteration": iteration + 1}
        self.tell(trial_id, ResultReported, metrics=metrics, checkpoint=record)

    def tell(self, trial_id: str, kind: Any, **facts: Any) -> None:
        run = self.runs[trial_id]
        run[3] += 1
        self.events.append(
            kind(
                trial_id=trial_id,
                incarnation=run[0],
                time=self.clock.now() + 1,
                seq=run[3],
                **facts,
            )
        )


class LaggingStore(MemoryStore):
    """Its disk is `lag` records behind, unless it is forced."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self.lag = lag
        self.calls: list[str] = []
        self.params: dict[str, Any] = {}

    def commit(self, force: bool = False) -> int:
        self.calls.append("commit, forced" if force else "commit")
        last = super().commit(force)
        return last if force else last - self.lag

    def write_params(self, trial_dir: str, config: Any, *, pickled: bool = False) -> None:
        self.params[trial_dir] = dict(config)

    def close(self) -> None:
        self.calls.append("close")


class Bench:
    """A runner with everything that it needs."""

    def __init__(
        self,
        *,
        script: Sequence[str] = (REPORT, REPORT),
        places: int = 1,
        ahead: int = 0,
        lag: int = 0,
        observers: Sequence[Any] = (),
        run_config: RunConfig | None = None,
        background: Any = RunInline,
        request: PlacementGroupFactory = ONE_CPU,
        **tune: Any,
    ) -> None:
        self.clock = ManualClock()
        self.store = LaggingStore(lag)
        self.executor = ScriptedExecutor(self.clock, script, places, ahead)
        space = {"x": 7}
        self.experiment = build_experiment(
            TuneConfig(**{"seed": 0, **tune}), run_config or RunConfig(), space
        )
        self.runner = TrialRunner(
            self.experiment,
            self.executor,
            store=self.store,
            clock=self.clock,
            resources_for=lambda config: request,
            observers=observers,
            background=background,
        )

    def run(self) -> Bench:
        self.runner.run()
        return self

    @property
    def journal(self) -> list[dict[str, Any]]:
        return [decode(line) for line in self.store.journal.splitlines()]

    @property
    def events(self) -> list[str]:
        return [record["event"] for record in self.journal]
