"""What has come of a search's candidates, in the words of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.first_error import raise_error_of
from dasktune.sklearn.candidate_trial import last_scored, outcomes_of
from dasktune.sklearn.evaluation import NOTHING_FITTED, Outcome, failed_outcome
from dasktune.sklearn.plan import Carried
from dasktune.sklearn.training import Course
from dasktune.trial.trial import Trial

__all__ = ["Read"]


class Read:
    """What has come of all candidates, in their order.

    Parameters
    ----------
    course : Course
        What they had in common.
    carried : Carried
        The experiment.
    is_lean : bool
        Whether there are no columns but scikit-learn's.

    Raises
    ------
    Exception
        What a candidate has raised, where that is no score.
    ValueError
        If nothing was fitted.
    """

    def __init__(self, course: Course, carried: Carried, *, is_lean: bool) -> None:
        self._course = course
        self.trials = carried.trials
        rows = [self._outcomes(trial, carried) for trial in self.trials]
        known = [outcome for row in rows for outcome in row if outcome["fit_error"] is None]
        if not any(rows):
            raise ValueError(NOTHING_FITTED)
        #: The scores of a fit: a number, or a dict of several metrics.
        self.first: Any = (known or [one for row in rows for one in row])[0]["test_scores"]
        self.is_partial = any(len(row) < course.n_splits for row in rows)
        self.outcomes = [one for row in rows for one in self._padded(row)]
        self.candidates = [course.params(trial.config) for trial in self.trials]
        self.columns = {} if is_lean else self._columns(rows)

    def _outcomes(self, trial: Trial, carried: Carried) -> list[Outcome]:
        course = self._course
        if trial.public_status.value != "ERROR":
            return outcomes_of(last_scored(trial))
        if trial.error is not None and carried.raised is not None:
            raise carried.raised
        if trial.error is not None or course.error_score == "raise":
            raise_error_of(trial)
        return [failed_outcome(course, trial.reason) for _ in range(course.n_splits)]

    def _padded(self, row: Sequence[Outcome]) -> list[Outcome]:
        """Return outcomes for all splits: not a number for those that it did not come to."""
        score: Any = float("nan")
        if isinstance(self.first, Mapping):
            score = dict.fromkeys(self.first, score)
        none: Outcome = {"fit_error": None, "n_test_samples": 0}
        none |= {"fit_time": 0.0, "score_time": 0.0, "test_scores": score}
        if self._course.return_train_score:
            none["train_scores"] = score
        return [*row, *(dict(none) for _ in range(self._course.n_splits - len(row)))]

    def _columns(self, rows: Sequence[Sequence[Outcome]]) -> dict[str, list[Any]]:
        failed = [any(one["fit_error"] is not None for one in row) for row in rows]
        statuses = (trial.public_status.value for trial in self.trials)
        return {
            "training_iteration": [
                int(last_scored(trial).get("training_iteration", 0)) for trial in self.trials
            ],
            "trial_id": [trial.trial_id for trial in self.trials],
            "status": [
                "ERROR" if bad else status for bad, status in zip(failed, statuses, strict=True)
            ],
            "time_total_s": [
                float(trial.last_result.get("time_total_s", 0.0)) for trial in self.trials
            ],
        }
