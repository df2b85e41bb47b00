"""A candidate of a search as a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dasktune.sklearn.evaluation import Data, Outcome, Split, heard, told
from dasktune.sklearn.heads import Heads, heads_of
from dasktune.sklearn.training import Candidate, Course
from dasktune.trainable import Trainable

__all__ = ["SCORE", "CandidateTrial", "outcomes_of"]

#: What is judged: the mean of the test scores of the splits so far; of several metrics that which
#: decides.
SCORE = "score"

#: What is reported of each split.
_OUTCOMES = "outcomes"


class CandidateTrial(Trainable):
    """Trains a candidate on all splits by one step, or on the next split, and reports the scores.

    It can be stopped, paused, moved and cloned after each step. Its checkpoints hold the estimators
    of all splits.
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
        return True

    def step(self) -> dict[str, Any]:
        """Take a step, and report what has come of all splits so far."""
        candidate = self._candidate
        candidate.advance()
        outcomes = candidate.outcomes
        listed = [told(one) for one in outcomes]
        return {**self._means(outcomes), _OUTCOMES: listed, "done": candidate.is_done}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save the estimators of all splits."""
        candidate = self._candidate
        return {
            "step": candidate.step,
            "folds": candidate.folds,
            "params": candidate.params,
        }

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from there, perhaps with another configuration than that which led there."""
        candidate, wanted = self._candidate, self._candidate.params
        candidate.step, candidate.folds = checkpoint["step"], checkpoint["folds"]
        candidate.params = checkpoint["params"]
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
