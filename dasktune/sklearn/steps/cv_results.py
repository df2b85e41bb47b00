"""The results of a search's trials as rows for scikit-learn's ``cv_results_``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.sklearn.fits.fit_and_score import NOTHING_FITTED, Outcome, failed_outcome
from dasktune.sklearn.fits.search_experiment import SearchOutcome
from dasktune.sklearn.steps.candidate import CandidateJob
from dasktune.sklearn.steps.candidate_trial import last_scored, outcomes_of
from dasktune.trial.trial import Trial
from dasktune.tuner.raise_trial_error import reraise_trial_error


class CvResults:
    """The outcomes of all candidates, in the order of their trials.

    Parameters
    ----------
    job : CandidateJob
        The settings that all candidates share.
    search_outcome : SearchOutcome
        The finished experiment.
    is_lean : bool
        Whether to leave out all columns that scikit-learn does not have.
    is_endless : bool
        Whether the number of candidates had no limit. Then candidates that never began are left
        out, because the searcher suggests some of them in advance.

    Raises
    ------
    Exception
        The exception of a failed trial, if `error_score` does not replace it by a score.
    ValueError
        If nothing was fitted.
    """

    def __init__(
        self, job: CandidateJob, search_outcome: SearchOutcome, *, is_lean: bool, is_endless: bool
    ) -> None:
        self._job = job
        self.trials = [one for one in search_outcome.trials if one.incarnation or not is_endless]
        rows = [self._outcomes(trial, search_outcome) for trial in self.trials]
        known = [outcome for row in rows for outcome in row if outcome["fit_error"] is None]
        if not any(rows):
            raise ValueError(NOTHING_FITTED)
        #: The scores of the first successful fit: a number, or a dict of several metrics.
        self.first: Any = (known or [one for row in rows for one in row])[0]["test_scores"]
        self.is_partial = any(len(row) < job.n_splits for row in rows)
        #: Number of candidates with a score on each split.
        self.n_scored = sum(len(row) == job.n_splits for row in rows)
        #: Number of candidates that were ended before, but not by the scheduler.
        self.n_unfinished = sum(
            len(row) < job.n_splits and not trial.stopped_early
            for row, trial in zip(rows, self.trials, strict=True)
        )
        self.outcomes = [one for row in rows for one in self._pad(row)]
        self.candidates = [job.params(trial.config) for trial in self.trials]
        self.columns = {} if is_lean else self._columns(rows)

    def _outcomes(self, trial: Trial, search_outcome: SearchOutcome) -> list[Outcome]:
        job = self._job
        if trial.public_status.value != "ERROR":
            return outcomes_of(last_scored(trial))
        if trial.error is not None and search_outcome.raised is not None:
            raise search_outcome.raised
        if trial.error is not None or job.error_score == "raise":
            reraise_trial_error(trial)
        return [failed_outcome(job, trial.reason) for _ in range(job.n_splits)]

    def _pad(self, row: Sequence[Outcome]) -> list[Outcome]:
        """Return an outcome for each split, with NaN for splits that the trial did not reach."""
        score: Any = float("nan")
        if isinstance(self.first, Mapping):
            score = dict.fromkeys(self.first, score)
        none: Outcome = {"fit_error": None, "n_test_samples": 0}
        none |= {"fit_time": 0.0, "score_time": 0.0, "test_scores": score}
        if self._job.return_train_score:
            none["train_scores"] = score
        return [*row, *(dict(none) for _ in range(self._job.n_splits - len(row)))]

    def _columns(self, rows: Sequence[Sequence[Outcome]]) -> dict[str, list[Any]]:
        failed = [any(one["fit_error"] is not None for one in row) for row in rows]
        statuses = [trial.public_status.value if trial.incarnation else "PENDING" for trial in self.trials]
        return {
            "training_iteration": [
                int(last_scored(trial).get("training_iteration", 0)) for trial in self.trials
            ],
            "trial_id": [trial.trial_id for trial in self.trials],
            "status": ["ERROR" if bad else status for bad, status in zip(failed, statuses, strict=True)],
            "time_total_s": [float(trial.last_result.get("time_total_s", 0.0)) for trial in self.trials],
        }
