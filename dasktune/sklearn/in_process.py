"""Trials of a class in this process, one at a time, with the checkpoints of any experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing
from time import perf_counter
from typing import Any

from dasktune.config import CheckpointConfig
from dasktune.errors import check
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.location import Storage
from dasktune.storage.packing import pack, unpack
from dasktune.testing import ManualClock, SimulatedTrialExecutor, TrialKind
from dasktune.testing.trial_kind import Steps
from dasktune.trainable import Trainable
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.names import checkpoint_place

__all__ = ["in_process_executor"]

_NO_LIMIT = 1 << 62


class _Saved:
    """A checkpoint in memory."""

    def __init__(self, packed: bytes, iteration: int) -> None:
        self.packed = packed
        self.iteration = iteration


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


class _TrialsOfClass(TrialKind):
    """Trials of a class, whose checkpoints are made as on a worker.

    Parameters
    ----------
    trainable : type
        A subclass of `Trainable`.
    config : CheckpointConfig
        When they are made.
    raised : callable
        Told of each exception of a trial.
    """

    saves_on_demand = True
    # Its next step may end this process: what it told must stand in the journal by then.
    takes_turns = True

    def __init__(
        self, trainable: Any, config: CheckpointConfig, raised: Callable[[Exception], None]
    ) -> None:
        check(isinstance(trainable, type), "trainable", "a class", trainable)
        self._trainable: type[Trainable] = trainable
        self._frequency = config.checkpoint_frequency
        self._raised = raised
        can_save = self._trainable.save_checkpoint is not Trainable.save_checkpoint
        wanted = config.checkpoint_at_end
        self.saves_at_end = can_save if wanted is None else wanted

    def begin(self, config: dict[str, Any], checkpoint: Any, is_milestone: Any) -> Steps:
        """Make the trainable, and let it take its steps."""
        try:
            with closing(_Stoppable(self._trainable(config))) as held:
                model = held.model
                model.tell_milestones(is_milestone)
                if checkpoint is not None:
                    saved = isinstance(checkpoint, _Saved)
                    model.restore(unpack(checkpoint.packed) if saved else checkpoint)
                yield from self._train(model)
        except Exception as error:
            self._raised(error)
            raise

    def _train(self, model: Trainable) -> Steps:
        state = model if model.can_save else None
        while True:
            started = perf_counter()
            result = model.train()
            due = result.get("should_checkpoint") or (
                self._frequency and model.iteration % self._frequency == 0
            )
            ends = result["done"] and self.saves_at_end
            yield {**result, "should_checkpoint": bool(due or ends)}, _since(started), state

    def kept(self, state: Trainable) -> _Saved:
        """Save a trainable as it is now."""
        checkpoint = Checkpoint.temporary()
        try:
            packed = pack(state.save(checkpoint.path), _NO_LIMIT)
        except Exception as error:
            self._raised(error)
            raise
        assert packed is not None, "there is no limit"
        return _Saved(packed, state.iteration)


def in_process_executor(
    trainable: Any,
    *,
    storage: Storage,
    config: CheckpointConfig,
    clock: ManualClock,
    raised: Callable[[Exception], None],
) -> SimulatedTrialExecutor:
    """Return an executor that runs trials of a class in the calling thread, one at a time.

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
    trials = _TrialsOfClass(trainable, config, raised)
    return SimulatedTrialExecutor(trials, clock=clock, checkpoints=_StoredCheckpoints(storage))


class _Stoppable:
    def __init__(self, model: Trainable) -> None:
        self.model = model

    def close(self) -> None:
        self.model.stop()


def _since(started: float) -> float:
    return max(0.0, perf_counter() - started)
