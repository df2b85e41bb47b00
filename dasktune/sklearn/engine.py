"""What all searches run on: the fits of a search are the trials of one experiment."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, Final

import numpy as np

from dasktune.config import RunConfig, TuneConfig
from dasktune.first_error import raise_error_of
from dasktune.runner import Clock, SystemClock, TrialExecutor, TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.sklearn.evaluation import (
    Data,
    Fit,
    Job,
    Outcome,
    Split,
    evaluate,
    failed_outcome,
    heard,
    run_fit,
    told,
)
from dasktune.sklearn.fit_queue import FitQueue
from dasktune.sklearn.no_store import NoStore
from dasktune.storage.location import Storage
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trainable import with_parameters
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Engine", "Site"]

#: What a fit needs.
_ONE_CPU: Final = PlacementGroupFactory([{"CPU": 1.0}])


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where fits run.

    Parameters
    ----------
    in_process : bool
        Whether it is here, one after the other, or on a cluster.
    client : object, optional
        What names the cluster.
    most : int, optional
        Most fits that run at a time; as many as there is room for by default.
    """

    in_process: bool
    client: Any = field(default=None, repr=False)
    most: int | None = None


class Engine:
    """Runs fits as trials, in several batches if need be; it begins with the first one.

    In this process, `SimulatedTrialExecutor` runs them in the calling thread: with one place to run
    at, the time that it makes up from what each fit has taken is the time that has passed.

    Parameters
    ----------
    job : Job
        What all fits have in common.
    data : Data
        What is fitted and scored.
    site : Site
        Where.
    """

    def __init__(self, job: Job, data: Data, site: Site) -> None:
        self._job = job
        self._data = data
        self._site = site
        self._queue = FitQueue()
        self._exits = ExitStack()
        self._runner: TrialRunner | None = None
        #: Of the first batch: they are placed on the workers with the data.
        self._splits: Sequence[Split] = ()
        #: Of the present batch.
        self._present: Sequence[Split] = ()
        #: What a fit has raised in this process.
        self._raised: Exception | None = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._exits:
            if kind is None and self._runner is not None:
                self._queue.close()
                self._runner.tick()
                while not self._runner.experiment.finished:
                    self._runner.step()

    def run(self, fits: Sequence[Fit], splits: Sequence[Split]) -> list[Outcome]:
        """Run a batch of fits, and return what came of each, in their order.

        Parameters
        ----------
        fits : sequence of Fit
            The batch.
        splits : sequence of tuple
            The samples of each split.

        Raises
        ------
        Exception
            What the first fit to fail has raised, where that is no score.
        TrialError
            If a fit has lost its workers too often, and ``error_score="raise"``.
        """
        first = len(self._queue)
        self._queue.add(fits)
        self._present = splits
        if self._runner is None:
            self._splits = splits
            self._runner = self._exits.enter_context(self._begun())
        # It had nothing to offer when it was asked last.
        self._runner.tick()
        while self._queue.unfinished:
            self._runner.step()
            self._look_for_failures(self._runner)
        results = self._queue.results
        return [heard(results.pop(number)) for number in range(first, len(self._queue))]

    def _look_for_failures(self, runner: TrialRunner) -> None:
        for number, trial_id in tuple(self._queue.failed.items()):
            if self._raised is not None:
                raise self._raised
            trial = runner.experiment.trials[trial_id]
            if trial.error is not None or self._job.error_score == "raise":
                raise_error_of(trial)
            self._queue.excuse(number, told(failed_outcome(self._job, trial.reason)))

    @contextmanager
    def _begun(self) -> Iterator[TrialRunner]:
        tune_config = TuneConfig(search_alg=self._queue, max_concurrent_trials=self._site.most)
        place = self._in_process if self._site.in_process else self._on_cluster
        with place() as (executor, clock):
            runner = TrialRunner(
                build_experiment(tune_config, RunConfig(), {}),
                executor,
                store=NoStore(),
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
            outcome = evaluate(fit, self._present[fit.split], self._job, self._data)
        except Exception as error:
            # The exception itself, with its traceback; trials know only what can travel.
            self._raised = error
            raise
        yield told(outcome), perf_counter() - started

    # On a cluster

    @contextmanager
    def _on_cluster(self) -> Iterator[tuple[TrialExecutor, Clock]]:
        from dasktune.cluster.here import leaving_the_pool
        from dasktune.cluster.launch import Launch, launched

        name = f"search-{uuid.uuid4().hex}"
        data = self._data
        trainable = with_parameters(
            run_fit, job=self._job, X=data.X, y=data.y, metadata=data.metadata, splits=self._splits
        )
        launch = Launch(
            trainable=trainable,
            param_space={},
            name=name,
            # Nothing is written.
            storage=Storage(f"memory://{name}"),
            run_config=RunConfig(name=name, verbose=0, dashboard=False),
            reuse_actors=True,
            resources=_ONE_CPU,
            metrics=(),
            complete=self._complete,
            saves=False,
        )
        clock = SystemClock()
        with leaving_the_pool(), launched(self._site.client, launch, clock) as executor:
            yield executor, clock

    def _complete(self, config: dict[str, Any]) -> dict[str, Any]:
        fit = self._queue[config["fit"]]
        split = self._present[fit.split]
        placed = _same(split, self._splits[fit.split])
        return {"fit": fit.fields(), "samples": None if placed else split}


def _same(one: Split, other: Split) -> bool:
    return one is other or all(
        mine is theirs or np.array_equal(mine, theirs)
        for mine, theirs in zip(one, other, strict=True)
    )
