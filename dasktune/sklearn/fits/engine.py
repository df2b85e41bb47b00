"""The engine of grid, random and halving searches: each fit is a trial of one experiment."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from types import TracebackType
from typing import Any, Final

import numpy as np

from dasktune.config import RunConfig, TuneConfig
from dasktune.in_process.manual_clock import ManualClock
from dasktune.in_process.simulated_executor import SimulatedTrialExecutor
from dasktune.runner import Clock, SystemClock, TrialExecutor, TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.runner.secret_values import with_secrets
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.sklearn.fits.fit_and_score import (
    Data,
    Fit,
    Job,
    Outcome,
    Split,
    evaluate,
    failed_outcome,
    from_metrics,
    run_fit,
    to_metrics,
)
from dasktune.space.secret import secrets_in
from dasktune.storage.fs.storage import Storage
from dasktune.trainable import with_parameters
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.tuner.raise_trial_error import reraise_trial_error

#: The resources of a fit.
_ONE_CPU: Final = PlacementGroupFactory([{"CPU": 1.0}])


class NullStore:
    """Counts the records of an experiment and discards them.

    Examples
    --------
    >>> store = NullStore()
    >>> store.append({"event": "TimePassed"}), store.append({"event": "TimePassed"})
    (1, 2)
    >>> store.commit()
    2
    """

    def __init__(self) -> None:
        self._position = 0

    @property
    def epoch(self) -> int:
        """The number of the session: 1."""
        return 1

    def append(self, record: Mapping[str, Any]) -> int:
        """Count a record."""
        self._position += 1
        return self._position

    def commit(self, force: bool = False) -> int:
        """Return the number of records; all of them count as durable."""
        return self._position

    def write_params(self, trial_dir: str, config: Mapping[str, Any], *, pickled: bool = False) -> None:
        """Discard a configuration."""

    def write_policy(self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]) -> None:
        """Discard the exploits of a trial."""

    def save_snapshot(self, capture: Callable[..., dict[str, Any]]) -> None:
        """Do nothing: there is no snapshot."""

    @property
    def snapshot_seconds(self) -> float:
        """Seconds that a snapshot takes: 0."""
        return 0.0

    def write_error(self, trial_dir: str, text: str) -> None:
        """Discard the text of a failure."""

    def remove_stale_checkpoints(self, trial_dir: str, incarnation: int, kept: Collection[str]) -> None:
        """Do nothing: trials save no checkpoints."""

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        """Do nothing: trials save no checkpoints."""

    def close(self) -> None:
        """Do nothing."""


class FitQueue(SearchAlgorithm):
    """Suggests fits in their order, and keeps their results.

    A trial's configuration is only the number of its fit. The fit itself stays on the driver, and
    is sent to the worker when its trial starts.

    Examples
    --------
    >>> queue = FitQueue()
    >>> queue.add([Fit(params={"C": 1.0}, candidate=0, n_candidates=1, split=0)])
    >>> queue.next_trial("t0").config, queue.next_trial("t1").config
    ({'fit': 0}, None)
    >>> queue.on_trial_complete("t0", {"test_scores": 0.5})
    >>> queue.unfinished, queue.results
    (0, {0: {'test_scores': 0.5}})
    """

    #: Suggestions are cheap and depend on no result, so the runner may ask for many in advance.
    lookahead = 64
    answers_at_once = True

    def __init__(self) -> None:
        self._fits: list[Fit] = []
        self._pending: deque[int] = deque()
        self._numbers: dict[str, int] = {}
        self._closed = False
        self._ended = 0
        #: {number of the fit: its result}
        self.results: dict[int, Mapping[str, Any]] = {}
        #: {number of the fit: id of its failed trial}
        self.failed: dict[int, str] = {}

    def setup(self, spec: SearchSpec) -> None:
        """Do nothing: :meth:`add` gives the fits."""

    @property
    def total_samples(self) -> int | None:
        """Total number of trials; None until the queue is closed."""
        return len(self._fits) if self._closed else None

    @property
    def unfinished(self) -> int:
        """The number of fits that have not ended."""
        return len(self._fits) - self._ended

    def __getitem__(self, number: int) -> Fit:
        return self._fits[number]

    def __len__(self) -> int:
        return len(self._fits)

    def add(self, fits: Iterable[Fit]) -> None:
        """Add fits at the end."""
        for fit in fits:
            self._pending.append(len(self._fits))
            self._fits.append(fit)

    def set_failed(self, number: int, result: Mapping[str, Any]) -> None:
        """Replace the failure of a fit by a result."""
        del self.failed[number]
        self.results[number] = result

    def close(self) -> None:
        """Declare that no further fits will be added."""
        self._closed = True

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the number of the next fit."""
        if not self._pending:
            return Suggestion(config=None, finished=self._closed)
        number = self._numbers[trial_id] = self._pending.popleft()
        return Suggestion(config={"fit": number}, tag=f"fit={number}")

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Keep the result of a fit, or the id of the trial if it failed."""
        number = self._numbers.pop(trial_id)
        self._ended += 1
        if error or result is None:
            self.failed[number] = trial_id
        else:
            self.results[number] = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The place where fits run: a cluster or this process.

    Parameters
    ----------
    in_process : bool
        Whether fits run in this process, one after the other, instead of on a cluster.
    client : object, optional
        The client, the cluster object or the address of the cluster.
    max_concurrent : int, optional
        Maximum number of fits at a time; by default as many as the cluster has room for.
    """

    in_process: bool
    client: Any = field(default=None, repr=False)
    max_concurrent: int | None = None


class Engine:
    """Runs one or more batches of fits as trials. The experiment starts with the first batch.

    Without a cluster, a `SimulatedTrialExecutor` with one slot runs the fits in the calling thread.
    Its simulated clock advances by the measured time of each fit, so it agrees with real time.

    Parameters
    ----------
    job : Job
        The settings that all fits share.
    data : Data
        The samples, targets and metadata.
    backend : Backend
        Where the fits run.
    """

    def __init__(self, job: Job, data: Data, backend: Backend) -> None:
        self._job = job
        self._data = data
        self._backend = backend
        self._queue = FitQueue()
        self._exits = ExitStack()
        self._runner: TrialRunner | None = None
        #: The splits of the first batch; the workers get them once, with the data.
        self._splits: Sequence[Split] = ()
        #: The splits of the current batch.
        self._current_splits: Sequence[Split] = ()
        #: The last exception of a fit in this process.
        self._raised: Exception | None = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._exits:
            if kind is None and self._runner is not None:
                self._queue.close()
                self._runner.tick()
                while not self._runner.experiment.finished:
                    self._runner.step()

    def run(self, fits: Sequence[Fit], splits: Sequence[Split]) -> list[Outcome]:
        """Run a batch of fits, and return their outcomes in the same order.

        Parameters
        ----------
        fits : sequence of Fit
            The batch.
        splits : sequence of tuple
            The sample indices of each split.

        Raises
        ------
        Exception
            The exception of the first failed fit, if `error_score` does not replace it.
        TrialError
            If a fit lost its worker too often, with ``error_score="raise"``.
        ConfigError
            If the environment of this process lacks the variable of a secret.
        """
        first = len(self._queue)
        self._queue.add([_checked(fit) for fit in fits])
        # No fit of an earlier batch is queued or running now: `run` returns only after all have
        # ended. So `_complete` and `_steps` never look up an old fit in the new splits.
        self._current_splits = splits
        if self._runner is None:
            self._splits = splits
            self._runner = self._exits.enter_context(self._running())
        # The queue was empty when the runner last requested a suggestion, so the runner must
        # request again.
        self._runner.tick()
        while self._queue.unfinished:
            self._runner.step()
            self._handle_failures(self._runner)
        results = self._queue.results
        return [from_metrics(results.pop(number)) for number in range(first, len(self._queue))]

    def _handle_failures(self, runner: TrialRunner) -> None:
        for number, trial_id in tuple(self._queue.failed.items()):
            if self._raised is not None:
                raise self._raised
            trial = runner.experiment.trials[trial_id]
            if trial.error is not None or self._job.error_score == "raise":
                reraise_trial_error(trial)
            self._queue.set_failed(number, to_metrics(failed_outcome(self._job, trial.reason)))

    @contextmanager
    def _running(self) -> Iterator[TrialRunner]:
        tune_config = TuneConfig(search_alg=self._queue, max_concurrent_trials=self._backend.max_concurrent)
        launch = self._in_process if self._backend.in_process else self._on_cluster
        with launch() as (executor, clock):
            runner = TrialRunner(
                build_experiment(tune_config, RunConfig(), {}),
                executor,
                store=NullStore(),
                clock=clock,
                resources_for=lambda config: _ONE_CPU,
                checkpoint_period=float("inf"),
            )
            with runner.running():
                yield runner

    # In this process

    @contextmanager
    def _in_process(self) -> Iterator[tuple[TrialExecutor, Clock]]:
        clock = ManualClock()
        yield SimulatedTrialExecutor(self._steps, clock=clock), clock

    def _steps(self, config: dict[str, Any]) -> Generator[tuple[Any, ...], None, None]:
        fit = self._queue[config["fit"]]
        started = perf_counter()
        try:
            if fit.has_secrets:
                fit = replace(fit, params=with_secrets(dict(fit.params)))
            outcome = evaluate(fit, self._current_splits[fit.split], self._job, self._data)
        except Exception as error:
            # Keep the exception with its traceback; a trial records only its text.
            self._raised = error
            raise
        yield to_metrics(outcome), perf_counter() - started

    # On a cluster

    @contextmanager
    def _on_cluster(self) -> Iterator[tuple[TrialExecutor, Clock]]:
        from dasktune.cluster.connection.task_context import seceded
        from dasktune.cluster.driver.launch import Launch, launched

        name = f"search-{uuid.uuid4().hex}"
        data = self._data
        trainable = with_parameters(
            run_fit, job=self._job, X=data.X, y=data.y, metadata=data.metadata, splits=self._splits
        )
        launch = Launch(
            trainable=trainable,
            param_space={},
            name=name,
            # A fit saves no checkpoint, so nothing is written here.
            storage=Storage(f"memory://{name}"),
            run_config=RunConfig(name=name, verbose=0, dashboard=False),
            reuse_actors=True,
            resources=_ONE_CPU,
            metrics=(),
            complete=self._complete,
            saves=False,
        )
        clock = SystemClock()
        with seceded(), launched(self._backend.client, launch, clock) as executor:
            yield executor, clock

    def _complete(self, config: dict[str, Any]) -> dict[str, Any]:
        fit = self._queue[config["fit"]]
        split = self._current_splits[fit.split]
        is_on_workers = _is_same_split(split, self._splits[fit.split])
        return {"fit": fit.fields(), "samples": None if is_on_workers else split}


def _checked(fit: Fit) -> Fit:
    """Mark a fit whose parameters have secrets, after a check that this process can read them."""
    if not any(True for _ in secrets_in(fit.params)):
        return fit
    with_secrets(dict(fit.params))
    return replace(fit, has_secrets=True)


def _is_same_split(one: Split, other: Split) -> bool:
    return one is other or all(
        mine is theirs or np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True)
    )
