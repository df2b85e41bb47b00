"""One fit of a search: a candidate is fitted on a split's training samples and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

from sklearn.base import clone

from dasktune.sklearn.compat import MultimetricScorer, SklearnContext, fit_and_score

#: The message of a search without candidates or without splits.
NOTHING_FITTED: Final = "No fits were performed. Was the CV iterator empty? Were there no candidates?"

#: Indices of the training samples and of the test samples.
Split: TypeAlias = tuple[Any, Any]

#: The dict that scikit-learn's ``_fit_and_score`` returns: scores, times, and the error if any.
Outcome: TypeAlias = dict[str, Any]

#: The keys of an outcome that hold scores: a number, or a dict of numbers by metric.
_SCORES = ("test_scores", "train_scores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The settings that all fits of a search share, without the data.

    Parameters
    ----------
    estimator : estimator
        The unfitted estimator; each fit clones it.
    scorer : callable
        The scorer, or a scorer of several metrics.
    return_train_score : bool
        Whether to score the training samples, too.
    error_score : float or "raise"
        Score of a fit that fails.
    verbose : int
        How much each fit prints.
    n_splits : int
        Number of splits, and so of fits of each candidate.
    sklearn_context : SklearnContext, optional
        The configuration to restore where the fit runs; None if it runs in the calling thread.
    caller : estimator, optional
        The search itself, for its callbacks.
    """

    estimator: Any
    scorer: Any
    return_train_score: bool
    error_score: Any
    verbose: int
    n_splits: int
    sklearn_context: SklearnContext | None = None
    caller: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The samples, targets and metadata of a search."""

    X: Any
    y: Any
    #: Metadata for `fit` and for the scorer, in one tuple: both may hold the same arrays, which are
    #: then pickled once.
    metadata: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One fit: a candidate and the number of a split."""

    params: Mapping[str, Any]
    candidate: int
    #: Number of candidates; 0 if it is unknown.
    n_candidates: int
    split: int
    #: The context of scikit-learn's callbacks; None without callbacks.
    context: Any = None
    #: Whether the parameters have the values of secrets, which ``verbose`` must not print.
    has_secrets: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields as a dict: plain data pickles faster than an object of a class."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def evaluate(fit: Fit, split: Split, job: Job, data: Data) -> Outcome:
    """Fit and score a candidate on a split.

    Parameters
    ----------
    fit : Fit
        The candidate and the number of the split.
    split : tuple of array
        The sample indices.
    job : Job
        The settings that all fits share.
    data : Data
        The samples, their targets and the metadata.

    Raises
    ------
    Exception
        The exception of the candidate's code, if `error_score` does not replace it.
    """
    call = _call_directly if job.sklearn_context is None else job.sklearn_context.call
    train, test = split
    estimator, params = clone(job.estimator), fit.params
    if fit.has_secrets:
        # `fit_and_score` prints the parameters that it sets.
        estimator.set_params(**clone(dict(params), safe=False))
        params = {}
    outcome: Outcome = call(
        fit_and_score,
        estimator,
        data.X,
        data.y,
        train=train,
        test=test,
        parameters=params,
        split_progress=(fit.split, job.n_splits),
        candidate_progress=(fit.candidate, fit.n_candidates) if fit.n_candidates else None,
        scorer=job.scorer,
        fit_params=data.metadata[0],
        score_params=data.metadata[1],
        return_train_score=job.return_train_score,
        return_n_test_samples=True,
        return_times=True,
        return_parameters=False,
        error_score=job.error_score,
        verbose=job.verbose,
        caller=job.caller,
        callback_ctx=fit.context,
    )
    return outcome


def _call_directly(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def run_fit(
    config: Mapping[str, Any],
    job: Job,
    X: Any,
    y: Any,
    metadata: tuple[Mapping[str, Any], Mapping[str, Any]],
    splits: Sequence[Split],
) -> dict[str, Any]:
    """Run one fit as a trial on a worker.

    Parameters
    ----------
    config : mapping
        ``"fit"``, the fields of the fit, and ``"samples"``, its split if it is not in `splits`.
    job : Job
        The settings that all fits share.
    X, y : object
        The samples and targets.
    metadata : tuple of mapping
        Metadata for ``fit`` and for the scorer.
    splits : sequence of tuple
        The sample indices of each split.
    """
    fit, samples = Fit(**config["fit"]), config["samples"]
    split = splits[fit.split] if samples is None else samples
    return to_metrics(evaluate(fit, split, job, Data(X=X, y=y, metadata=metadata)))


def failed_outcome(job: Job, reason: str) -> Outcome:
    """Return the outcome of a failed fit, with `error_score` as each score.

    Parameters
    ----------
    job : Job
        The settings of the fit; its `error_score` must be a number.
    reason : str
        Why it failed.
    """
    score = job.error_score
    if isinstance(job.scorer, MultimetricScorer):
        score = dict.fromkeys(job.scorer._scorers, score)
    outcome = {"fit_error": reason, "n_test_samples": 0, "fit_time": 0.0, "score_time": 0.0}
    names = _SCORES if job.return_train_score else _SCORES[:1]
    return outcome | {name: dict(score) if isinstance(score, dict) else score for name in names}


def to_metrics(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as the metrics of a trial's result.

    The user's metric names may contain any character, such as ``/``, so they become values, not
    keys.

    Parameters
    ----------
    outcome : dict
        The outcome, as scikit-learn returns it.

    Examples
    --------
    >>> to_metrics({"fit_time": 1.5, "test_scores": {"a/b": 0.5}})
    {'fit_time': 1.5, 'test_scores': [['a/b', 0.5]]}
    """
    return {name: _as_pairs(value) if name in _SCORES else value for name, value in outcome.items()}


def from_metrics(result: Mapping[str, Any]) -> Outcome:
    """Return the outcome of the fit that a trial's result reports.

    Parameters
    ----------
    result : mapping
        The result, with the automatic metrics of dasktune.

    Examples
    --------
    >>> from_metrics({"trial_id": "t1", "fit_time": 1.5, "test_scores": [["a/b", 0.5]]})
    {'test_scores': {'a/b': 0.5}, 'fit_time': 1.5}
    """
    names = ("fit_error", *_SCORES, "n_test_samples", "fit_time", "score_time")
    outcome = {name: result[name] for name in names if name in result}
    return {
        name: dict(value) if name in _SCORES and isinstance(value, list) else value
        for name, value in outcome.items()
    }


def _as_pairs(scores: Any) -> Any:
    return [list(item) for item in scores.items()] if isinstance(scores, Mapping) else scores
