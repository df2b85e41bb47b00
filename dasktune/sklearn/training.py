"""A candidate on all splits, trained a step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sklearn.base import clone
from sklearn.pipeline import Pipeline

from dasktune.errors import ConfigError
from dasktune.sklearn.candidates import CandidateSpace
from dasktune.sklearn.compat import check_method_params, safe_split, score
from dasktune.sklearn.evaluation import Data, Fit, Job, Outcome, Split, evaluate
from dasktune.sklearn.heads import Head, Heads, fit_head, head_key, params_of_steps, transformed
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
        self.step = 0
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
        #: What its transformers are called among those of this process.
        self._head_name = head_key(self._head_steps) if self._is_piped else None

    @property
    def outcomes(self) -> list[Outcome]:
        """What has come of each split, as far as there is something."""
        return [fold.outcome for fold in self.folds if fold.outcome is not None]

    @property
    def last_step(self) -> int:
        """The number of its last step."""
        return len(self._splits) if self._course.by_folds else self._course.max_steps

    def advance(self) -> None:
        """Take the next step.

        Raises
        ------
        Exception
            What the candidate's code raised, where that is no score.
        """
        self.step += 1
        if self._course.by_folds:
            self._evaluate(self.step - 1)
            return
        for number in range(len(self._splits)):
            self._train(number)

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
        assert self._route is not None, "without one it has no steps"
        fold, (train, test) = self.folds[number], self._splits[number]
        X, y, (fit_params, score_params) = self._data.X, self._data.y, self._data.metadata
        X_train, y_train = safe_split(self._estimator, X, y, train)
        X_test, y_test = safe_split(self._estimator, X, y, test, train)
        params = check_method_params(X, params=fit_params, indices=train)
        started = time.perf_counter()
        scored, X_scored = None, (X_train, X_test)
        if self._is_piped:
            routed = params_of_steps(self._estimator, params)
            head = self._head(number, X_train, y_train, X_test, routed)
            fold.steps, params = head.steps, routed[self._estimator.steps[-1][0]].fit
            X_train, X_test = head.X_train, head.X_test
        if fold.model is None:
            fold.model = clone(self._estimator.steps[-1][1] if self._is_piped else self._estimator)
        part = Part(X=X_train, y=y_train, params=params)
        fold.model = self._route.advance(fold.model, part, self.step)
        fold.fit_time += time.perf_counter() - started
        scored = fold.model
        if self._is_piped and self._course.lean:
            X_scored = X_train, X_test
        elif self._is_piped:
            scored = _assembled(self._estimator, fold)
        fold.outcome = self._scored(
            scored, number, (X_scored[0], y_train), (X_scored[1], y_test), score_params
        )
        fold.outcome["fit_time"] = fold.fit_time

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
            made = transformed(fold.steps, X, routed)
            return Head(fold.steps, made, transformed(fold.steps, X_test, {}))

        # The transformers stay those that the last step was trained behind.
        place = (number, self._head_name or id(self))
        head = self._heads.get(place, fit if fold.steps is None else transform)
        if fold.steps is None or head.steps is fold.steps:
            return head
        return self._heads.get((*place, id(fold.steps)), transform)

    def _scored(
        self, model: Any, number: int, train: tuple[Any, Any], test: tuple[Any, Any], params: Any
    ) -> Outcome:
        course, (rows, others) = self._course, self._splits[number]
        started = time.perf_counter()
        on_test = check_method_params(self._data.X, params=params, indices=others)
        outcome: Outcome = {
            "fit_error": None,
            "test_scores": score(model, *test, course.scorer, on_test, course.error_score),
            "score_time": time.perf_counter() - started,
            "n_test_samples": len(others),
        }
        if course.return_train_score:
            on_train = check_method_params(self._data.X, params=params, indices=rows)
            outcome["train_scores"] = score(
                model, *train, course.scorer, on_train, course.error_score
            )
        return outcome


def _assembled(pipeline: Pipeline, fold: Fold) -> Pipeline:
    """Return a fitted pipeline."""
    name = pipeline.steps[-1][0]
    return type(pipeline)([*fold.steps, (name, fold.model)])


def _is_real(step: Any) -> bool:
    return step not in (None, "passthrough")


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # arrays, for one
        return False
