"""One fit of a search: a candidate is fitted on one part of the data and scored on another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

from sklearn.base import clone

from dasktune.sklearn.compat import MultimetricScorer, Surroundings, fit_and_score

__all__ = [
    "NOTHING_FITTED",
    "Data",
    "Fit",
    "Job",
    "Outcome",
    "Split",
    "evaluate",
    "failed_outcome",
    "heard",
    "run_fit",
    "told",
]

#: What a search says that has nothing to try, or nothing to try it on.
NOTHING_FITTED: Final = (
    "No fits were performed. Was the CV iterator empty? Were there no candidates?"
)

#: Indices of the samples to fit on, and of those to score on.
Split: TypeAlias = tuple[Any, Any]

#: What scikit-learn has of a fit: scores, times, and why it failed.
Outcome: TypeAlias = dict[str, Any]

#: Those of an outcome that are a number, or a dict of numbers by the name of their metric.
_SCORES = ("test_scores", "train_scores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all fits of a search have in common, but for the data.

    Parameters
    ----------
    estimator : estimator
        Unfitted; each fit has a clone of its own.
    scorer : callable
        One scorer, or several in one.
    return_train_score : bool
        Whether the samples that it was fitted on are scored, too.
    error_score : float or "raise"
        Score of a fit that fails.
    verbose : int
        How much each fit prints.
    n_splits : int
        How many fits each candidate gets.
    surroundings : Surroundings, optional
        To be restored where the fit runs; None if it runs where the search was called.
    caller : estimator, optional
        The search itself, for its callbacks.
    """

    estimator: Any
    scorer: Any
    return_train_score: bool
    error_score: Any
    verbose: int
    n_splits: int
    surroundings: Surroundings | None = None
    caller: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is fitted and scored, and what goes along with it."""

    X: Any
    y: Any
    #: Metadata for `fit` and for the scorer; as one, for they may hold the same arrays.
    metadata: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A candidate on a split."""

    params: Mapping[str, Any]
    candidate: int
    #: How many there are; 0 if nobody knows.
    n_candidates: int
    split: int
    #: Of callbacks; None without.
    context: Any = None

    def fields(self) -> dict[str, Any]:
        """Return what makes it up: mostly plain data, which is pickled without a look for code."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def evaluate(fit: Fit, split: Split, job: Job, data: Data) -> Outcome:
    """Fit and score.

    Parameters
    ----------
    fit : Fit
        Which candidate.
    split : tuple of array
        On which samples.
    job : Job
        How.
    data : Data
        On what.

    Raises
    ------
    Exception
        What the candidate's code raised, where that is no score; any with ``error_score="raise"``.
    """
    call = _call if job.surroundings is None else job.surroundings.call
    train, test = split
    outcome: Outcome = call(
        fit_and_score,
        clone(job.estimator),
        data.X,
        data.y,
        train=train,
        test=test,
        parameters=fit.params,
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


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def run_fit(
    config: Mapping[str, Any],
    job: Job,
    X: Any,
    y: Any,
    metadata: tuple[Mapping[str, Any], Mapping[str, Any]],
    splits: Sequence[Split],
) -> dict[str, Any]:
    """Run a trial of a search on its worker.

    Parameters
    ----------
    config : mapping
        The fields of a fit, and its samples where those are none of `splits`.
    job : Job
        What all fits have in common.
    X, y : object
        The data.
    metadata : tuple of mapping
        What goes along with them.
    splits : sequence of tuple
        Indices of samples.
    """
    fit, samples = Fit(**config["fit"]), config["samples"]
    split = splits[fit.split] if samples is None else samples
    return told(evaluate(fit, split, job, Data(X=X, y=y, metadata=metadata)))


def failed_outcome(job: Job, reason: str) -> Outcome:
    """Return what a fit comes to whose worker is lost again and again.

    Parameters
    ----------
    job : Job
        Of the fit; its `error_score` is a number.
    reason : str
        What is known of it.
    """
    score = job.error_score
    if isinstance(job.scorer, MultimetricScorer):
        score = dict.fromkeys(job.scorer._scorers, score)
    outcome = {"fit_error": reason, "n_test_samples": 0, "fit_time": 0.0, "score_time": 0.0}
    names = _SCORES if job.return_train_score else _SCORES[:1]
    return outcome | {name: dict(score) if isinstance(score, dict) else score for name in names}


def told(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a trial reports it.

    The names of metrics are the user's and may hold anything, so they are values here and no keys.

    Parameters
    ----------
    outcome : dict
        As scikit-learn has it.

    Examples
    --------
    >>> told({"fit_time": 1.5, "test_scores": {"a/b": 0.5}})
    {'fit_time': 1.5, 'test_scores': [['a/b', 0.5]]}
    """
    return {name: _listed(value) if name in _SCORES else value for name, value in outcome.items()}


def heard(result: Mapping[str, Any]) -> Outcome:
    """Return the outcome that a trial has reported.

    Parameters
    ----------
    result : mapping
        What it reported, and what was added to that.

    Examples
    --------
    >>> heard({"trial_id": "t1", "fit_time": 1.5, "test_scores": [["a/b", 0.5]]})
    {'test_scores': {'a/b': 0.5}, 'fit_time': 1.5}
    """
    names = ("fit_error", *_SCORES, "n_test_samples", "fit_time", "score_time")
    outcome = {name: result[name] for name in names if name in result}
    return {
        name: dict(value) if name in _SCORES and isinstance(value, list) else value
        for name, value in outcome.items()
    }


def _listed(scores: Any) -> Any:
    return [list(item) for item in scores.items()] if isinstance(scores, Mapping) else scores
