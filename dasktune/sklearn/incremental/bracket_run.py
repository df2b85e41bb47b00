"""Run an incremental search: one experiment trains the models of one or more brackets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any
from warnings import warn

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics import check_scoring
from sklearn.utils import check_random_state

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import check
from dasktune.progress.background_stream import BackgroundStream
from dasktune.sklearn.compat import SklearnContext, indexable
from dasktune.sklearn.fits.backend import compute_collections, is_collection, is_delayed, is_lazy
from dasktune.sklearn.fits.class_labels import classes_of, labels_of, merge_labels
from dasktune.sklearn.fits.cluster_data import as_indexable
from dasktune.sklearn.fits.engine import Backend
from dasktune.sklearn.fits.search_experiment import SearchExperiment, SearchOutcome, run_experiment
from dasktune.sklearn.incremental.blocks import (
    Block,
    BlockOrder,
    Blocks,
    LocalBlocks,
    RemoteBlocks,
    TrainTestBlocks,
    choose_holdout,
    concatenate_blocks,
    held_out_rows,
    is_per_sample,
    materialize,
)
from dasktune.sklearn.incremental.metadata_routing import (
    Routed,
    select_per_sample,
    split_by_consumer,
)
from dasktune.sklearn.incremental.model_trial import ModelJob, ModelTrial
from dasktune.sklearn.incremental.synchronous_scheduler import (
    Bracket,
    ModelQueue,
    SynchronousScheduler,
)
from dasktune.sklearn.steps.candidate_space import check_candidates
from dasktune.trainable import with_parameters
from dasktune.trial.trial import Trial

logger = logging.getLogger("dasktune.sklearn")


@dataclass(frozen=True, slots=True, kw_only=True)
class BracketTask:
    """The validated arguments of one call of `fit`.

    Parameters
    ----------
    estimator : estimator
        The estimator to tune. Each model is a clone of it with other parameters.
    X, y : object
        The samples and their targets.
    fit_params : mapping
        Further parameters of `fit`.
    routed : Routed
        The names of the parameters in `fit_params` that the models get, and that the scorer gets.
    scorer : callable
        ``scorer(model, X, y)`` returns a score; higher is better.
    error_score : float or "raise"
        Score of a model that fails; ``"raise"`` raises the exception of the first failed model.
    """

    estimator: Any
    X: Any
    y: Any
    fit_params: Mapping[str, Any]
    routed: Routed
    scorer: Any
    error_score: Any = np.nan

    @classmethod
    def of(cls, search: Any, X: Any, y: Any, fit_params: dict[str, Any]) -> BracketTask:
        """Return the task of a search, with Dask futures replaced by their results.

        If `X` is a Dask collection, no collection is computed. Otherwise all collections in
        `y` and `fit_params` are computed. If `X` is a delayed object, it is one block, and only
        a delayed `y` is not computed.
        """
        estimator, fit_params = search.estimator, dict(fit_params)
        if any(hasattr(one, "key") for one in (estimator, *fit_params.values())):
            # An object with a key may be a Dask future. Dask is imported only in this case.
            from dasktune.cluster.data.collections import resolve

            estimator = resolve(estimator)
            fit_params = {name: resolve(one) for name, one in fit_params.items()}
        X, y, fit_params = _computed(search.client, X, y, fit_params)
        if not hasattr(estimator, "partial_fit"):
            raise TypeError(
                f"estimator must have partial_fit(), got {estimator!r}, which has none. "
                "Use RandomizedSearchCV or HalvingRandomSearchCV instead."
            )
        is_name = search.scoring is None or isinstance(search.scoring, str)
        rule = "a str, a function or None, because models are compared by one number"
        check(is_name or callable(search.scoring), "scoring", rule, search.scoring)
        scorer = check_scoring(estimator, scoring=search.scoring)
        return cls(
            estimator=estimator,
            X=X,
            y=y,
            fit_params=fit_params,
            routed=Routed.of(search, scorer, fit_params),
            scorer=scorer,
            error_score=search.error_score,
        )

    @property
    def needs_classes(self) -> bool:
        """Whether `partial_fit` needs `classes`, and the caller of `fit` has not passed them."""
        return (
            self.y is not None
            and "classes" not in self.routed.fit
            and is_classifier(self.estimator)
            and "classes" in signature(self.estimator.partial_fit).parameters
        )


def _computed(client: Any, X: Any, y: Any, fit_params: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Compute what cannot be split on the cluster as `X` is."""
    if is_collection(X):
        # Only its value shows whether a delayed object has an entry for each sample.
        delayed = {name: one for name, one in {"y": y, **fit_params}.items() if is_delayed(one)}
        known = compute_collections(client, None, None, delayed)[2]
        return X, known.pop("y", y), fit_params | known
    if is_delayed(X):
        stays = y if is_delayed(y) else None
        _, y, fit_params = compute_collections(client, None, None if stays is not None else y, fit_params)
        return as_indexable(X), y if stays is None else stays, fit_params
    X, y, fit_params = compute_collections(client, X, y, fit_params)
    return *indexable(X, y), fit_params


@dataclass(frozen=True, slots=True, kw_only=True)
class BracketRun:
    """A bracket: the models of one search, which are compared with each other.

    Parameters
    ----------
    search : BaseIncrementalSearchCV
        The search that chooses the parameters of the models, and decides how many more
        `partial_fit` calls each of them gets.
    max_calls : int, default=0
        Maximum number of `partial_fit` calls of a model. It affects only the order in which the
        trials of several brackets start.
    """

    search: Any
    max_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """The storage of a search's experiment.

    Parameters
    ----------
    storage_path : str or path, optional
        The storage: a folder or any fsspec URL. By default nothing is stored.
    name : str, optional
        The experiment's name.
    resume : bool, default=False
        Resume the experiment if it exists.
    arguments : mapping
        Arguments of the search that must have the same values when it resumes, by name.
    """

    storage_path: Any = None
    name: str | None = None
    resume: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class BracketOutcome:
    """The records and the best model of a finished bracket.

    Parameters
    ----------
    history : list of dict
        A record for each score of a model, in the order in which batches were completed.
    best : int
        The number of the model with the highest last score among the models that were not dropped.
        If all of these have failed, the best of the dropped models with the most calls.
    model : estimator or None
        The trained best model; None if all models failed.
    """

    history: list[dict[str, Any]]
    best: int
    model: Any = field(repr=False)

    @property
    def model_history(self) -> dict[int, list[dict[str, Any]]]:
        """The records of each model."""
        histories: dict[int, list[dict[str, Any]]] = {}
        for record in self.history:
            histories.setdefault(record["model_id"], []).append(record)
        return dict(sorted(histories.items()))


@dataclass(slots=True)
class _BracketSetup:
    """The random choices of a bracket: held-out rows, parameters and the order of blocks."""

    holdout: TrainTestBlocks
    params: list[dict[str, Any]]
    order: BlockOrder


def _set_up_bracket(search: Any, n_blocks: int) -> _BracketSetup:
    # The order of these calls matters: `random_state` may be one generator that all of them share.
    rng = check_random_state(search.random_state)
    holdout = choose_holdout(n_blocks, search.test_size, rng)
    params = [dict(one) for one in search._get_params()]
    # With an integer seed, this generator repeats the sequence of the first one. A shared generator
    # is copied, because `BlockOrder` draws from it later, while the models are trained.
    rng = deepcopy(check_random_state(search.random_state))
    return _BracketSetup(holdout, params, BlockOrder(n_blocks, rng))


def run_brackets(
    task: BracketTask, runs: Sequence[BracketRun], backend: Backend, storage: StorageOptions
) -> list[BracketOutcome]:
    """Run brackets in parallel as one experiment, and return their outcomes.

    Parameters
    ----------
    task : BracketTask
        The arguments of `fit`.
    runs : sequence of BracketRun
        The brackets, the one with the most models first. Their trials start in the reverse order.
    backend : Backend
        The cluster that trains the models, or this process.
    storage : StorageOptions
        The storage of the experiment.

    Raises
    ------
    Exception
        The exception of the first failed model, with ``error_score="raise"``.
    ValueError
        If all models fail, or there are no samples to train or score on.
    """
    with ExitStack() as stack:
        # All brackets share one logger and the `verbose` of their search.
        if runs[0].search.verbose:
            stack.enter_context(_log_to_stdout())
        prepared = stack.enter_context(_prepare_data(task, runs, backend))
        brackets = []
        error_score = np.nan if task.error_score == "raise" else float(task.error_score)
        for run, setup in zip(runs, prepared.setups, strict=True):
            logger.info("[CV%s] creating %d models", run.search.prefix, len(setup.params))
            _log_sizes(run.search.prefix, setup.holdout, prepared.sizes)
            check_candidates(task.estimator, setup.params)
            search = run.search
            brackets.append(
                Bracket(
                    setup.params,
                    search._additional_calls,
                    error_score,
                    run.max_calls,
                    search._save_policy,
                    search._load_policy,
                )
            )
        # Brackets with few models start first, because their batches complete soon. The random
        # choices above are still made in the order of `runs`.
        scheduler = SynchronousScheduler(brackets[::-1], on_batch=_batch_logger(runs[::-1]))
        experiment = _search_experiment(task, prepared, scheduler, storage, in_process=backend.in_process)
        search_outcome = stack.enter_context(run_experiment(experiment, backend))
        trials = {trial.trial_id: trial for trial in search_outcome.trials}
        _warn_of_failures(brackets, trials, task.error_score)
        return [_bracket_outcome(bracket, search_outcome) for bracket in brackets]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedData:
    """The blocks of the data, and the setups, classes and sizes derived from the blocks."""

    setups: list[_BracketSetup]
    blocks: Blocks
    #: Names of the parameters of `fit` with a value for each sample; the blocks hold the values.
    columns: Collection[str]
    #: All other parameters of `fit`.
    params: Mapping[str, Any]
    #: All classes, for models whose `partial_fit` needs them; else None.
    classes: Any
    #: Number of samples of each block.
    sizes: list[int]


def _search_experiment(
    task: BracketTask,
    prepared: _PreparedData,
    scheduler: SynchronousScheduler,
    storage: StorageOptions,
    *,
    in_process: bool,
) -> SearchExperiment:
    fit_columns, score_columns = task.routed.columns(prepared.columns)
    fit_params, score_params = task.routed.values(prepared.params)
    if prepared.classes is not None:
        fit_params["classes"] = prepared.classes
    job = ModelJob(
        estimator=task.estimator,
        scorer=task.scorer,
        orders=[setup.order for setup in prepared.setups],
        fit_params=fit_params,
        score_params=score_params,
        fit_columns=fit_columns,
        score_columns=score_columns,
        sklearn_context=None if in_process else SklearnContext.current(),
    )
    models = [(number, setup.params) for number, setup in enumerate(prepared.setups)]
    queue = ModelQueue(models[::-1])
    fail_fast: Any = "raise" if task.error_score == "raise" else False
    return SearchExperiment(
        trainable=with_parameters(ModelTrial, job=job, blocks=prepared.blocks),
        tune_config=TuneConfig(search_alg=queue, scheduler=scheduler, num_samples=1),
        run_config=RunConfig(
            name=storage.name,
            storage_path=storage.storage_path,
            verbose=0,
            # No checkpoint is kept in memory, so a waiting model survives the loss of its worker.
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_at_end=True, memory_limit=0),
            failure_config=FailureConfig(fail_fast=fail_fast),
        ),
        resume=storage.resume,
        # The outcome is read from the brackets of this scheduler, so a resumed run must not use the
        # stored one.
        use_new_policies=True,
        arguments=storage.arguments,
    )


@contextmanager
def _prepare_data(task: BracketTask, runs: Sequence[BracketRun], backend: Backend) -> Iterator[_PreparedData]:
    """Yield the prepared data, and keep it on the cluster while the ``with`` block runs."""
    if is_lazy(task.X) and not backend.in_process:
        with _prepare_on_cluster(task, runs, backend) as prepared:
            yield prepared
        return
    if is_lazy(task.X):
        from dasktune.cluster.data.partitions import local_partitions

        maybe_columns, params = split_by_consumer(None, task.fit_params)
        local_blocks, others = local_partitions(task.X, task.y, materialize, maybe_columns, is_per_sample)
        params |= compute_collections(None, None, None, others)[2]
        columns: Collection[str] = local_blocks[0].weights
    else:
        columns = select_per_sample(task.X, task.fit_params)
        params = {name: one for name, one in task.fit_params.items() if name not in columns}
        local_blocks = [Block(task.X, task.y, columns)]
    classes = None
    if task.needs_classes:
        classes = classes_of(task.estimator, merge_labels([_labels(one) for one in local_blocks]))
    sizes = [len(one) for one in local_blocks]
    setups = [_set_up_bracket(run.search, len(local_blocks)) for run in runs]
    _check_sizes(setups, sizes)
    blocks = LocalBlocks(local_blocks, [setup.holdout for setup in setups])
    yield _PreparedData(
        setups=setups, blocks=blocks, columns=tuple(columns), params=params, classes=classes, sizes=sizes
    )


@contextmanager
def _prepare_on_cluster(
    task: BracketTask, runs: Sequence[BracketRun], backend: Backend
) -> Iterator[_PreparedData]:
    from dasktune.cluster.data.partitions import persisted_partitions

    maybe_columns, params = split_by_consumer(backend.client, task.fit_params)
    with persisted_partitions(
        backend.client, task.X, task.y, materialize, maybe_columns, is_per_sample
    ) as placed:
        sizes, keys = placed.sizes, placed.keys
        setups = [_set_up_bracket(run.search, len(sizes)) for run in runs]
        _check_sizes(setups, sizes)
        classes = None
        if task.needs_classes:
            name = placed.join_parts(_labels, [None] * len(sizes), merge_labels)
            classes = classes_of(task.estimator, placed.fetch(name))
        held_out = [
            placed.join_parts(
                held_out_rows, [(setup.holdout, i) for i in range(len(sizes))], concatenate_blocks
            )
            for setup in setups
        ]
        blocks = RemoteBlocks(keys, held_out, [setup.holdout for setup in setups])
        others = compute_collections(backend.client, None, None, placed.others)[2]
        yield _PreparedData(
            setups=setups,
            blocks=blocks,
            columns=[name for name in maybe_columns if name not in others],
            params=params | others,
            classes=classes,
            sizes=sizes,
        )


def _labels(block: Block, _: None = None) -> list[Any]:
    return labels_of(block.y)


def _check_sizes(setups: Sequence[_BracketSetup], sizes: Sequence[int]) -> None:
    for setup in setups:
        share = setup.holdout.test_size
        # With 1, `TrainTestBlocks` would silently keep one training sample of each block.
        if not 0 <= share < 1:
            raise ValueError(f"'test_size' must be between 0 and 1. Got {share}")
        rows = [setup.holdout.rows(number, size) for number, size in enumerate(sizes)]
        for purpose, count in (
            ("train on", sum(len(train) for train, _ in rows)),
            ("score on", sum(len(test) for _, test in rows)),
        ):
            if not count:
                raise ValueError(
                    f"test_size={share} must leave samples to {purpose}, "
                    f"got n_samples={sum(sizes)} in {len(sizes)} blocks."
                )


def _log_sizes(prefix: str, holdout: TrainTestBlocks, sizes: Sequence[int]) -> None:
    train_sizes = [len(holdout.rows(number, size)[0]) for number, size in enumerate(sizes)]
    logger.info(
        "[CV%s] For training there are between %d and %d examples in each chunk",
        prefix,
        min(train_sizes),
        max(train_sizes),
    )


def _batch_logger(runs: Sequence[BracketRun]) -> Any:
    searches = [one.search for one in runs]
    return partial(_log_batch, searches, [0] * len(searches))


def _log_batch(searches: Sequence[Any], counts: list[int], index: int, records: list[dict[str, Any]]) -> None:
    """Log the best score of a batch of bracket `index`.

    `counts` holds the number of earlier batches of each bracket. A `verbose` of 0.1 logs every
    tenth batch.
    """
    search = searches[index]
    share = 1.0 if isinstance(search.verbose, bool) else float(search.verbose)
    number = counts[index]
    counts[index] += 1
    if not share or number % int(1 / share):
        return
    best = max(records, key=lambda record: np.nan_to_num(record["score"], nan=-np.inf))
    logger.info(
        "[CV%s] validation score of %0.4f received after %d partial_fit calls",
        search.prefix,
        best["score"],
        best["partial_fit_calls"],
    )


@contextmanager
def _log_to_stdout() -> Iterator[None]:
    """Print the messages of the logger ``dasktune.sklearn``, without waiting for the output."""
    stream = BackgroundStream(sys.stdout)
    handler = logging.StreamHandler(stream)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        stream.finish(1.0)


def _warn_of_failures(brackets: Sequence[Bracket], trials: Mapping[str, Trial], error_score: Any) -> None:
    total = sum(len(bracket.params) for bracket in brackets)
    reasons = [trials[key].reason for bracket in brackets for key in bracket.failed.values()]
    if not reasons:
        return
    counts = "\n".join(
        f"{'-' * 80}\n{reasons.count(reason)} fits failed with the following error:\n{reason}"
        for reason in dict.fromkeys(reasons)
    )
    if len(reasons) == total:
        raise ValueError(
            f"\nAll the {total} fits failed.\nIt is very likely that your model is misconfigured.\n"
            f"You can try to debug the error by setting error_score='raise'.\n\n"
            f"Below are more details about the failures:\n{counts}"
        )
    warn(
        f"\n{len(reasons)} fits failed out of a total of {total}.\n"
        f"The score on these train-test partitions for these parameters will be set to "
        f"{error_score}.\nIf these failures are not expected, you can try to debug them by setting "
        f"error_score='raise'.\n\nBelow are more details about the failures:\n{counts}",
        FitFailedWarning,
        stacklevel=6,
    )


def _bracket_outcome(bracket: Bracket, search_outcome: SearchOutcome) -> BracketOutcome:
    for record in bracket.history:
        record.pop("_adapt", None)
    candidates = bracket.info or bracket.last_eliminated
    if not candidates:
        # Every model of this bracket failed, and a model of another bracket did not: the search as
        # a whole still has a best model.
        return BracketOutcome(bracket.history, 0, None)
    scores = {number: records[-1]["score"] for number, records in sorted(candidates.items())}
    best = max(scores, key=lambda number: np.nan_to_num(scores[number], nan=-np.inf))
    trial_id = bracket.trials[best]
    (position,) = (i for i, one in enumerate(search_outcome.trials) if one.trial_id == trial_id)
    checkpoint = search_outcome.results[position].checkpoint
    assert checkpoint is not None, "every scored model has a checkpoint"
    return BracketOutcome(bracket.history, best, checkpoint.to_dict()["model"])
