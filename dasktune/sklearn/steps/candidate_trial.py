"""The trainable of ``TuneSearchCV``: one trial trains one candidate."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from dasktune.errors import check
from dasktune.sklearn.fits.fit_and_score import Data, Outcome, Split, from_metrics, to_metrics
from dasktune.sklearn.steps.candidate import Candidate, CandidateJob
from dasktune.sklearn.steps.pipeline_cache import TransformerCache, shared_cache
from dasktune.trainable import Trainable
from dasktune.trial.trial import Trial

#: The metric that schedulers and searchers optimise: the mean test score of the splits so far. With
#: several metrics it is the mean of `CandidateJob.metric`, or of the first one.
SCORE = "score"

#: The key of a result that holds the outcome of each split.
_OUTCOMES = "outcomes"

#: Seconds of training after which a checkpoint is requested. The loss of a worker costs at most
#: this time and one step.
_SAVE_EVERY: Final = 10.0


class CandidateTrial(Trainable):
    """Trains a candidate a little further on all splits in each step, and reports the scores.

    With the budget "folds", a step is a whole fit on the next split instead. The trial can be
    stopped, paused, moved and cloned after each step. Its checkpoints hold the estimators of all
    splits.

    A step at which the scheduler makes no decision is deferred to the next decision, unless the
    training until then takes long. Training several steps at once and scoring once is less work:
    histogram boosting bins its data in each fit, and a larger ensemble takes longer to score.
    """

    #: The cache of fitted transformers that the trials of this process share.
    cache: ClassVar[TransformerCache | None] = None

    def setup(  # type: ignore[override]
        self,
        config: dict[str, Any],
        job: CandidateJob,
        X: Any,
        y: Any,
        metadata: tuple[Mapping[str, Any], Mapping[str, Any]],
        splits: Sequence[Split],
    ) -> None:
        """Prepare the training of a candidate.

        Parameters
        ----------
        config : dict
            The configuration that the searcher suggested.
        job : CandidateJob
            The settings that all candidates share.
        X, y : object
            The samples and targets.
        metadata : tuple of mapping
            Metadata for ``fit`` and for the scorer.
        splits : sequence of tuple
            The sample indices of each split.
        """
        self._job = job
        self._data = Data(X=X, y=y, metadata=metadata)
        self._splits = splits
        # The class keeps a reference, too, so that the cache is not freed between two trials.
        self._cache = type(self).cache = shared_cache(job.token, len(splits))
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Prepare the training of another candidate on the same data and splits."""
        params = self._job.params(new_config)
        arguments = self._job, self._data, self._splits, params, self._cache
        self._candidate: Candidate = self._job.call(Candidate, *arguments)
        self._saved_at = time.monotonic()
        return True

    def step(self) -> dict[str, Any]:
        """Take a step; report the outcomes of all splits so far, or nothing if it is deferred."""
        candidate = self._candidate
        if self._may_defer():
            candidate.defer_step()
            return {}
        candidate.advance()
        outcomes = candidate.outcomes
        listed = [to_metrics(one) for one in outcomes]
        result = {**self._means(outcomes), _OUTCOMES: listed, "done": candidate.is_done}
        # A candidate that is done is never resumed, so it needs no checkpoint.
        is_long_ago = time.monotonic() - self._saved_at > _SAVE_EVERY
        if self._job.checkpoint_every is None and is_long_ago and not candidate.is_done:
            result["should_checkpoint"] = True
        return result

    def _may_defer(self) -> bool:
        job, number = self._job, self.iteration + 1
        if not job.defer_steps or job.by_folds or number >= job.max_steps:
            return False
        every = job.checkpoint_every
        is_due = (every and number % every == 0) or self.is_milestone()
        return not is_due and self._candidate.next_step_seconds <= job.max_deferred_seconds

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save the estimators of all splits."""
        self._saved_at = time.monotonic()
        candidate = self._candidate
        return {
            "step": candidate.step,
            "trained": candidate.trained_steps,
            "folds": candidate.folds,
            "params": candidate.params,
        }

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Resume from a checkpoint, perhaps with other parameters, as after an exploit."""
        candidate, wanted = self._candidate, self._candidate.params
        candidate.step, candidate.trained_steps = checkpoint["step"], checkpoint["trained"]
        candidate.folds, candidate.params = checkpoint["folds"], checkpoint["params"]
        if not self._job.by_folds:
            candidate.change_params(wanted)

    def _means(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Return the mean test score of each metric over the splits so far, and `SCORE`."""
        scores = [one["test_scores"] for one in outcomes]
        if not any(isinstance(one, Mapping) for one in scores):
            mean = _mean(scores)
            return {SCORE: mean, "mean_test_score": mean}
        # A failed fit has one score, even where the scoring function returns several.
        names = next(one for one in scores if isinstance(one, Mapping))
        columns = {
            name: [one.get(name, float("nan")) if isinstance(one, Mapping) else one for one in scores]
            for name in names
        }
        named = {name: _mean(column) for name, column in columns.items()}
        if self._job.judges:
            check_metric(list(names), self._job.metric)
        judged = named.get(self._job.metric, next(iter(named.values()), float("nan")))
        return {SCORE: judged, **{f"mean_test_{name}": mean for name, mean in named.items()}}


def check_metric(names: Sequence[str], metric: str | None) -> None:
    """Check that one of several metrics is named, by which candidates are judged.

    Parameters
    ----------
    names : sequence of str
        The names of all metrics.
    metric : str, optional
        The name of the metric.

    Raises
    ------
    ConfigError
        If it is not one of them.

    Examples
    --------
    >>> check_metric(["accuracy", "f1"], "f1")
    >>> check_metric(["accuracy", "f1"], None)
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: metric must be one of ['accuracy', 'f1'], with several metrics, \
got None. Give metric='accuracy', or refit='accuracy' to choose the best candidate by it, too.
    """
    known = list(names)
    check(
        metric in known,
        "metric",
        f"one of {known}, with several metrics",
        metric,
        f"Give metric={known[0]!r}, or refit={known[0]!r} to choose the best candidate by it, too.",
    )


def _mean(scores: Sequence[Any]) -> float:
    return float(np.mean(scores))


def outcomes_of(result: Mapping[str, Any]) -> list[Outcome]:
    """Return the outcome of each split in a trial's result.

    Parameters
    ----------
    result : mapping
        The result; an empty one has no outcomes.
    """
    return [from_metrics(one) for one in result.get(_OUTCOMES, ())]


def last_scored(trial: Trial) -> Mapping[str, Any]:
    """Return the last result of a trial that has scores; an empty one if there is none.

    Parameters
    ----------
    trial : Trial
        The trial. It may have ended while its last steps were deferred.
    """
    return next((row for row in reversed(trial.history) if _OUTCOMES in row), {})
