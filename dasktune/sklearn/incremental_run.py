"""One run of an incremental search: models of some brackets on the blocks of one data set."""

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
from dasktune.sklearn.batches import BatchScheduler, Bracket, ModelQueue
from dasktune.sklearn.blocks import (
    Block,
    BlockOrder,
    Blocks,
    Division,
    LocalBlocks,
    RemoteBlocks,
    divided,
    held_out_of,
    is_of_samples,
    joined,
    made,
)
from dasktune.sklearn.candidates import check_candidates
from dasktune.sklearn.compat import Surroundings, indexable
from dasktune.sklearn.engine import Site
from dasktune.sklearn.model_trial import ModelJob, ModelTrial
from dasktune.sklearn.plan import Carried, Plan, carried_out
from dasktune.sklearn.predictions import is_collection
from dasktune.sklearn.routing import Routed, of_samples, sorted_out
from dasktune.sklearn.site import in_memory
from dasktune.sklearn.targets import classes_of, joined_labels, labels_of
from dasktune.trainable import with_parameters
from dasktune.trial.trial import Trial

__all__ = ["Contest", "Keep", "Outcome", "Task", "run_contests"]

logger = logging.getLogger("dasktune.sklearn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What `fit` was called for.

    Parameters
    ----------
    estimator : estimator
        Each model is a clone of it.
    X, y : object
        The data.
    fit_params : mapping
        What else `fit` was given.
    routed : Routed
        Who gets what of it.
    scorer : callable
        Scores a model.
    error_score : float or "raise"
        Score of a model that fails.
    """

    estimator: Any
    X: Any
    y: Any
    fit_params: Mapping[str, Any]
    routed: Routed
    scorer: Any
    error_score: Any = np.nan

    @classmethod
    def of(cls, search: Any, X: Any, y: Any, fit_params: dict[str, Any]) -> Task:
        """Return the task of a search, with what is small in memory."""
        estimator, fit_params = search.estimator, dict(fit_params)
        if any(hasattr(one, "key") for one in (estimator, *fit_params.values())):
            # Perhaps futures of Dask.
            from dasktune.cluster.collections import resolved

            estimator = resolved(estimator)
            fit_params = {name: resolved(one) for name, one in fit_params.items()}
        if not is_collection(X):
            X, y, fit_params = in_memory(search.client, X, y, fit_params)
            X, y = indexable(X, y)
        if not hasattr(estimator, "partial_fit"):
            raise TypeError(
                f"estimator must have partial_fit(), got {estimator!r}, which has none. "
                "Search with RandomizedSearchCV, or HalvingRandomSearchCV."
            )
        is_one = search.scoring is None or isinstance(search.scoring, str)
        rule = "a str, a function or None, for models are compared by one number"
        check(is_one or callable(search.scoring), "scoring", rule, search.scoring)
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
    def wants_classes(self) -> bool:
        """Whether the models must be told the classes, and are not."""
        return (
            self.y is not None
            and "classes" not in self.routed.fit
            and is_classifier(self.estimator)
            and "classes" in signature(self.estimator.partial_fit).parameters
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A search whose models are compared with each other.

    Parameters
    ----------
    search : object
        Has `random_state`, `test_size`, `prefix` and `verbose`, and names parameters and decides.
    most_calls : int, default=0
        For how many calls its last models train at most; only for several contests.
    """

    search: Any
    most_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Where the experiment of a search is kept, if it is.

    Parameters
    ----------
    storage_path : str or path, optional
        By default nothing is kept.
    name : str, optional
        Of the experiment.
    resume : bool, default=False
        Go on with it if there is one.
    arguments : mapping
        What it is begun with.
    """

    storage_path: Any = None
    name: str | None = None
    resume: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """What has come of a contest.

    Parameters
    ----------
    history : list of dict
        All records, in the order in which batches were complete.
    best : int
        The model with the highest last score of all that were left; if those have failed, of those
        that were given up last.
    model : estimator or None
        That model, trained; None if all have failed.
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
class _Draw:
    """What is random of a contest."""

    division: Division
    params: list[dict[str, Any]]
    order: BlockOrder


def _drawn(search: Any, n_blocks: int) -> _Draw:
    # In this order, where one generator is used for all.
    rng = check_random_state(search.random_state)
    division = divided(n_blocks, search.test_size, rng)
    params = [dict(one) for one in search._get_params()]
    # What was given by number begins anew each time.
    rng = deepcopy(check_random_state(search.random_state))
    return _Draw(division, params, BlockOrder(n_blocks, rng))


def run_contests(task: Task, contests: Sequence[Contest], site: Site, keep: Keep) -> list[Outcome]:
    """Run some contests side by side, and return what came of each.

    Parameters
    ----------
    task : Task
        What for.
    contests : sequence of Contest
        The contests, the most adaptive one first. Their models begin in the reverse order.
    site : Site
        Where.
    keep : Keep
        What remains of it.

    Raises
    ------
    Exception
        What the first model to fail has raised, with ``error_score="raise"``.
    ValueError
        If all models fail, or there is nothing to train or score on.
    """
    with ExitStack() as stack:
        # A search that was given its own logging needs none; all contests share it.
        if contests[0].search.verbose:
            stack.enter_context(_printed())
        prepared = stack.enter_context(_prepared(task, contests, site))
        brackets = []
        error_score = np.nan if task.error_score == "raise" else float(task.error_score)
        for contest, draw in zip(contests, prepared.draws, strict=True):
            logger.info("[CV%s] creating %d models", contest.search.prefix, len(draw.params))
            _tell_sizes(contest.search.prefix, draw.division, prepared.sizes)
            check_candidates(task.estimator, draw.params)
            search = contest.search
            brackets.append(
                Bracket(
                    draw.params,
                    search._additional_calls,
                    error_score,
                    contest.most_calls,
                    search._save_policy,
                    search._load_policy,
                )
            )
        # Small batches, which are decided soon, are filled first. They draw last all the same.
        scheduler = BatchScheduler(brackets[::-1], on_batch=_teller(contests[::-1]))
        plan = _plan(task, prepared, scheduler, keep, in_process=site.in_process)
        carried = stack.enter_context(carried_out(plan, site))
        trials = {trial.trial_id: trial for trial in carried.trials}
        _warn_of_failures(brackets, trials, task.error_score)
        return [_outcome(bracket, carried) for bracket in brackets]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """All that a run needs of its data."""

    draws: list[_Draw]
    blocks: Blocks
    #: What has a value for each sample, and is in the blocks.
    columns: Collection[str]
    #: What has not.
    params: Mapping[str, Any]
    #: All classes, for models that must be told; None for others.
    classes: Any
    #: How many samples each block has.
    sizes: list[int]


def _plan(
    task: Task,
    prepared: _Prepared,
    scheduler: BatchScheduler,
    keep: Keep,
    *,
    in_process: bool,
) -> Plan:
    fit_columns, score_columns = task.routed.columns(prepared.columns)
    fit_params, score_params = task.routed.values(prepared.params)
    if prepared.classes is not None:
        fit_params["classes"] = prepared.classes
    job = ModelJob(
        estimator=task.estimator,
        scorer=task.scorer,
        orders=[draw.order for draw in prepared.draws],
        fit_params=fit_params,
        score_params=score_params,
        fit_columns=fit_columns,
        score_columns=score_columns,
        surroundings=None if in_process else Surroundings.current(),
    )
    models = [(number, draw.params) for number, draw in enumerate(prepared.draws)]
    queue = ModelQueue(models[::-1])
    fail_fast: Any = "raise" if task.error_score == "raise" else False
    return Plan(
        trainable=with_parameters(ModelTrial, job=job, blocks=prepared.blocks),
        tune_config=TuneConfig(search_alg=queue, scheduler=scheduler, num_samples=1),
        run_config=RunConfig(
            name=keep.name,
            storage_path=keep.storage_path,
            verbose=0,
            # A model that waits is in the storage, and lost with no worker.
            checkpoint_config=CheckpointConfig(
                num_to_keep=1, checkpoint_at_end=True, memory_limit=0
            ),
            failure_config=FailureConfig(fail_fast=fail_fast),
        ),
        resume=keep.resume,
        # What is told is read from these brackets.
        renewed=True,
        arguments=keep.arguments,
    )


@contextmanager
def _prepared(task: Task, contests: Sequence[Contest], site: Site) -> Iterator[_Prepared]:
    """Yield what a run needs, for as long as its data is kept."""
    if is_collection(task.X) and not site.in_process:
        with _on_cluster(task, contests, site) as prepared:
            yield prepared
        return
    if is_collection(task.X):
        from dasktune.cluster.blocks import blocks_here

        more, params = sorted_out(None, task.fit_params)
        whole, others = blocks_here(task.X, task.y, made, more, is_of_samples)
        params |= in_memory(None, None, None, others)[2]
        columns: Collection[str] = whole[0].weights
    else:
        columns = of_samples(task.X, task.fit_params)
        params = {name: one for name, one in task.fit_params.items() if name not in columns}
        whole = [Block(task.X, task.y, columns)]
    classes = None
    if task.wants_classes:
        classes = classes_of(task.estimator, joined_labels([_labels(one) for one in whole]))
    sizes = [len(one) for one in whole]
    draws = [_drawn(contest.search, len(whole)) for contest in contests]
    _check_sizes(draws, sizes)
    blocks = LocalBlocks(whole, [draw.division for draw in draws])
    yield _Prepared(
        draws=draws,
        blocks=blocks,
        columns=tuple(columns),
        params=params,
        classes=classes,
        sizes=sizes,
    )


@contextmanager
def _on_cluster(task: Task, contests: Sequence[Contest], site: Site) -> Iterator[_Prepared]:
    from dasktune.cluster.blocks import placed_blocks

    more, params = sorted_out(site.client, task.fit_params)
    with placed_blocks(site.client, task.X, task.y, made, more, is_of_samples) as placed:
        sizes, keys = placed.sizes, placed.keys
        draws = [_drawn(contest.search, len(sizes)) for contest in contests]
        _check_sizes(draws, sizes)
        classes = None
        if task.wants_classes:
            name = placed.joined(_labels, [None] * len(sizes), joined_labels)
            classes = classes_of(task.estimator, placed.fetch(name))
        held_out = [
            placed.joined(held_out_of, [(draw.division, i) for i in range(len(sizes))], joined)
            for draw in draws
        ]
        blocks = RemoteBlocks(keys, held_out, [draw.division for draw in draws])
        others = in_memory(site.client, None, None, placed.others)[2]
        yield _Prepared(
            draws=draws,
            blocks=blocks,
            columns=[name for name in more if name not in others],
            params=params | others,
            classes=classes,
            sizes=sizes,
        )


def _labels(block: Block, _: None = None) -> list[Any]:
    return labels_of(block.y)


def _check_sizes(draws: Sequence[_Draw], sizes: Sequence[int]) -> None:
    for draw in draws:
        share = draw.division.test_size
        # Of all samples one of each block would be left to train on.
        if not 0 <= share < 1:
            raise ValueError(f"'test_size' must be between 0 and 1. Got {share}")
        rows = [draw.division.rows(number, size) for number, size in enumerate(sizes)]
        for purpose, count in (
            ("train on", sum(len(train) for train, _ in rows)),
            ("score on", sum(len(test) for _, test in rows)),
        ):
            if not count:
                raise ValueError(
                    f"test_size={share} must leave samples to {purpose}, "
                    f"got n_samples={sum(sizes)} in {len(sizes)} blocks."
                )


def _tell_sizes(prefix: str, division: Division, sizes: Sequence[int]) -> None:
    left = [len(division.rows(number, size)[0]) for number, size in enumerate(sizes)]
    logger.info(
        "[CV%s] For training there are between %d and %d examples in each chunk",
        prefix,
        min(left),
        max(left),
    )


def _teller(contests: Sequence[Contest]) -> Any:
    searches = [one.search for one in contests]
    return partial(_tell, searches, [0] * len(searches))


def _tell(
    searches: Sequence[Any], counts: list[int], place: int, records: list[dict[str, Any]]
) -> None:
    """Log what a batch has come to, as often as the search wants it."""
    search = searches[place]
    share = 1.0 if isinstance(search.verbose, bool) else float(search.verbose)
    number = counts[place]
    counts[place] += 1
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
def _printed() -> Iterator[None]:
    """Let what is logged be printed."""
    handler = logging.StreamHandler(sys.stdout)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _warn_of_failures(
    brackets: Sequence[Bracket], trials: Mapping[str, Trial], error_score: Any
) -> None:
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


def _outcome(bracket: Bracket, carried: Carried) -> Outcome:
    for record in bracket.history:
        record.pop("_adapt", None)
    left = bracket.info or bracket.given_up_last
    if not left:
        # Other brackets have models.
        return Outcome(bracket.history, 0, None)
    scores = {number: records[-1]["score"] for number, records in sorted(left.items())}
    best = max(scores, key=lambda number: np.nan_to_num(scores[number], nan=-np.inf))
    trial_id = bracket.trials[best]
    (position,) = (i for i, one in enumerate(carried.trials) if one.trial_id == trial_id)
    checkpoint = carried.results[position].checkpoint
    assert checkpoint is not None, "a model that is scored is saved"
    return Outcome(bracket.history, best, checkpoint.to_dict()["model"])
