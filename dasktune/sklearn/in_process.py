"""Trials of a class in this process, one at a time, with the checkpoints of any experiment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, MutableMapping, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

from dasktune.config import CheckpointConfig
from dasktune.errors import check
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.location import Storage
from dasktune.storage.packing import pack, unpack
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trainable import Trainable
from dasktune.trial.actions import FailTrial, StopTrial
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import AnyTrialEvent, ExecutorEvent, ResultReported, TrialStarted
from dasktune.trial.milestone import Milestone, reached
from dasktune.trial.names import checkpoint_place

__all__ = ["InProcessExecutor"]

_NO_LIMIT = 1 << 62


class _Saved:
    """A checkpoint in memory."""

    def __init__(self, packed: bytes, iteration: int) -> None:
        self.packed = packed
        self.iteration = iteration

    def __deepcopy__(self, memo: Any) -> _Saved:
        return self


class _Unsaved:
    """What a trial could save at this moment: a copy of it is its checkpoint."""

    def __init__(self, model: Trainable) -> None:
        self._model = model

    def __deepcopy__(self, memo: Any) -> _Saved:
        checkpoint = Checkpoint.temporary()
        packed = pack(self._model.save(checkpoint.path), _NO_LIMIT)
        assert packed is not None, "there is no limit"
        return _Saved(packed, self._model.iteration)


class _StoredCheckpoints(MutableMapping[str, Any]):
    """The checkpoints of an experiment in its storage, by their paths there."""

    def __init__(self, storage: Storage) -> None:
        self._store = CheckpointStore(storage)

    def __setitem__(self, path: str, saved: _Saved) -> None:
        place = checkpoint_place(path)
        assert place is not None, path
        record = CheckpointRecord(path=path, index=place[1], iteration=saved.iteration, metrics={})
        self._store.write(unpack(saved.packed), record, incarnation=place[2])

    def __getitem__(self, path: str) -> Checkpoint:
        record = CheckpointRecord(path=path, index=0, iteration=0, metrics={})
        return self._store.reference(record)

    # The runner deletes what is in the storage, and nobody asks what is there.

    def __delitem__(self, path: str) -> None:
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class InProcessExecutor(SimulatedTrialExecutor):
    """Runs trials of a class in the calling thread, one at a time.

    With one place to run at, the time that the simulation makes up from what each step has taken is
    the time that has passed.

    Parameters
    ----------
    trainable : type
        A subclass of `Trainable`.
    storage : Storage
        Of the experiment; checkpoints are there as if a worker had written them.
    config : CheckpointConfig
        When they are made.
    clock : ManualClock
        Advanced by what steps take.
    raised : callable
        Told of each exception of a trial: the object itself, with its traceback.
    """

    def __init__(
        self,
        trainable: Any,
        *,
        storage: Storage,
        config: CheckpointConfig,
        clock: ManualClock,
        raised: Callable[[Exception], None],
    ) -> None:
        check(isinstance(trainable, type), "trainable", "a class", trainable)
        self._kind: type[Trainable] = trainable
        self._config = config
        self._raised = raised
        #: Of the trial whose step is being taken.
        self._milestones: tuple[Milestone, ...] = ()
        #: What was told, of trials that go on when it has been taken in.
        self._told: deque[tuple[Any, AnyTrialEvent]] = deque()
        super().__init__(
            self._steps,
            clock=clock,
            checkpoints=_StoredCheckpoints(storage),  # type: ignore[arg-type]
            saves_on_demand=True,
        )

    def next_events(self, timeout: float) -> Sequence[ExecutorEvent]:
        """Go on with what was told last, then return the next event."""
        while self._told:
            run, event = self._told.popleft()
            # It may have been taken off meanwhile.
            if self._is_current(event):
                super()._follow_up(run, event)
        return super().next_events(timeout)

    def _follow_up(self, run: Any, event: AnyTrialEvent) -> None:
        goes_on = isinstance(event, TrialStarted) or (
            isinstance(event, ResultReported) and not event.awaits and not event.metrics["done"]
        )
        if goes_on:
            # Its next step may end this process: what it told must stand in the journal by then.
            self._told.append((run, event))
        else:
            super()._follow_up(run, event)

    def stop_trial(self, action: StopTrial | FailTrial) -> None:
        """End a trial, and save it before if that is wanted at its end."""
        if self._at_end:
            self._runs[action.trial_id].saves = CheckpointKind.PERSISTENT
        super().stop_trial(action)

    def _advance(self, run: Any) -> None:
        # Trials take turns, so the step that is taken now is this trial's.
        self._milestones = run.milestones
        super()._advance(run)

    @property
    def _at_end(self) -> bool:
        wanted = self._config.checkpoint_at_end
        can_save = self._kind.save_checkpoint is not Trainable.save_checkpoint
        return can_save if wanted is None else wanted

    def _steps(
        self, config: dict[str, Any], checkpoint: Any
    ) -> Generator[tuple[Any, ...], None, None]:
        try:
            with closing(_Stoppable(self._kind(config))) as held:
                yield from self._train(held.model, checkpoint)
        except Exception as error:
            self._raised(error)
            raise

    def _train(self, model: Trainable, checkpoint: Any) -> Generator[tuple[Any, ...], None, None]:
        if checkpoint is not None:
            model.restore(
                unpack(checkpoint.packed) if isinstance(checkpoint, _Saved) else checkpoint
            )
        model.tell_milestones(lambda result: reached(self._milestones, result))
        state = _Unsaved(model) if model.can_save else None
        frequency = self._config.checkpoint_frequency
        while True:
            started = perf_counter()
            result = model.train()
            due = result.get("should_checkpoint") or (
                frequency and model.iteration % frequency == 0
            )
            ends = result["done"] and self._at_end
            yield {**result, "should_checkpoint": bool(due or ends)}, _since(started), state


class _Stoppable:
    def __init__(self, model: Trainable) -> None:
        self.model = model

    def close(self) -> None:
        self.model.stop()


def _since(started: float) -> float:
    return max(0.0, perf_counter() - started)
