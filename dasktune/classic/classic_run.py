"""``tune.run`` and ``tune.run_experiments``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from dasktune.classic.experiment import Experiment
from dasktune.classic.run_arguments import as_experiment, as_experiments, as_resume_config
from dasktune.classic.signature import document_options
from dasktune.config.resume_config import ResumeConfig
from dasktune.errors import TuneError, check
from dasktune.results.result import Result
from dasktune.text.formatting import plural
from dasktune.trial.status import PublicStatus
from dasktune.tuner.analysis import ExperimentAnalysis
from dasktune.tuner.result_grid import ResultGrid
from dasktune.tuner.tuner import Tuner


@document_options
def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    raise_on_failed_trial: bool = True,
    client: Any = None,
    **options: Any,
) -> ExperimentAnalysis:
    """Run an experiment to its end, and return an analysis of it.

    This is Ray Tune's older interface; new code should call ``Tuner(...).fit()``. Every argument
    may be None, which means its default.

    Parameters
    ----------
    run_or_experiment : callable, type, str or Experiment
        The trainable, its registered name, or an experiment.
    name : str, optional
        The experiment's name; by default the trainable's name and the date.
    resume : bool or str, optional
        True or ``"AUTO"`` resumes the experiment of this name, or starts it if there is none.
        ``"AUTO+ERRORED"`` also resumes failed trials; ``"AUTO+RESTART_ERRORED"`` restarts them.
        With ``_ONLY`` after either, unfinished trials are skipped.
    resume_config : ResumeConfig, optional
        More options for resuming, instead of `resume`.
    raise_on_failed_trial : bool, default=True
        Raise an error after all trials have ended, if one of them failed.
    client : optional
        The Dask cluster, as for `Tuner`.
    **options
        The search space, the resources of a trial, and all fields of the configurations.

    Returns
    -------
    ExperimentAnalysis
        The analysis of all trials.

    Raises
    ------
    ConfigError
        If an argument is invalid, or is not supported on Dask. Nothing has been started then.
    TuneError
        If a trial failed, unless `raise_on_failed_trial` is False.

    Examples
    --------
    >>> import dasktune as tune
    >>> analysis = tune.run(  # doctest: +SKIP
    ...     lambda config: {"loss": config["x"] ** 2},
    ...     config={"x": tune.uniform(-1, 1)}, num_samples=10, metric="loss", mode="min",
    ... )
    >>> analysis.best_config  # doctest: +SKIP
    {'x': 0.03}
    """
    experiment = as_experiment(run_or_experiment, name).with_options(options)
    tuner = experiment.tuner(client, as_resume_config(resume, resume_config))
    results = tuner.fit()
    interrupted = tuner.runner is not None and tuner.runner.interrupted
    if raise_on_failed_trial and not interrupted:
        _check_none_failed(results)
    return _analysis(results, experiment)


@document_options
def run_experiments(
    experiments: Any,
    *,
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    raise_on_failed_trial: bool = True,
    concurrent: bool = True,
    client: Any = None,
    **options: Any,
) -> list[Result]:
    """Run several experiments, and return the results of all their trials.

    Parameters
    ----------
    experiments : Experiment, mapping, or a list of these
        A mapping is ``{name: {"run": train, "config": ..., ...}}``.
    resume, resume_config
        As for :func:`run`, for each experiment.
    raise_on_failed_trial : bool, default=True
        Raise an error after all trials have ended, if one of them failed.
    concurrent : bool, default=True
        Run all experiments at the same time on one cluster, instead of one after the other. Ctrl-C
        interrupts all of them.
    client : optional
        The Dask cluster, as for `Tuner`.
    **options
        Arguments of :func:`run` that the experiments do not set. Each experiment copies a given
        `scheduler`.

    Returns
    -------
    list of Result
        The results, in the order of the experiments.

    Raises
    ------
    ConfigError
        If an argument is invalid, or two experiments have the same name.
    TuneError
        If a trial failed, unless `raise_on_failed_trial` is False.

    Examples
    --------
    >>> run_experiments({"first": {"run": train}, "second": {"run": train}})  # doctest: +SKIP
    """
    from dasktune.cluster.connection.connect import connect

    given = [one.with_options(options) for one in as_experiments(experiments)]
    names = [one.name for one in given if one.name is not None]
    check(len(names) == len(set(names)), "names of experiments", "different", names)
    request = as_resume_config(resume, resume_config)
    with closing(connect(client)) as connection:
        tuners = [one.tuner(connection.client, request) for one in given]
        grids = _fit_all(tuners) if concurrent else _fit_in_turn(tuners)
    if raise_on_failed_trial:
        _check_none_failed(*grids)
    return [result for grid in grids for result in grid]


def _fit_all(tuners: Sequence[Tuner]) -> list[ResultGrid]:
    async def fit_all() -> list[ResultGrid]:
        return await asyncio.gather(*(tuner.fit_async() for tuner in tuners))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(fit_all())
    # In a notebook this thread runs an event loop already, so use another thread.
    with ThreadPoolExecutor(1, "dasktune-experiments") as pool:
        return pool.submit(asyncio.run, fit_all()).result()


def _fit_in_turn(tuners: Sequence[Tuner]) -> list[ResultGrid]:
    grids = []
    for left, tuner in zip(reversed(range(len(tuners))), tuners, strict=True):
        grids.append(tuner.fit())
        if left and tuner.runner is not None and tuner.runner.interrupted:
            # Who interrupts one experiment does not want the next one to begin.
            raise KeyboardInterrupt
    return grids


def _analysis(results: ResultGrid, experiment: Experiment) -> ExperimentAnalysis:
    return ExperimentAnalysis(
        results.experiment_path,
        storage_options=experiment.options.get("storage_options"),
        trials=list(results),
        default_metric=experiment.options.get("metric"),
        default_mode=experiment.options.get("mode"),
    )


def _check_none_failed(*grids: ResultGrid) -> None:
    failed = [one for grid in grids for one in grid if one.status is PublicStatus.ERROR]
    if failed:
        failures = "\n".join(f"  {one.path}: {one.reason}" for one in failed)
        paths = ", ".join(repr(grid.experiment_path) for grid in grids)
        raise TuneError(
            f"{len(failed)} {plural('trial', len(failed))} failed:\n{failures}\n"
            "Their tracebacks are in error.txt. "
            f"For the other results use ExperimentAnalysis({paths}), or raise_on_failed_trial=False"
        )
