"""Training of one candidate on all splits, one step at a time."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from traceback import format_exc
from typing import Any

import cloudpickle
import joblib
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from dasktune.errors import ConfigError
from dasktune.sklearn.compat import check_method_params, safe_split, score
from dasktune.sklearn.fits.fingerprint import digest
from dasktune.sklearn.fits.fit_and_score import (
    Data,
    Fit,
    Job,
    Outcome,
    Split,
    evaluate,
    failed_outcome,
)
from dasktune.sklearn.steps.candidate_space import CandidateSpace
from dasktune.sklearn.steps.pipeline_cache import (
    FittedTransformers,
    TransformerCache,
    apply_transformers,
    fit_transformers,
    refit_transform,
    route_fit_params,
    transformers_key,
)
from dasktune.sklearn.steps.training_modes import TrainingData, TrainingMode, choose_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateJob(Job):
    """The settings that all candidates of a search share, without the data.

    Parameters
    ----------
    space : CandidateSpace, optional
        Converts configurations to parameters; None if a configuration holds the parameters.
    budget : str
        The budget that a step adds to; "folds" for a whole fit on the next split.
    amount : int
        Units of the budget that a step adds.
    max_steps : int
        Number of steps of a complete trial.
    classes : array, optional
        All classes of y.
    metric : str, optional
        The name of the metric to optimise, if there are several.
    judges : bool
        Whether the metric must be one of several: a scheduler or searcher optimises it, the user
        names it, or it is minimised.
    retries : int
        How often a step that raises is tried again.
    defer_steps : bool
        Whether steps without a decision of the scheduler may be deferred.
    max_deferred_seconds : float
        Seconds of training that may be deferred to the next decision.
    checkpoint_every : int, optional
        Number of steps between two checkpoints; None saves one after each ten seconds of training.
    token : str
        Identifies the search in the transformer cache of a process.
    score_last_step_only : bool
        Whether to score the last step of a pipeline on the transformed samples, instead of the
        pipeline on the original ones.
    has_secrets : bool
        Whether parameters may have the values of secrets, which ``verbose`` must not print.
    """

    space: CandidateSpace | None = None
    budget: str = "folds"
    amount: int = 1
    max_steps: int = 1
    classes: Any = field(default=None, repr=False)
    metric: str | None = None
    judges: bool = False
    retries: int = 0
    defer_steps: bool = False
    max_deferred_seconds: float = 0.0
    checkpoint_every: int | None = None
    token: str = ""
    score_last_step_only: bool = True
    has_secrets: bool = False

    @property
    def by_folds(self) -> bool:
        """Whether a step is a whole fit on the next split."""
        return self.budget == "folds"

    def params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a configuration."""
        return dict(config) if self.space is None else self.space.params(config)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function with the search's scikit-learn configuration and warning filters."""
        if self.sklearn_context is None:
            return function(*args)
        return self.sklearn_context.call(function, *args)


@dataclass(slots=True)
class FoldState:
    """The state of a candidate on one split. It is pickled into the trial's checkpoints."""

    model: Any = None
    #: The fitted transformers that precede the model, with their names.
    steps: Any = None
    fit_time: float = 0.0
    outcome: Outcome | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a fit has failed; the training on this split ends then."""
        return self.outcome is not None and self.outcome["fit_error"] is not None


@dataclass(frozen=True, slots=True)
class _SplitSamples:
    """The samples of one split, and their parameters of ``fit``.

    Each call returns new ones, because an estimator or scorer may change them in place.
    """

    estimator: Any
    data: Data
    rows: Any
    test_rows: Any

    def train(self) -> Any:
        return safe_split(self.estimator, self.data.X, self.data.y, self.rows)

    def test(self) -> Any:
        return safe_split(self.estimator, self.data.X, self.data.y, self.test_rows, self.rows)

    def params(self) -> Any:
        return check_method_params(self.data.X, params=self.data.metadata[0], indices=self.rows)


@dataclass(frozen=True, slots=True)
class _TrainedFold:
    """A model after a step on one split, with the samples to score it on."""

    model: Any
    #: The indices of the training samples.
    rows: Any
    #: Returns X and y of the training samples.
    train: Callable[[], tuple[Any, Any]]
    #: Returns X and y of the test samples.
    test: Callable[[], tuple[Any, Any]]


class Candidate:
    """Trains one candidate on all splits.

    Parameters
    ----------
    job : CandidateJob
        The settings that all candidates share.
    data : Data
        The samples, targets and metadata.
    splits : sequence of tuple
        The sample indices of each split.
    params : mapping
        The candidate's parameters.
    cache : TransformerCache
        The cache of fitted transformers that candidates share.

    Raises
    ------
    ConfigError
        If the estimator cannot be trained step by step with these parameters.
    """

    def __init__(
        self,
        job: CandidateJob,
        data: Data,
        splits: Sequence[Split],
        params: Mapping[str, Any],
        cache: TransformerCache,
    ) -> None:
        self._cache = cache
        self._job = job
        self._data = data
        self._splits = splits
        self.params = dict(params)
        #: Number of steps taken, and of steps trained; the steps between are deferred.
        self.step = self.trained_steps = 0
        #: Training seconds per step at the last training; infinite before the first.
        self._seconds_per_step = float("inf")
        self.folds = [FoldState() for _ in splits]
        self._mode: TrainingMode | None = None
        self._estimator: Any = None
        if not job.by_folds:
            self._estimator = clone(job.estimator).set_params(**clone(dict(params), safe=False))
            self._mode = choose_mode(
                self._estimator, job.budget, amount=job.amount, max_steps=job.max_steps, classes=job.classes
            )
            if self._mode is None:
                raise ConfigError(
                    f"estimator must support budget={job.budget!r} with these parameters, got "
                    f"{self._estimator!r}. Use budget='folds' or budget='n_samples'."
                )
        #: The key of the candidate's transformers in the cache. Transformers that cannot be hashed
        #: get a new object as key. The `id` of an object is no unique key: Python reuses it after
        #: the object is freed.
        self._transformers_key: Hashable = (
            self._shares_transformers and transformers_key(self._transformer_steps)
        ) or object()

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of the splits that were scored so far."""
        return [fold.outcome for fold in self.folds if fold.outcome is not None]

    @property
    def is_done(self) -> bool:
        """Whether the candidate has no further step."""
        if self._job.by_folds:
            return self.step >= len(self._splits)
        return self.step >= self._job.max_steps or all(one.has_failed for one in self.folds)

    @property
    def next_step_seconds(self) -> float:
        """Estimated training seconds of the next step, including all deferred steps."""
        return self._seconds_per_step * (self.step + 1 - self.trained_steps)

    def defer_step(self) -> None:
        """Count the next step, and defer its training to a later one."""
        self.step += 1

    def advance(self) -> None:
        """Take the next step, and train for it and for all deferred steps.

        Raises
        ------
        Exception
            The exception of the candidate's code, if `error_score` does not replace it.
        """
        self.step += 1
        self._train_deferred()

    def _train_deferred(self) -> None:
        started = time.perf_counter()
        if self._job.by_folds:
            self._evaluate(self.step - 1)
        else:
            for number in range(len(self._splits)):
                if not self.folds[number].has_failed:
                    self._job.call(self._train, number)
        self._seconds_per_step = (time.perf_counter() - started) / (self.step - self.trained_steps)
        self.trained_steps = self.step

    def change_params(self, params: Mapping[str, Any]) -> None:
        """Continue with other parameters, after an exploit of population based training.

        Parameters
        ----------
        params : mapping
            The new parameters.

        Raises
        ------
        ConfigError
            If a parameter of a transformer changes: the model was trained on the transformer's old
            output.
        """
        changed = {
            name: value
            for name, value in params.items()
            if name not in self.params or not is_equal(self.params[name], value)
        }
        if changed and self.trained_steps < self.step:
            # The deferred steps belong to the old parameters.
            self._train_deferred()
        self.params = dict(params)
        prefix = f"{self._estimator.steps[-1][0]}__" if self._shares_transformers else ""
        others = sorted(name for name in changed if not name.startswith(prefix))
        if others:
            raise ConfigError(
                f"params must keep the values of transformers when a trial resumes, got new values "
                f"of {', '.join(others)}. Let the scheduler change the last step's parameters only."
            )
        own = {name[len(prefix) :]: value for name, value in changed.items()}
        for fold in self.folds:
            if fold.model is not None:
                fold.model.set_params(**clone(own, safe=False))

    # Whole fits

    def _evaluate(self, number: int) -> None:
        job = self._job
        fit = Fit(params=self.params, candidate=0, n_candidates=0, split=number, has_secrets=job.has_secrets)
        for attempt in range(job.retries + 1):
            try:
                outcome = evaluate(fit, self._splits[number], job, self._data)
            except Exception:
                if attempt == job.retries:
                    raise
                continue
            self.folds[number].outcome = outcome
            if outcome["fit_error"] is None:
                return

    # Step by step

    @property
    def _shares_transformers(self) -> bool:
        return isinstance(self._estimator, Pipeline) and self._job.budget != "n_samples"

    @property
    def _transformer_steps(self) -> list[tuple[str, Any]]:
        steps: list[tuple[str, Any]] = self._estimator.steps[:-1]
        return steps

    def _train(self, number: int) -> None:
        """Train and score on a split. A failed fit gets `error_score` on this split only."""
        job = self._job
        for left in range(job.retries, -1, -1):
            # A failed step may leave the estimators half trained, so a retry starts from a copy.
            before = cloudpickle.dumps(self.folds[number]) if left else b""
            started = time.perf_counter()
            try:
                try:
                    trained = self._train_fold(number)
                except Exception:
                    if left or job.error_score == "raise":
                        raise
                    self._set_failed(number, format_exc(), time.perf_counter() - started)
                    return
                self._score(number, trained)
            except Exception:
                if not left:
                    raise
                self.folds[number] = pickle.loads(before)
            else:
                return

    def _set_failed(self, number: int, reason: str, seconds: float) -> None:
        fit_time = self.folds[number].fit_time + seconds
        outcome = failed_outcome(self._job, reason) | {"fit_time": fit_time}
        self.folds[number] = FoldState(fit_time=fit_time, outcome=outcome)

    def _train_fold(self, number: int) -> _TrainedFold:
        """Train on a split up to the current step."""
        assert self._mode is not None, "only whole fits have no mode"
        fold, (rows, test_rows) = self.folds[number], self._splits[number]
        rows = self._mode.samples(self._data.y, rows, self.step)
        samples = _SplitSamples(self._estimator, self._data, rows, test_rows)
        train, test, params = samples.train, samples.test, samples.params
        started = time.perf_counter()
        if self._shares_transformers:
            transformers = self._fitted_transformers(number, samples)
            fold.steps = transformers.steps
            # A copy takes less time than the rows of a split, which a candidate without shared
            # transformers takes in each step.
            train, test = partial(deepcopy, transformers.train), partial(deepcopy, transformers.test)
            params = partial(self._last_params, samples)
        if fold.model is None:
            fold.model = clone(self._estimator.steps[-1][1] if self._shares_transformers else self._estimator)
        data = TrainingData(take=lambda: (*train(), params()))
        fold.model = self._mode.advance(fold.model, data, self.trained_steps, self.step)
        fold.fit_time += time.perf_counter() - started
        if self._shares_transformers and not self._job.score_last_step_only:
            whole = _fitted_pipeline(self._estimator, fold)
            return _TrainedFold(whole, rows, samples.train, samples.test)
        return _TrainedFold(fold.model, rows, train, test)

    def _last_params(self, samples: _SplitSamples) -> Any:
        return route_fit_params(self._estimator, samples.params())[self._estimator.steps[-1][0]].fit

    def _fitted_transformers(self, number: int, samples: _SplitSamples) -> FittedTransformers:
        """Return the fitted transformers of a split, with its transformed samples."""
        fold = self.folds[number]

        def make() -> FittedTransformers:
            (X, y), (X_test, y_test) = samples.train(), samples.test()
            routed, steps = route_fit_params(self._estimator, samples.params()), fold.steps
            if steps is None:
                unfitted = [
                    (name, clone(step) if _is_transformer(step) else step)
                    for name, step in self._transformer_steps
                ]
                X, steps = fit_transformers(unfitted, X, y, routed)
            else:
                X = refit_transform(steps, X, y, routed)
            # Parameters of fit() belong to the training samples, so the test samples get none.
            return FittedTransformers(steps, (X, y), (apply_transformers(steps, X_test, {}), y_test))

        # The model must keep the transformers that it was trained with. After a restore these are
        # unpickled objects, which differ from those that another trial fitted here meanwhile.
        key = (number, self._transformers_key)
        transformers = self._cache.get(key, make)
        if fold.steps is None or transformers.steps is fold.steps:
            return transformers
        # The cached entry holds `fold.steps`, so no other object can get this id meanwhile.
        return self._cache.get((*key, id(fold.steps)), make)

    def _score(self, number: int, trained: _TrainedFold) -> None:
        job, fold, test_rows = self._job, self.folds[number], self._splits[number][1]
        params, model, test = self._data.metadata[1], trained.model, trained.test()
        started = time.perf_counter()
        on_test = check_method_params(self._data.X, params=params, indices=test_rows)
        outcome: Outcome = {
            "fit_error": None,
            "test_scores": score(model, *test, job.scorer, on_test, job.error_score),
            "score_time": time.perf_counter() - started,
            "n_test_samples": len(test_rows),
            "fit_time": fold.fit_time,
        }
        if job.return_train_score:
            on_train = check_method_params(self._data.X, params=params, indices=trained.rows)
            outcome["train_scores"] = score(model, *trained.train(), job.scorer, on_train, job.error_score)
        fold.outcome = outcome


def _fitted_pipeline(pipeline: Pipeline, fold: FoldState) -> Pipeline:
    """Return a pipeline of the fitted transformers and the trained model."""
    name = pipeline.steps[-1][0]
    return type(pipeline)([*fold.steps, (name, fold.model)])


def _is_transformer(step: Any) -> bool:
    return step not in (None, "passthrough")


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values of a parameter are equal, also if one is a copy of the other.

    Parameters
    ----------
    one, other : object
        The values.

    Examples
    --------
    >>> is_equal([1], [1]), is_equal(float("nan"), float("nan"))
    (True, True)
    """
    if one is other:
        return True
    try:
        if bool(one == other):
            return True
    except Exception:  # such as arrays, which compare by element
        pass
    # Estimators compare by identity.
    try:
        return bool(joblib.hash(one) == joblib.hash(other))
    except Exception:  # such as lambdas, which cannot be pickled
        return digest(one) == digest(other)
