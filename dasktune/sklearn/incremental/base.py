"""The base class of the incremental searches, and their ``cv_results_``."""

from __future__ import annotations

import numbers
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np
from scipy.stats import rankdata
from sklearn.model_selection import ParameterGrid
from sklearn.utils.validation import check_is_fitted

from dasktune.errors import check
from dasktune.sklearn.fits.backend import choose_backend
from dasktune.sklearn.incremental.bracket_run import (
    BracketOutcome,
    BracketRun,
    BracketTask,
    StorageOptions,
    run_brackets,
)
from dasktune.sklearn.incremental.metadata_routing import router_of, score_params_of
from dasktune.sklearn.searches.base import AsyncFitMixin, ClusterSearchCV
from dasktune.sklearn.searches.plots import grid_of
from dasktune.sklearn.searches.predictions import BlockwisePredictions
from dasktune.tuner.result_grid import ResultGrid

#: Arguments of a search that do not affect its results. A resumed search may change them.
_NOT_IN_FINGERPRINT: Final = frozenset(
    {"client", "n_jobs", "name", "prefix", "resume", "storage_path", "verbose"}
    | {"predict_meta", "predict_proba_meta", "transform_meta"}
)


class _Fit(ClusterSearchCV):
    """Adds the `fit` of incremental searches, which trains models by ``partial_fit``."""

    scoring: Any
    n_jobs: Any
    error_score: Any
    verbose: Any
    prefix: str
    max_iter: Any
    random_state: Any
    storage_path: Any
    name: str | None
    resume: bool

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        self._check_arguments()
        task = BracketTask.of(self, X, y, fit_params)
        self._run(task)
        self.scorer_ = task.scorer
        return self

    def _check_arguments(self) -> None:
        if self.max_iter is not None and self.max_iter < 1:
            raise ValueError(f"Received max_iter={self.max_iter}. max_iter < 1 is not supported")
        share = 1.0 if isinstance(self.verbose, bool) else self.verbose
        if not 0 <= share <= 1:
            raise ValueError(f"verbose={self.verbose} does not satisfy 0 <= verbose <= 1")

        check(
            not self.resume
            or (
                self.storage_path is not None
                and self.name is not None
                and isinstance(self.random_state, numbers.Integral)
            ),
            "storage_path, name and an integer random_state",
            "given with resume=True",
            (self.storage_path, self.name, self.random_state),
        )

    def _storage_options(self, task: BracketTask) -> StorageOptions:
        """Return the storage of the experiment, with the arguments that a resume must repeat."""
        if self.storage_path is None:
            return StorageOptions()
        params = self.get_params(deep=False)
        arguments = {name: one for name, one in params.items() if name not in _NOT_IN_FINGERPRINT}
        arguments |= {"X": task.X, "y": task.y, "fit_params": task.fit_params}
        return StorageOptions(
            storage_path=self.storage_path, name=self.name, resume=self.resume, arguments=arguments
        )

    def _run(self, task: BracketTask) -> None:
        backend = choose_backend(self.client, self.n_jobs)
        (outcome,) = run_brackets(task, [BracketRun(search=self)], backend, self._storage_options(task))
        assert outcome.model is not None, "run_brackets raises if all models failed"
        self._set_results(outcome)


class BaseIncrementalSearchCV(AsyncFitMixin, BlockwisePredictions, _Fit):
    """Trains all models for some calls of ``partial_fit``, and the promising ones for more.

    Subclasses override :meth:`_get_params` and :meth:`_additional_calls`.
    """

    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None

    #: True, because scikit-learn offers methods such as `predict` only then. No refit takes place:
    #: the best model is already trained.
    refit = True
    #: Fixed, because models are scored on one held-out set instead of splits.
    cv = None
    return_train_score = False
    _parameter_constraints: ClassVar[dict[str, Any]] = {}

    parameters: Any
    random_state: Any
    test_size: Any

    def _get_params(self) -> Iterable[Mapping[str, Any]]:
        """Return the parameters of the models, by default all combinations."""
        combinations: Iterable[Mapping[str, Any]] = ParameterGrid(self.parameters)
        return combinations

    def _additional_calls(self, info: dict[int, list[dict[str, Any]]]) -> Mapping[int, int]:
        """Return the number of ``partial_fit`` calls of each model before it is scored again.

        Parameters
        ----------
        info : dict of int to list of dict
            The records of each model that has not been dropped, as in ``model_history_``.

        Returns
        -------
        dict of int to int
            0 keeps a model without further training; a missing model is dropped. If no model gets
            further calls, the search ends.
        """
        raise NotImplementedError

    def _save_policy(self) -> dict[str, Any]:
        """Return the state of :meth:`_additional_calls` between calls, as plain values."""
        return {}

    def _load_policy(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`_save_policy` returned, when a search resumes."""

    def _set_results(self, outcome: BracketOutcome) -> None:
        """Set the attributes of the fitted search."""
        self.history_ = outcome.history
        self.model_history_: dict[Any, list[dict[str, Any]]] = outcome.model_history
        self.cv_results_ = format_results(self.model_history_)
        self.best_index_ = outcome.best
        self.best_estimator_ = outcome.model
        self.best_score_ = float(self.cv_results_["test_score"][outcome.best])
        self.best_params_ = self.cv_results_["params"][outcome.best]
        self.n_splits_ = 1
        self.multimetric_ = False
        self._copy_from_best()

    def _to_plot(self) -> ResultGrid:
        found = []
        for records in self.model_history_.values():
            rows = [
                {
                    "score": float(one["score"]),
                    "training_iteration": int(one["partial_fit_calls"]),
                    "timestamp": float(one["elapsed_wall_time"]),
                }
                for one in records
            ]
            found.append((records[0]["params"], rows))
        return grid_of(found, "score")

    @contextmanager
    def _prepared_data(
        self, X: Any, y: Any, params: dict[str, Any]
    ) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        # `run_brackets` prepares the blocks itself.
        yield X, y, params

    def get_metadata_routing(self) -> Any:
        """Return the metadata router of this search.

        Returns
        -------
        MetadataRouter
            It routes parameters of ``fit`` to ``partial_fit`` of the models and to the scorer.
        """
        return router_of(self)

    def _copy_from_best(self) -> None:
        #: Number of `partial_fit` calls of the best model.
        self.n_iter_ = int(self.cv_results_["partial_fit_calls"][self.best_index_])
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _score(self, X: Any, y: Any = None, **params: Any) -> Any:
        check_is_fitted(self, "best_estimator_")
        targets = () if y is None else (y,)
        return self.scorer_(self.best_estimator_, X, *targets, **score_params_of(self, params))


def format_results(histories: Mapping[Any, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return `cv_results_`, with a row for each model.

    Parameters
    ----------
    histories : mapping
        The records of each model.
    """
    rows = [_model_row(number, records) for number, records in histories.items()]
    columns: dict[str, list[Any]] = {key: [row[key] for row in rows] for key in rows[0]}
    named: defaultdict[str, list[Any]] = defaultdict(lambda: [None] * len(rows))
    for row, params in enumerate(columns["params"]):
        for name, value in params.items():
            named[f"param_{name}"][row] = value
    results = {key: to_column(values) for key, values in {**columns, **named}.items()}
    results["rank_test_score"] = rank_scores(results["test_score"])
    return results


def rank_scores(scores: Any) -> Any:
    """Return the rank of each score, 1 for the best; NaN is the worst.

    Parameters
    ----------
    scores : array of shape (n_models,)
        The scores.

    Examples
    --------
    >>> rank_scores(np.array([0.5, np.nan, 0.7])).tolist()
    [2, 3, 1]
    """
    return rankdata(np.where(np.isnan(scores), np.inf, -scores), method="min").astype(int)


def to_column(values: list[Any]) -> Any:
    """Return an array of values, with dtype object unless all are numbers or all are strings.

    Parameters
    ----------
    values : list
        The values.
    """
    texts = {isinstance(value, str) for value in values}
    plain = all(isinstance(value, bool | int | float | str | np.generic) for value in values)
    if plain and len(texts) == 1:
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _model_row(number: Any, records: list[dict[str, Any]]) -> dict[str, Any]:
    times = {name: [record[name] for record in records] for name in ("partial_fit_time", "score_time")}
    return {
        "mean_partial_fit_time": np.mean(times["partial_fit_time"]),
        "mean_score_time": np.mean(times["score_time"]),
        "std_partial_fit_time": np.std(times["partial_fit_time"]),
        "std_score_time": np.std(times["score_time"]),
        "test_score": float(records[-1]["score"]),
        "model_id": number,
        "params": records[0]["params"],
        "partial_fit_calls": records[-1]["partial_fit_calls"],
    }
