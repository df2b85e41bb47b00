"""The experiment of a search whose trials take steps: its definition, run and outcome."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from dasktune.config import CheckpointConfig, RunConfig, TuneConfig
from dasktune.errors import StorageError, TrialError, check
from dasktune.experiment import ExperimentMachine
from dasktune.in_process.manual_clock import ManualClock
from dasktune.in_process.simulated_executor import SimulatedTrialExecutor
from dasktune.in_process.trial_kind import Steps, TrialKind
from dasktune.runner import Environment, RunInline, SystemClock
from dasktune.runner.secret_values import check_secrets, with_secrets
from dasktune.sklearn.fits.engine import Backend
from dasktune.sklearn.fits.fingerprint import check_arguments
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.serialization import from_bytes, to_bytes
from dasktune.storage.experiment.experiment_store import SPEC_FILE
from dasktune.storage.experiment.tuner_json import SETUP_FILE
from dasktune.storage.fs import temp_dirs
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import check_journal_exists
from dasktune.trainable import Trainable
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import checkpoint_place
from dasktune.trial.trial import Trial
from dasktune.tuner.experiment_directory import directory_of
from dasktune.tuner.result_grid import ResultGrid
from dasktune.tuner.tuner import Tuner

logger = logging.getLogger("dasktune.sklearn")

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchExperiment:
    """The definition of a search's experiment.

    Parameters
    ----------
    trainable : type
        A subclass of `Trainable`, with the parameters and resources bound to it.
    tune_config : TuneConfig
        The searcher, the scheduler and the number of trials.
    run_config : RunConfig
        The storage and the limits on failures. Without a ``storage_path`` the experiment is in a
        temporary directory until its results have been read.
    param_space : mapping, default={}
        The search space for the searcher.
    resume : bool, default=False
        Resume the experiment of this name, if it exists.
    use_new_policies : bool, default=False
        Resume with the given searcher and scheduler, which get the stored state; by default the
        stored objects are used.
    arguments : mapping, default={}
        The arguments of the search by name; the experiment can be resumed with equal ones only.
    """

    trainable: Any
    tune_config: TuneConfig
    run_config: RunConfig
    param_space: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    use_new_policies: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """A finished experiment of a search."""

    #: The trials. Their checkpoints can be read until the ``with`` block of `run_experiment` ends.
    results: ResultGrid
    experiment: ExperimentMachine
    #: The last exception that a trial in this process has raised.
    raised: Exception | None = None

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were suggested."""
        return list(self.experiment.trials.values())


@contextmanager
def run_experiment(experiment: SearchExperiment, backend: Backend) -> Iterator[SearchOutcome]:
    """Run an experiment to its end, and keep its files while the ``with`` block runs.

    Parameters
    ----------
    experiment : SearchExperiment
        The experiment.
    backend : Backend
        Where trials run: on a cluster, or in this process one after the other.

    Yields
    ------
    SearchOutcome
        The finished experiment.

    Raises
    ------
    KeyboardInterrupt
        If the search was interrupted. A search with a ``storage_path`` can be resumed.
    Exception
        The exception of the first failed trial, with ``fail_fast="raise"``.
    """
    with _with_storage(experiment) as stored:
        tuner = _tuner(stored, backend)
        with (
            nullcontext() if backend.in_process else _leaving_the_pool(),
            _hint_on_interrupt(can_resume=stored is experiment),
        ):
            results = tuner.fit()
            runner = tuner.runner
            assert runner is not None, "fit() has run it"
            if runner.interrupted:
                raise KeyboardInterrupt
        if stored is not experiment:
            # The results must not read the journal later: the temporary directory will be deleted.
            config = experiment.tune_config
            results = ResultGrid(list(results), results.experiment_path, config.metric, config.mode)
        raised = tuner.raised if isinstance(tuner, InProcessTuner) else None
        yield SearchOutcome(results=results, experiment=runner.experiment, raised=raised)


@contextmanager
def _hint_on_interrupt(*, can_resume: bool) -> Iterator[None]:
    """Log how to resume the search after an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        if can_resume:
            logger.warning(
                "search interrupted; its records are in storage_path. To resume, call the same "
                "fit() with the same name and resume=True"
            )
        raise


@contextmanager
def _with_storage(experiment: SearchExperiment) -> Iterator[SearchExperiment]:
    """Yield the experiment with a storage: the user's, or a temporary directory."""
    if experiment.run_config.storage_path is not None:
        yield experiment
        return
    process, directory = os.getpid(), temp_dirs.make_directory()
    name = experiment.run_config.name or f"search-{uuid.uuid4().hex}"
    try:
        config = replace(experiment.run_config, storage_path=directory, name=name)
        yield replace(experiment, run_config=config)
    finally:
        temp_dirs.remove_own(process, directory)


def _tuner(experiment: SearchExperiment, backend: Backend) -> Tuner:
    kind = InProcessSearchTuner if backend.in_process else SearchTuner
    tune_config = experiment.tune_config
    if tune_config.max_concurrent_trials is None and backend.max_concurrent is not None:
        tune_config = replace(tune_config, max_concurrent_trials=backend.max_concurrent)
    config = experiment.run_config
    if experiment.arguments and config.name is not None:
        storage = directory_of(config)
        resumes = experiment.resume and kind.can_restore(str(storage), config.storage_options)
        check_arguments(storage, experiment.arguments, resumes=resumes)
        if resumes:
            # The stored searcher has the candidates that were sampled when the search began.
            return kind.restore(
                str(storage),
                experiment.trainable,
                tune_config=tune_config if experiment.use_new_policies else None,
                run_config=config,
                storage_options=config.storage_options,
                client=backend.client,
            )
        _check_name_is_free(storage, config.name, resume=experiment.resume)
        config = replace(config, if_exists="error")
    return kind(
        experiment.trainable,
        param_space=experiment.param_space,
        tune_config=tune_config,
        run_config=config,
        client=backend.client,
    )


def _check_name_is_free(storage: Storage, name: str, *, resume: bool) -> None:
    """Raise a `StorageError` that advises the search's user, if the name is already taken."""
    if not storage.exists(SPEC_FILE):
        return
    if resume and storage.exists(SETUP_FILE):
        check_journal_exists(storage)
    hint = "" if resume else ", or resume the stored one by resume=True"
    what = "an experiment that never began" if resume else "an experiment already"
    raise StorageError(
        f"name must be new to its storage_path, got {name!r}: {storage} holds {what}. Give this "
        f"search another name{hint}."
    )


class SearchTuner(Tuner):
    """A `Tuner` of a search, which the user resumes by another call of the search's ``fit``."""

    def _log_how_to_resume(self, storage: Storage) -> None:
        """Do nothing: `run_experiment` logs it, if the search is stored."""


class InProcessTuner(Tuner):
    """A `Tuner` whose trials run in the calling thread, one after the other."""

    #: The exception of the last failed trial.
    raised: Exception | None = None

    @contextmanager
    def _open_environment(
        self, experiment: ExperimentMachine, name: str, storage: Storage
    ) -> Iterator[Environment]:
        check_secrets(self._param_space)
        # The executor advances it by the measured time of each step, so it agrees with real time.
        clock = ManualClock(SystemClock().now())
        trials = ClassTrials(self._trainable, self._run_config.checkpoint_config, self._record_exception)
        executor = SimulatedTrialExecutor(trials, clock=clock, checkpoints=StoredCheckpoints(storage))
        yield Environment(executor=executor, clock=clock, background=RunInline)

    def _record_exception(self, error: Exception) -> None:
        self.raised = error


class InProcessSearchTuner(SearchTuner, InProcessTuner):
    """A `Tuner` of a search whose trials run in the calling thread."""

    def _fit(self, interrupts: Any) -> ResultGrid:
        try:
            return super()._fit(interrupts)
        except TrialError:
            if self.raised is None:
                raise
            # Raise the exception with its traceback; a trial records only its text.
            raise self.raised from None


def _leaving_the_pool() -> Any:
    from dasktune.cluster.connection.task_context import seceded

    return seceded()


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
