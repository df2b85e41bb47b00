"""A candidate of a search as a trial."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from dasktune.sklearn.evaluation import Data, Outcome, Split, heard, told
from dasktune.sklearn.heads import Heads, heads_of
from dasktune.sklearn.training import Candidate, Course
from dasktune.trainable import Trainable
from dasktune.trial.trial import Trial

__all__ = ["SCORE", "CandidateTrial", "last_scored", "outcomes_of"]

#: What is judged: the mean of the test scores of the splits so far; of several metrics that which
#: decides.
SCORE = "score"

#: What is reported of each split.
_OUTCOMES = "outcomes"

#: Seconds of training after which a candidate is saved: a lost worker costs so much, and a step.
_SAVE_EVERY: Final = 10.0


class CandidateTrial(Trainable):
    """Trains a candidate on all splits by one step, or on the next split, and reports the scores.

    It can be stopped, paused, moved and cloned after each step. Its checkpoints hold the estimators
    of all splits.

    Steps that nobody decides about are put off to the next one that is, if that is not long from
    then: to train for several at once and to score once is less work. Trees that are grown further
    put their data into bins anew, and the more of them there are, the longer a score takes.
    """

    #: What its trials share in this process.
    heads: ClassVar[Heads | None] = None

    def setup(  # type: ignore[override]
        self,
        config: dict[str, Any],
        course: Course,
        X: Any,
        y: Any,
        metadata: tuple[Mapping[str, Any], Mapping[str, Any]],
        splits: Sequence[Split],
    ) -> None:
        """Begin with a candidate.

        Parameters
        ----------
        config : dict
            Which.
        course : Course
            What all candidates have in common.
        X, y : object
            The data.
        metadata : tuple of mapping
            What goes along with them.
        splits : sequence of tuple
            Samples of each split.
        """
        self._course = course
        self._data = Data(X=X, y=y, metadata=metadata)
        self._splits = splits
        # Held by the class, too: the next trial may begin when this one is gone.
        self._heads = type(self).heads = heads_of(course.token, len(splits))
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin with another candidate: data and splits stay."""
        params = self._course.params(new_config)
        arguments = self._course, self._data, self._splits, params, self._heads
        self._candidate: Candidate = self._course.call(Candidate, *arguments)
        self._saved_at = time.monotonic()
        return True

    def step(self) -> dict[str, Any]:
        """Take a step, and report what has come of all splits so far; nothing if it is put off."""
        candidate = self._candidate
        if self._may_put_off():
            candidate.put_off()
            return {}
        candidate.advance()
        outcomes = candidate.outcomes
        listed = [told(one) for one in outcomes]
        result = {**self._means(outcomes), _OUTCOMES: listed, "done": candidate.is_done}
        # What has come to its end needs no way to go on.
        is_long_ago = time.monotonic() - self._saved_at > _SAVE_EVERY
        if self._course.save_every is None and is_long_ago and not candidate.is_done:
            result["should_checkpoint"] = True
        return result

    def _may_put_off(self) -> bool:
        course, number = self._course, self.iteration + 1
        if not course.lazy or course.by_folds or number >= course.max_steps:
            return False
        every = course.save_every
        is_due = (every and number % every == 0) or self.is_milestone()
        return not is_due and self._candidate.backlog <= course.longest_backlog

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save the estimators of all splits."""
        self._saved_at = time.monotonic()
        candidate = self._candidate
        return {
            "step": candidate.step,
            "trained": candidate.trained,
            "folds": candidate.folds,
            "params": candidate.params,
        }

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from there, perhaps with another configuration than that which led there."""
        candidate, wanted = self._candidate, self._candidate.params
        candidate.step, candidate.trained = checkpoint["step"], checkpoint["trained"]
        candidate.folds, candidate.params = checkpoint["folds"], checkpoint["params"]
        if not self._course.by_folds:
            candidate.change(wanted)

    def _means(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Return the mean test scores of the splits so far, and that which is judged."""
        scores = [one["test_scores"] for one in outcomes]
        if not any(isinstance(one, Mapping) for one in scores):
            mean = _mean(scores)
            return {SCORE: mean, "mean_test_score": mean}
        # A fit that fails has one score, however many metrics a function returns.
        names = next(one for one in scores if isinstance(one, Mapping))
        columns = {
            name: [
                one.get(name, float("nan")) if isinstance(one, Mapping) else one for one in scores
            ]
            for name in names
        }
        named = {name: _mean(column) for name, column in columns.items()}
        judged = named.get(self._course.metric, next(iter(named.values()), float("nan")))
        return {SCORE: judged, **{f"mean_test_{name}": mean for name, mean in named.items()}}


def _mean(scores: Sequence[Any]) -> float:
    return float(np.mean(scores))


def outcomes_of(result: Mapping[str, Any]) -> list[Outcome]:
    """Return what a trial has reported of each split.

    Parameters
    ----------
    result : mapping
        The report; an empty one has none.
    """
    return [heard(one) for one in result.get(_OUTCOMES, ())]


def last_scored(trial: Trial) -> Mapping[str, Any]:
    """Return the last report of a trial that has scores; an empty one if there is none.

    Parameters
    ----------
    trial : Trial
        Who may have been ended when it had put off its last steps.
    """
    return next((row for row in reversed(trial.history) if _OUTCOMES in row), {})
