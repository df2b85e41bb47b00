"""An experiment that a search needs: any trainable, searcher, scheduler and storage."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from dasktune.config import RunConfig, TuneConfig
from dasktune.errors import StorageError, TrialError
from dasktune.experiment import Experiment
from dasktune.results import ResultGrid
from dasktune.runner import Stage, SystemClock, ThinkingAtOnce
from dasktune.sklearn.arguments import check_arguments
from dasktune.sklearn.engine import Site
from dasktune.sklearn.in_process import in_process_executor
from dasktune.storage import workspace
from dasktune.storage.experiment_store import SPEC_FILE
from dasktune.storage.location import Storage
from dasktune.testing import ManualClock
from dasktune.trial.trial import Trial
from dasktune.tuner import Tuner

__all__ = ["Carried", "Plan", "carried_out"]

logger = logging.getLogger("dasktune.sklearn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An experiment of a search.

    Parameters
    ----------
    trainable : type
        A subclass of `Trainable`, with what `with_parameters` and `with_resources` have bound.
    tune_config : TuneConfig
        What is searched for, and how.
    run_config : RunConfig
        Where it is kept, and what failures cost. Without a ``storage_path`` it is kept in a
        temporary directory until its results have been read.
    param_space : mapping, default={}
        What its search algorithm is given.
    resume : bool, default=False
        Go on with the experiment of this name, if there is one.
    renewed : bool, default=False
        Whether it goes on with the searcher and the scheduler of this plan, which are given the
        state of those that it was begun with; by default with those that were stored.
    arguments : mapping, default={}
        What the search was called with, by name: it goes on with nothing else.
    """

    trainable: Any
    tune_config: TuneConfig
    run_config: RunConfig
    param_space: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    renewed: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What has come of a plan."""

    #: Checkpoints can be opened for as long as it is kept.
    results: ResultGrid
    experiment: Experiment
    #: The last exception that a trial in this process has raised.
    raised: Exception | None = None

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were suggested."""
        return list(self.experiment.trials.values())


@contextmanager
def carried_out(plan: Plan, site: Site) -> Iterator[Carried]:
    """Run an experiment to its end, and keep it until it has been read.

    Parameters
    ----------
    plan : Plan
        The experiment.
    site : Site
        Where: on a cluster, or in this process, one trial after the other.

    Yields
    ------
    Carried
        What has come of it.

    Raises
    ------
    KeyboardInterrupt
        If it was interrupted. What is kept can be resumed.
    Exception
        What the first trial to fail has raised, where ``fail_fast="raise"`` asks for it.
    """
    with _kept(plan) as kept:
        tuner = _tuner(kept, site)
        with nullcontext() if site.in_process else _leaving_the_pool(), _hinting(kept is plan):
            results = tuner.fit()
            runner = tuner.runner
            assert runner is not None, "fit() has run it"
            if runner.interrupted:
                raise KeyboardInterrupt
        if kept is not plan:
            # What they would read of the journal will be gone.
            config = plan.tune_config
            results = ResultGrid(list(results), results.experiment_path, config.metric, config.mode)
        raised = tuner.raised if isinstance(tuner, InProcessTuner) else None
        yield Carried(results=results, experiment=runner.experiment, raised=raised)


@contextmanager
def _hinting(is_kept: bool) -> Iterator[None]:
    """Say how to go on after an interrupt, where that is possible."""
    try:
        yield
    except KeyboardInterrupt:
        if is_kept:
            logger.warning(
                "interrupted; what was recorded is kept in storage_path. Go on by the same fit() "
                "with the same name and resume=True"
            )
        raise


@contextmanager
def _kept(plan: Plan) -> Iterator[Plan]:
    """Yield the plan with a place where it is kept; removed at the end if the user named none."""
    if plan.run_config.storage_path is not None:
        yield plan
        return
    directory = workspace.make_directory()
    name = plan.run_config.name or f"search-{uuid.uuid4().hex}"
    try:
        config = replace(plan.run_config, storage_path=directory, name=name)
        yield replace(plan, run_config=config)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _tuner(plan: Plan, site: Site) -> Tuner:
    kind = InProcessTuner if site.in_process else SearchTuner
    tune_config = plan.tune_config
    if tune_config.max_concurrent_trials is None and site.most is not None:
        tune_config = replace(tune_config, max_concurrent_trials=site.most)
    config = plan.run_config
    if plan.arguments and config.name is not None:
        storage = Storage(config.storage_url, config.storage_options or {}).child(config.name)
        goes_on = plan.resume and kind.can_restore(str(storage), config.storage_options)
        check_arguments(storage, plan.arguments, goes_on=goes_on)
        if goes_on:
            # Its searcher knows what it has drawn.
            return kind.restore(
                str(storage),
                plan.trainable,
                tune_config=tune_config if plan.renewed else None,
                run_config=config,
                storage_options=config.storage_options,
                client=site.client,
            )
        _refuse_taken(storage, config.name, resume=plan.resume)
    return kind(
        plan.trainable,
        param_space=plan.param_space,
        tune_config=tune_config,
        run_config=config,
        client=site.client,
    )


def _refuse_taken(storage: Storage, name: str, *, resume: bool) -> None:
    """Say in the words of a search that a name is taken."""
    if not storage.exists(SPEC_FILE):
        return
    way = "" if resume else ", or go on with that one by resume=True"
    what = "one that never began" if resume else "an experiment already"
    raise StorageError(
        f"name must be new to its storage_path, got {name!r}: {storage} holds {what}. Give this "
        f"search another name{way}."
    )


class SearchTuner(Tuner):
    """A `Tuner` of a search, which goes on by another call of its `fit`, if at all."""

    def _tell_how_to_go_on(self, storage: Storage) -> None:
        """Leave that to who knows whether anything is kept."""


class InProcessTuner(SearchTuner):
    """A `Tuner` whose trials run in the calling thread, one after the other."""

    #: What the last trial to fail has raised.
    raised: Exception | None = None

    def _fit(self, interrupts: Any) -> ResultGrid:
        try:
            return super()._fit(interrupts)
        except TrialError:
            if self.raised is None:
                raise
            # The exception itself, with its traceback; trials know only what can travel.
            raise self.raised from None

    @contextmanager
    def _on_stage(self, experiment: Experiment, name: str, storage: Storage) -> Iterator[Stage]:
        clock = ManualClock(SystemClock().now())
        executor = in_process_executor(
            self._trainable,
            storage=storage,
            config=self._run_config.checkpoint_config,
            clock=clock,
            raised=self._note,
        )
        yield Stage(executor=executor, clock=clock, thinker=ThinkingAtOnce)

    def _note(self, error: Exception) -> None:
        self.raised = error


def _leaving_the_pool() -> Any:
    from dasktune.cluster.here import leaving_the_pool

    return leaving_the_pool()
