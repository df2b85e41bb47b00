"""Driving a class trainable through a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from typing import Any

from dasktune.errors import TuneError
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.exports import note_exports
from dasktune.trainable.interrupt import Interrupter, TrialInterrupted
from dasktune.trainable.keeper import Keeper
from dasktune.trainable.messages import PauseNow, SaveAndGoOn, StopNow
from dasktune.trainable.recorder import Ending, Recorder, Saved
from dasktune.trainable.session import restored_metrics
from dasktune.trainable.spec import TrialSpec
from dasktune.trainable.trainable import Trainable

__all__ = ["ClassRun"]

logger = getLogger(__name__)


class ClassRun:
    """Builds a trainable or takes the last trial's, trains it until it is to end, and cleans up.

    Every hook of the user runs in the interrupter; storage and messages do not.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    recorder : Recorder
        Where results and checkpoints go.
    interrupter : Interrupter
        Runs the hooks.
    keeper : Keeper
        Keeps the trainable from one trial to the next, if it can be reset.
    """

    def __init__(
        self, spec: TrialSpec, recorder: Recorder, interrupter: Interrupter, keeper: Keeper
    ) -> None:
        self._spec = spec
        self._recorder = recorder
        self._call = interrupter.call
        self._settle = interrupter.settle
        self._keeper = keeper
        #: Whether the last result gets a checkpoint.
        self._at_end = False

    def run(self, trainable_class: type[Trainable], config: dict[str, Any]) -> None:
        """Run the trial to its end.

        Raises
        ------
        BaseException
            What user code raised. A failure of ``cleanup`` counts if nothing failed before.
        """
        trainable = self._reset(config)
        if trainable is None:
            trainable = self._call(trainable_class, config)
            _check_built(trainable)
        with self._cleaned_up_if_it_fails(trainable):
            at_end = self._spec.checkpoint_at_end
            self._at_end = trainable.can_save if at_end is None else at_end
            self._restore(trainable)
            trainable.tell_milestones(self._recorder.is_milestone)
            self._train(trainable)
            self._export(trainable)
        if not self._keeper.keep(trainable):
            self._cleanup(trainable)

    def _reset(self, config: dict[str, Any]) -> Trainable | None:
        """Return the trainable of the trial before, made ready for this one, if that can be."""
        kept = self._keeper.take()
        if kept is not None:
            # What it raises is this trial's failure, as it is the one that it was asked for.
            with self._cleaned_up_if_it_fails(kept.trainable):
                if self._call(kept.trainable.reset, config):
                    return kept.trainable
            self._keeper.dismiss(kept)
        # What is being cleaned up may hold what this trial needs: memory, a port, a file.
        self._keeper.settle()
        return None

    @contextmanager
    def _cleaned_up_if_it_fails(self, trainable: Trainable) -> Iterator[None]:
        try:
            yield
        except TrialInterrupted:
            self._cleanup(trainable)
            raise
        except BaseException:
            try:
                self._cleanup(trainable)
            except BaseException:
                # The first failure is the one that the trial ends with.
                logger.warning("cleanup() failed after another failure", exc_info=True)
            raise

    def _cleanup(self, trainable: Trainable) -> None:
        # An interrupt that came too late to end a step must not end the cleanup.
        self._settle()
        self._call(trainable.stop)

    def _restore(self, trainable: Trainable) -> None:
        checkpoint = self._recorder.load()
        if checkpoint is None:
            return
        with checkpoint.as_directory() as directory:
            local = Checkpoint.from_directory(directory)
            self._call(trainable.restore, local, restored_metrics(self._spec))

    def _train(self, trainable: Trainable) -> None:
        ending: Ending | None = None
        while ending is None:
            result = self._call(trainable.train)
            self._recorder.check(result)
            saved = self._save(trainable, result) if self._is_due(result) else None
            wanted = self._recorder.publish(result, saved)
            ending = self._recorder.ending
            in_memory = self._most_in_memory(
                trainable, wanted or ending, is_saved=saved is not None
            )
            if in_memory is not None:
                self._recorder.announce(self._save(trainable, result, in_memory))

    def _export(self, trainable: Trainable) -> None:
        """Export what is wanted, unless the trial is to go on another time."""
        formats = self._spec.export_formats
        if not formats or isinstance(self._recorder.ending, PauseNow):
            return
        # Its directory goes away with it.
        place = Checkpoint.temporary()
        told = self._call(trainable.export_model, list(formats), place.path)
        note_exports(place.path, told)
        missing = [name for name in formats if name not in told]
        if missing:
            logger.warning(
                "trial %s has not exported %s: _export_model() of %s says nothing of it",
                self._spec.trial_id,
                ", ".join(missing),
                type(trainable).__name__,
            )
        self._recorder.export(place.path)

    def _is_due(self, result: Mapping[str, Any]) -> bool:
        frequency = self._spec.checkpoint_frequency
        return bool(
            result.get("should_checkpoint")
            or (frequency and result["training_iteration"] % frequency == 0)
            or (result["done"] and self._at_end)
        )

    def _most_in_memory(
        self, trainable: Trainable, order: SaveAndGoOn | Ending | None, *, is_saved: bool
    ) -> int | None:
        """Return up to how many bytes the checkpoint that is due now is kept in memory.

        None if none is due.
        """
        match order:
            case SaveAndGoOn(in_memory=in_memory) if trainable.can_save:
                return in_memory
            case PauseNow(save=True, in_memory=in_memory) if trainable.can_save and not is_saved:
                return in_memory
            case StopNow() if self._at_end and not is_saved:
                return 0
            case _:
                return None

    def _save(self, trainable: Trainable, result: Mapping[str, Any], in_memory: int = 0) -> Saved:
        # Its directory goes away when it has been uploaded, and nobody else writes there.
        checkpoint = Checkpoint.temporary()
        with self._recorder.watchdog:
            self._call(trainable.save, checkpoint.path)
        return self._recorder.save(checkpoint, result, own=True, in_memory=in_memory)


def _check_built(trainable: Trainable) -> None:
    """Check that a class with an ``__init__()`` of its own has called ours."""
    if not hasattr(trainable, "_autofill"):
        name = type(trainable).__name__
        raise TuneError(
            f"{name}.__init__() must call super().__init__(config), and has not. Call it there, "
            "or leave out __init__() and build the model in setup(self, config)."
        )
