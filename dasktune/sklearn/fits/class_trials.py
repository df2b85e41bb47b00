"""Trials of a `Trainable` class in this process, one at a time, with checkpoints in the storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from dasktune.config import CheckpointConfig
from dasktune.errors import check
from dasktune.in_process.trial_kind import Steps, TrialKind
from dasktune.runner.secret_values import with_secrets
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.serialization import from_bytes, to_bytes
from dasktune.storage.fs.storage import Storage
from dasktune.trainable import Trainable
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import checkpoint_place

_NO_LIMIT = 1 << 62


class _InProcessCheckpoint:
    """A pickled checkpoint that is not in the storage yet."""

    def __init__(self, packed: bytes, iteration: int) -> None:
        self.packed = packed
        self.iteration = iteration


class StoredCheckpoints(MutableMapping[str, Any]):
    """The checkpoints of an experiment in its storage, by path."""

    def __init__(self, storage: Storage) -> None:
        self._store = CheckpointStore(storage)

    def __setitem__(self, path: str, saved: _InProcessCheckpoint) -> None:
        place = checkpoint_place(path)
        assert place is not None, path
        record = CheckpointRecord(path=path, index=place[1], iteration=saved.iteration, metrics={})
        self._store.write(from_bytes(saved.packed), record, incarnation=place[2])

    def __getitem__(self, path: str) -> Checkpoint:
        record = CheckpointRecord(path=path, index=0, iteration=0, metrics={})
        return self._store.reference(record)

    # The runner deletes checkpoints from the storage itself, and the executor lists none.

    def __delitem__(self, path: str) -> None:
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class ClassTrials(TrialKind):
    """Trials of a `Trainable` class, which save the same checkpoints as on a worker.

    Parameters
    ----------
    trainable : type
        A subclass of `Trainable`.
    config : CheckpointConfig
        When checkpoints are saved.
    raised : callable
        Called with each exception of a trial.
    """

    saves_on_demand = True
    # The next step may kill this process, so the last result must be in the journal before it.
    takes_turns = True

    def __init__(self, trainable: Any, config: CheckpointConfig, raised: Callable[[Exception], None]) -> None:
        check(isinstance(trainable, type), "trainable", "a class", trainable)
        self._trainable: type[Trainable] = trainable
        self._frequency = config.checkpoint_frequency
        self._raised = raised
        can_save = self._trainable.save_checkpoint is not Trainable.save_checkpoint
        wanted = config.checkpoint_at_end
        self.saves_at_end = can_save if wanted is None else wanted

    def begin(self, config: dict[str, Any], checkpoint: Any, is_milestone: Any) -> Steps:
        """Create the trainable, restore it from a checkpoint if there is one, and run its steps."""
        try:
            with ExitStack() as exits:
                model = self._trainable(with_secrets(config))
                exits.callback(model.stop)
                model.tell_milestones(is_milestone)
                if checkpoint is not None:
                    saved = isinstance(checkpoint, _InProcessCheckpoint)
                    model.restore(from_bytes(checkpoint.packed) if saved else checkpoint)
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

    def kept(self, state: Trainable) -> _InProcessCheckpoint:
        """Return a checkpoint of the current state of a trainable."""
        checkpoint = Checkpoint.temporary()
        try:
            packed = to_bytes(state.save(checkpoint.path), _NO_LIMIT)
        except Exception as error:
            self._raised(error)
            raise
        assert packed is not None, "there is no limit"
        return _InProcessCheckpoint(packed, state.iteration)


def _since(started: float) -> float:
    return max(0.0, perf_counter() - started)
