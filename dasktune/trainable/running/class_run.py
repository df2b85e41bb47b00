"""Runs a class trainable: setup or reset, training, checkpoints, exports, cleanup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from logging import getLogger
from typing import Any

from dasktune.errors import TuneError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.exports import write_export_list
from dasktune.trainable.api.session import restored_metrics
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.async_exception import AsyncRaise, TrialInterrupted
from dasktune.trainable.reporting.recorder import Ending, Recorder, Saved
from dasktune.trainable.reporting.trial_messages import PauseAnswer, SaveAnswer, StopAnswer
from dasktune.trainable.running.reuse import ReusableTrainable
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.result_keys import SHOULD_CHECKPOINT

logger = getLogger(__name__)


class ClassRun:
    """Builds a trainable or resets the last one, trains it until the trial ends, and cleans it up.

    Every hook of the user runs in the interrupter. Storage and messages do not, so an interrupt
    never breaks them.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    recorder : Recorder
        Records results and checkpoints.
    interrupter : AsyncRaise
        Runs the hooks.
    reusable : ReusableTrainable
        Keeps the trainable from one trial to the next, if it can be reset.
    bounded : callable
        Returns a context manager that bounds the time of a clean-up, given the exception with which
        the trial has ended, or None.
    """

    def __init__(
        self,
        spec: TrialSpec,
        recorder: Recorder,
        interrupter: AsyncRaise,
        reusable: ReusableTrainable,
        *,
        bounded: Callable[[BaseException | None], AbstractContextManager[None]],
    ) -> None:
        self._spec = spec
        self._recorder = recorder
        self._call = interrupter.call
        self._discard_interrupt = interrupter.discard_pending
        self._reusable = reusable
        self._bounded = bounded
        #: Whether the last result gets a checkpoint.
        self._at_end = False

    def run(self, trainable_class: type[Trainable], config: dict[str, Any]) -> None:
        """Run the trial to its end.

        Raises
        ------
        BaseException
            The first exception of user code. An exception of ``cleanup`` is raised only if nothing
            failed before.
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
        if not self._reusable.keep(trainable):
            self._cleanup(trainable)

    def _reset(self, config: dict[str, Any]) -> Trainable | None:
        """Return the last trial's trainable, reset for this trial; None if it cannot be reset."""
        kept = self._reusable.take()
        if kept is not None:
            # An exception of the reset is a failure of this trial, for which the reset is done.
            with self._cleaned_up_if_it_fails(kept.trainable):
                if self._call(kept.trainable.reset, config):
                    return kept.trainable
            self._reusable.clean_up(kept)
        # The cleanup of another trainable may release what this trial needs: memory, a port.
        self._reusable.wait_for_cleanups()
        return None

    @contextmanager
    def _cleaned_up_if_it_fails(self, trainable: Trainable) -> Iterator[None]:
        try:
            yield
        except TrialInterrupted as interruption:
            self._cleanup(trainable, interruption)
            raise
        except BaseException as failure:
            try:
                self._cleanup(trainable, failure)
            except BaseException:
                # The trial ends with its first failure.
                logger.warning("cleanup() failed after another failure", exc_info=True)
            raise

    def _cleanup(self, trainable: Trainable, error: BaseException | None = None) -> None:
        # An interrupt that came too late for the last step must not end the cleanup.
        self._discard_interrupt()
        with self._bounded(error):
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
            saved = self._save(trainable, result) if self._is_due(trainable, result) else None
            wanted = self._recorder.publish(result, saved)
            ending = self._recorder.ending
            in_memory = self._most_in_memory(trainable, wanted or ending, is_saved=saved is not None)
            if in_memory is None and saved is None and ending is None and self._is_requested(trainable):
                # The request has come while the trial waited at this result.
                in_memory = 0
            if in_memory is not None:
                if self._recorder.has_notice:
                    # The worker's memory ends with it.
                    in_memory = 0
                self._recorder.send_checkpoint(self._save(trainable, result, in_memory))

    def _export(self, trainable: Trainable) -> None:
        """Export the requested formats, unless the trial was paused."""
        formats = self._spec.export_formats
        if not formats or isinstance(self._recorder.ending, PauseAnswer):
            return
        # The directory is deleted with this object.
        place = Checkpoint.temporary()
        exported = self._call(trainable.export_model, list(formats), place.path)
        write_export_list(place.path, exported)
        missing = [name for name in formats if name not in exported]
        if missing:
            logger.warning(
                "trial %s has not exported %s: _export_model() of %s returned no path for it",
                self._spec.trial_id,
                ", ".join(missing),
                type(trainable).__name__,
            )
        self._recorder.export(place.path)

    def _is_requested(self, trainable: Trainable) -> bool:
        """Take the driver's request for a checkpoint, and return whether there is one to save."""
        return self._recorder.take_checkpoint_request() and trainable.can_save

    def _is_due(self, trainable: Trainable, result: Mapping[str, Any]) -> bool:
        frequency = self._spec.checkpoint_frequency
        return bool(
            # First, because any checkpoint of this result satisfies the request.
            self._is_requested(trainable)
            or (self._recorder.has_notice and trainable.can_save)
            or result.get(SHOULD_CHECKPOINT)
            or (frequency and result["training_iteration"] % frequency == 0)
            or (result["done"] and self._at_end)
        )

    def _most_in_memory(
        self, trainable: Trainable, order: SaveAnswer | Ending | None, *, is_saved: bool
    ) -> int | None:
        """Return the size limit in bytes for a due checkpoint in memory; None if none is due."""
        match order:
            case SaveAnswer(in_memory=in_memory) if trainable.can_save:
                return in_memory
            case PauseAnswer(save=True, in_memory=in_memory) if trainable.can_save and not is_saved:
                return in_memory
            case StopAnswer() if self._at_end and not is_saved:
                return 0
            case _:
                return None

    def _save(self, trainable: Trainable, result: Mapping[str, Any], in_memory: int = 0) -> Saved:
        # The directory is deleted after the upload, and only this trial writes there.
        checkpoint = Checkpoint.temporary()
        with self._recorder.report_timeout:
            self._call(trainable.save, checkpoint.path)
        return self._recorder.save(checkpoint, result, temporary=True, in_memory=in_memory)


def _check_built(trainable: Trainable) -> None:
    """Check that an overridden ``__init__()`` has called ``Trainable.__init__()``."""
    if not hasattr(trainable, "_autofill"):
        name = type(trainable).__name__
        raise TuneError(
            f"{name}.__init__() must call super().__init__(config), and has not. Call it there, "
            "or remove __init__() and build the model in setup(self, config)."
        )
