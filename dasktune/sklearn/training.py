"""A candidate on all splits, trained a step at a time."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import format_exc
from typing import Any

import cloudpickle
import joblib
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from dasktune.errors import ConfigError
from dasktune.sklearn.arguments import digest
from dasktune.sklearn.candidates import CandidateSpace
from dasktune.sklearn.compat import check_method_params, safe_split, score
from dasktune.sklearn.evaluation import (
    Data,
    Fit,
    Job,
    Outcome,
    Split,
    evaluate,
    failed_outcome,
)
from dasktune.sklearn.heads import (
    Head,
    Heads,
    fit_head,
    head_key,
    params_of_steps,
    remade,
    transformed,
)
from dasktune.sklearn.routes import Part, Route, find_route

__all__ = ["Candidate", "Course", "Fold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course(Job):
    """What all candidates of a search have in common, but for the data.

    Parameters
    ----------
    space : CandidateSpace, optional
        Turns configurations into parameters; by default they are parameters.
    budget : str
        What a step adds to; "folds" for a whole fit on the next split.
    amount : int
        How much of it.
    max_steps : int
        How many steps there are.
    classes : array, optional
        All that there are.
    metric : str, optional
        Which of several metrics is judged.
    retries : int
        How often a step that raises is tried again.
    lazy : bool
        Whether steps that nobody decides about may be put off.
    longest_backlog : float
        Seconds of training that may be put off to the next decision.
    save_every : int, optional
        After so many steps a candidate is saved; by default when it has trained for a while.
    token : str
        Names the data in what a process keeps.
    lean : bool
        Whether the last step of a pipeline may be scored alone, on what the others made.
    """

    space: CandidateSpace | None = None
    budget: str = "folds"
    amount: int = 1
    max_steps: int = 1
    classes: Any = field(default=None, repr=False)
    metric: str | None = None
    retries: int = 0
    lazy: bool = False
    longest_backlog: float = 0.0
    save_every: int | None = None
    token: str = ""
    lean: bool = True

    @property
    def by_folds(self) -> bool:
        """Whether a step is a whole fit on the next split."""
        return self.budget == "folds"

    def params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that a configuration stands for."""
        return dict(config) if self.space is None else self.space.params(config)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the surroundings of the search."""
        if self.surroundings is None:
            return function(*args)
        return self.surroundings.call(function, *args)


@dataclass(slots=True)
class Fold:
    """What has come of a candidate on one split."""

    model: Any = None
    #: The fitted transformers before it, by name.
    steps: Any = None
    fit_time: float = 0.0
    outcome: Outcome | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a fit has failed: there is no next step then."""
        return self.outcome is not None and self.outcome["fit_error"] is not None


@dataclass(frozen=True, slots=True)
class _Trained:
    """What a step has trained, and what it is scored on."""

    model: Any
    #: Which samples it was trained on.
    rows: Any
    #: X and y.
    train: tuple[Any, Any]
    test: tuple[Any, Any]


class Candidate:
    """Trains one candidate on all splits.

    Parameters
    ----------
    course : Course
        How.
    data : Data
        On what.
    splits : sequence of tuple
        Samples of each split.
    params : mapping
        Its parameters.
    heads : Heads
        What it shares with others.

    Raises
    ------
    ConfigError
        If it cannot be trained step by step.
    """

    def __init__(
        self,
        course: Course,
        data: Data,
        splits: Sequence[Split],
        params: Mapping[str, Any],
        heads: Heads,
    ) -> None:
        self._heads = heads
        self._course = course
        self._data = data
        self._splits = splits
        self.params = dict(params)
        #: How many steps it has taken, and of how many of them it was trained.
        self.step = self.trained = 0
        #: What a step has taken lately, in seconds; nobody knows before the first one.
        self._pace = float("inf")
        self.folds = [Fold() for _ in splits]
        self._route: Route | None = None
        self._estimator: Any = None
        if not course.by_folds:
            self._estimator = clone(course.estimator).set_params(**clone(dict(params), safe=False))
            self._route = find_route(
                self._estimator,
                course.budget,
                amount=course.amount,
                max_steps=course.max_steps,
                classes=course.classes,
            )
            if self._route is None:
                raise ConfigError(
                    f"estimator must be one that can be trained step by step, got "
                    f"{self._estimator!r}. Use budget='folds' or budget='n_samples'."
                )
        #: What its transformers are called among those of this process. Those without a name get an
        #: object for one: the number of a candidate that is gone may be that of another one.
        self._head_name: Hashable = (self._is_piped and head_key(self._head_steps)) or object()

    @property
    def outcomes(self) -> list[Outcome]:
        """What has come of each split, as far as there is something."""
        return [fold.outcome for fold in self.folds if fold.outcome is not None]

    @property
    def is_done(self) -> bool:
        """Whether there is no further step."""
        if self._course.by_folds:
            return self.step >= len(self._splits)
        return self.step >= self._course.max_steps or all(one.has_failed for one in self.folds)

    @property
    def backlog(self) -> float:
        """Seconds that the training for the next step will take, with all that was put off."""
        return self._pace * (self.step + 1 - self.trained)

    def put_off(self) -> None:
        """Take the next step, and leave its training to a later one."""
        self.step += 1

    def advance(self) -> None:
        """Take the next step, and train for all that were put off, too.

        Raises
        ------
        Exception
            What the candidate's code raised, where that is no score.
        """
        self.step += 1
        self._catch_up()

    def _catch_up(self) -> None:
        begun = time.perf_counter()
        if self._course.by_folds:
            self._evaluate(self.step - 1)
        else:
            for number in range(len(self._splits)):
                if not self.folds[number].has_failed:
                    self._course.call(self._train, number)
        self._pace = (time.perf_counter() - begun) / (self.step - self.trained)
        self.trained = self.step

    def change(self, params: Mapping[str, Any]) -> None:
        """Go on with other parameters, as population based training has it.

        Parameters
        ----------
        params : mapping
            The new ones.

        Raises
        ------
        ConfigError
            If a transformer's differ: what comes after it was trained on what it made.
        """
        changed = {
            name: value
            for name, value in params.items()
            if name not in self.params or not _is_same(self.params[name], value)
        }
        if changed and self.trained < self.step:
            # Those steps were taken with the old ones.
            self._catch_up()
        self.params = dict(params)
        prefix = f"{self._estimator.steps[-1][0]}__" if self._is_piped else ""
        others = sorted(name for name in changed if not name.startswith(prefix))
        if others:
            raise ConfigError(
                f"params must be the same for the transformers of a trial that goes on, got other "
                f"values of {', '.join(others)}. Let the scheduler change the last step only."
            )
        own = {name[len(prefix) :]: value for name, value in changed.items()}
        for fold in self.folds:
            if fold.model is not None:
                fold.model.set_params(**clone(own, safe=False))

    # Whole fits

    def _evaluate(self, number: int) -> None:
        course = self._course
        fit = Fit(params=self.params, candidate=0, n_candidates=0, split=number)
        for attempt in range(course.retries + 1):
            try:
                outcome = evaluate(fit, self._splits[number], course, self._data)
            except Exception:
                if attempt == course.retries:
                    raise
                continue
            self.folds[number].outcome = outcome
            if outcome["fit_error"] is None:
                return

    # Step by step

    @property
    def _is_piped(self) -> bool:
        return isinstance(self._estimator, Pipeline) and self._course.budget != "n_samples"

    @property
    def _head_steps(self) -> list[tuple[str, Any]]:
        steps: list[tuple[str, Any]] = self._estimator.steps[:-1]
        return steps

    def _train(self, number: int) -> None:
        """Train and score on a split; if it cannot be fitted, that alone has failed."""
        course = self._course
        for left in range(course.retries, -1, -1):
            # A step that fails may leave the estimators anywhere.
            before = cloudpickle.dumps(self.folds[number]) if left else b""
            started = time.perf_counter()
            try:
                try:
                    trained = self._fitted(number)
                except Exception:
                    if left or course.error_score == "raise":
                        raise
                    self._give_up(number, format_exc(), time.perf_counter() - started)
                    return
                self._score(number, trained)
            except Exception:
                if not left:
                    raise
                self.folds[number] = pickle.loads(before)
            else:
                return

    def _give_up(self, number: int, reason: str, seconds: float) -> None:
        fit_time = self.folds[number].fit_time + seconds
        outcome = failed_outcome(self._course, reason) | {"fit_time": fit_time}
        self.folds[number] = Fold(fit_time=fit_time, outcome=outcome)

    def _fitted(self, number: int) -> _Trained:
        """Train on a split up to the present step."""
        assert self._route is not None, "without one it has no steps"
        fold, (rows, others) = self.folds[number], self._splits[number]
        X, y, fit_params = self._data.X, self._data.y, self._data.metadata[0]
        rows = self._route.samples(y, rows, self.step)
        X_train, y_train = safe_split(self._estimator, X, y, rows)
        X_test, y_test = safe_split(self._estimator, X, y, others, rows)
        params = check_method_params(X, params=fit_params, indices=rows)
        started = time.perf_counter()
        given = X_train, X_test
        if self._is_piped:
            routed = params_of_steps(self._estimator, params)
            head = self._head(number, X_train, y_train, X_test, routed)
            fold.steps, params = head.steps, routed[self._estimator.steps[-1][0]].fit
            X_train, X_test = head.X_train, head.X_test
        if fold.model is None:
            fold.model = clone(self._estimator.steps[-1][1] if self._is_piped else self._estimator)
        part = Part(X=X_train, y=y_train, params=params)
        fold.model = self._route.advance(fold.model, part, self.trained, self.step)
        fold.fit_time += time.perf_counter() - started
        if self._is_piped and not self._course.lean:
            whole = _assembled(self._estimator, fold)
            return _Trained(whole, rows, (given[0], y_train), (given[1], y_test))
        return _Trained(fold.model, rows, (X_train, y_train), (X_test, y_test))

    def _head(self, number: int, X: Any, y: Any, X_test: Any, routed: Any) -> Head:
        """Return the fitted transformers of a split, and what they make of it."""
        fold = self.folds[number]

        def fit() -> Head:
            steps = [
                (name, clone(step) if _is_real(step) else step) for name, step in self._head_steps
            ]
            made, fitted = fit_head(steps, X, y, routed)
            # What is given to fit() is for the samples that it is fitted on.
            return Head(fitted, made, transformed(fitted, X_test, {}))

        def transform() -> Head:
            made = remade(fold.steps, X, y, routed)
            return Head(fold.steps, made, transformed(fold.steps, X_test, {}))

        # The transformers stay those that the last step was trained behind.
        place = (number, self._head_name)
        head = self._heads.get(place, fit if fold.steps is None else transform)
        if fold.steps is None or head.steps is fold.steps:
            return head
        return self._heads.get((*place, id(fold.steps)), transform)

    def _score(self, number: int, trained: _Trained) -> None:
        course, fold, others = self._course, self.folds[number], self._splits[number][1]
        params, model = self._data.metadata[1], trained.model
        started = time.perf_counter()
        on_test = check_method_params(self._data.X, params=params, indices=others)
        outcome: Outcome = {
            "fit_error": None,
            "test_scores": score(model, *trained.test, course.scorer, on_test, course.error_score),
            "score_time": time.perf_counter() - started,
            "n_test_samples": len(others),
            "fit_time": fold.fit_time,
        }
        if course.return_train_score:
            on_train = check_method_params(self._data.X, params=params, indices=trained.rows)
            outcome["train_scores"] = score(
                model, *trained.train, course.scorer, on_train, course.error_score
            )
        fold.outcome = outcome


def _assembled(pipeline: Pipeline, fold: Fold) -> Pipeline:
    """Return a fitted pipeline."""
    name = pipeline.steps[-1][0]
    return type(pipeline)([*fold.steps, (name, fold.model)])


def _is_real(step: Any) -> bool:
    return step not in (None, "passthrough")


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of a parameter are the same, though one may be a copy of the other."""
    if one is other:
        return True
    try:
        if bool(one == other):
            return True
    except Exception:  # arrays, for one
        pass
    # Estimators, for one, are equal to no copy of them.
    try:
        return bool(joblib.hash(one) == joblib.hash(other))
    except Exception:  # functions that have no name
        return digest(one) == digest(other)
