"""`OptunaSearch`, the searcher with Optuna's samplers."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from hashlib import sha256
from math import isfinite
from types import FunctionType, SimpleNamespace
from typing import Any, Literal

from numpy.random import SeedSequence

from dasktune.errors import ConfigError, check
from dasktune.search.optuna.optuna_space import OptunaSpace, make_space
from dasktune.search.optuna.study import OptunaStudy, new_tpe, require_optuna, require_picklable
from dasktune.search.searcher import (
    FINISHED,
    STOPPED_EARLY,
    EvaluatedPoint,
    Finished,
    Searcher,
)
from dasktune.search.space_searcher import searched_domains
from dasktune.trial.metrics import Metric, Modes, lookup, number

logger = logging.getLogger(__name__)


class OptunaSearch(Searcher):
    """Suggest configurations with an Optuna sampler: TPE, CMA-ES, NSGA-II and others [1]_.

    It needs Optuna: ``pip install 'optuna>=5'``.

    Parameters
    ----------
    space : dict or callable, optional
        The search space; by default the experiment's ``param_space``. It is either a dict of
        dasktune's domains, Optuna's distributions, plain values and nested dicts; or a function
        ``space(trial)`` that calls the ``suggest_`` methods of an ``optuna.Trial`` and returns
        None, or a dict whose values override the suggested ones.
    metric : str or list of str, optional
        The metric to optimise; a list for several objectives. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Whether to minimise or maximise; if `metric` is a list, a list with a mode for each metric.
        By default the experiment's.
    points_to_evaluate : list of dict, optional
        Complete or partial configurations that are suggested before all others. The sampler
        chooses missing values.
    sampler : optuna.samplers.BaseSampler, optional
        The sampler, which is copied. By default a ``TPESampler``, which treats running trials as
        bad ones to avoid suggesting the same point again. For a conditional space with one metric
        it models groups of parameters (``multivariate=True, group=True``).
    study_name : str, optional
        Name of the study; by default "optuna".
    storage : None
        Not supported: the study is kept in the driver's memory and in the experiment's snapshots.
    seed : int, optional
        Seed of the default sampler; by default derived from the experiment's seed. A sampler that
        you pass has its own seed; without one, a restored experiment gets other suggestions.
    evaluated_rewards : list of float or list of list of float, optional
        Known values of `points_to_evaluate`, one for each: Optuna learns from them, and the points
        are not run.
    stopped_trials : {"pruned", "complete"}, optional
        State in which Optuna gets trials that a trial scheduler stopped early: pruned at their last
        step, or complete with their last value. By default "pruned" for TPE with one metric: it
        ranks pruned trials behind complete ones, by their last step. Otherwise "complete", because
        other samplers ignore pruned trials.
    constraints : callable, optional
        ``constraints(result)`` returns a dict of numbers. A trial is feasible if none is above 0.

    Raises
    ------
    ConfigError
        If an argument is invalid, or Optuna cannot search the space.
    ImportError
        If Optuna is not installed.

    Notes
    -----
    Optuna gets a trial as failed if it failed, reported no result, or its last value is missing or
    not finite. Samplers ignore failed trials.

    Functions of ``sample_from`` are called with the suggested values; Optuna does not search their
    results.

    A suggestion of the default sampler takes 10 ms after 100 trials, and 70 ms after 5,000.

    References
    ----------
    .. [1] Akiba et al., KDD 2019, arXiv:1907.10902.

    Examples
    --------
    >>> from dasktune.space import choice, uniform
    >>> space = {"lr": uniform(0, 1), "layers": choice([(64,), (64, 64)])}
    >>> search = OptunaSearch(space, metric="loss", mode="min", seed=1)
    >>> sorted(search.suggest("t_0"))
    ['layers', 'lr']
    >>> search.on_trial_complete("t_0", {"loss": 0.5})
    """

    #: The state that `restore` has read, from which the next experiment begins.
    _restored: Mapping[str, Any] | None = None
    #: Whether the study already has this state, as space, metric and mode were known.
    _has_restored: bool = False

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None] | None = None,
        metric: Metric | None = None,
        mode: Modes | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: Any = None,
        *,
        study_name: str | None = None,
        storage: None = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[float | list[float]] | None = None,
        stopped_trials: Literal["pruned", "complete"] | None = None,
        constraints: Callable[[Mapping[str, Any]], Mapping[str, float]] | None = None,
    ) -> None:
        require_optuna()
        super().__init__(metric=metric, mode=mode)
        known = stopped_trials in ("pruned", "complete", None)
        check(known, "stopped_trials", "'pruned' or 'complete'", stopped_trials)
        hint = "The study is part of the snapshots; a database would know trials that they do not."
        check(storage is None, "storage", "left out", storage, hint)
        check(constraints is None or callable(constraints), "constraints", "callable", constraints)
        points = list(points_to_evaluate or [])
        rewards = None if evaluated_rewards is None else list(evaluated_rewards)
        fitting = rewards is None or len(rewards) == len(points)
        check(fitting, "evaluated_rewards", "one for each of points_to_evaluate", rewards)
        if sampler is not None:
            _check_sampler(sampler, seed)
        self._own_space = None if space is None else make_space(space)
        self._space: OptunaSpace | None = self._own_space
        self._sampler = sampler
        self._study_name = study_name or "optuna"
        self._seed: int | None = seed
        self._root = 0
        self._points = [] if rewards is not None else points
        self._stopped_trials = stopped_trials
        self._constraints = constraints
        #: Evaluated points that were added before the study was created.
        self._evaluated: list[EvaluatedPoint] = []
        self._book: OptunaStudy | None = None
        for point, reward in zip(points, rewards or [], strict=False):
            self.add_evaluated_point(point, reward)

    def set_search_properties(
        self, metric: Metric | None, mode: Modes | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Set missing arguments from the experiment, and create the study.

        Raises
        ------
        ConfigError
            If metric or mode is missing or differs between searcher and experiment, or Optuna
            cannot search the space.
        """
        super().set_search_properties(metric, mode, config, **spec)
        if self._own_space is None:
            self._space = make_space(config, "param_space")
        sequence = spec.get("seed")
        # The study may have got evaluated points since it has the state.
        restored = self.state_dict() if self._has_restored else self._restored
        self._restored, self._has_restored = None, False
        study = self._create_study(None if sequence is None else int(sequence.generate_state(1)[0]))
        if restored:
            self.load_state_dict(restored)
            for point in self._evaluated:
                self._learn(study, point)
            for trial_id in list(study.open):  # trials of the experiment that the state is from
                study.tell(trial_id, "FAIL")
        return self._own_space is None

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return the next preset or the sampler's suggestion; FINISHED if it has no more.

        Raises
        ------
        ConfigError
            If metric, mode or space is missing, or the function that defines the space raises.
        """
        study = self._require_study()
        if study.exhausted:
            return FINISHED
        return self._ask(study, trial_id, study.waiting.pop(0) if study.waiting else None)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Report the result as an intermediate value, which Optuna accepts for one metric only."""
        study, values = self._book, self._values(result)
        step = number(lookup(result, "training_iteration"))
        if study is not None and trial_id in study.open and step is not None and values is not None:
            study.report(trial_id, int(step), values[0])

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Report the trial to Optuna as complete, pruned or failed."""
        study = self._book
        if study is None or trial_id not in study.open:
            return
        values = None if error or result is None else self._values(result)
        if values is None or result is None or not self._constrain(study.open[trial_id], result):
            study.tell(trial_id, "FAIL")
        elif result.get(STOPPED_EARLY) and self._prunes(study):
            self.on_trial_result(trial_id, result)
            study.tell(trial_id, "PRUNED")
        else:
            study.tell(trial_id, "COMPLETE", values)

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Add the point to the study as a finished trial, failed if a value is not finite.

        Raises
        ------
        ConfigError
            If the configuration is not a point of the space, or the numbers of values and metrics
            differ. If the space is not set yet, :meth:`set_search_properties` raises it.
        """
        if self._book is None:
            self._evaluated.append(point)
        else:
            self._learn(self._book, point)

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Report this searcher's suggestion as failed, and add the recorded configuration."""
        study = self._require_study()
        if trial_id in study.open:
            study.tell(trial_id, "FAIL")
        if config is not None:
            assert self._space is not None
            self._ask(study, trial_id, self._space.known_params(config))

    def state_dict(self) -> dict[str, Any]:
        """Return the study and its sampler as base64 of a pickle; empty before the search."""
        return {} if self._book is None else {**self._book.state_dict(), "sampler": self._sampler_digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; unpickling it may run code. Another `sampler` replaces the saved one."""
        if state:
            study = self._require_study()
            own = study.study.sampler
            study.load_state_dict(state)
            if state.get("sampler", self._sampler_digest) != self._sampler_digest:
                study.study.sampler = own

    @property
    def _sampler_digest(self) -> str | None:
        """A digest of the given sampler, which is never used itself; None for the default one."""
        if self._sampler is None:
            return None
        digest = sha256()
        file: Any = SimpleNamespace(write=digest.update)
        _NamesPickler(file).dump(self._sampler)
        return digest.hexdigest()

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        # The state replaces what the searcher has learned until now, and what it would learn.
        self._restored, self._evaluated = state, []
        self._has_restored = self._space is not None and None not in (self.metric, self.mode)
        if self._has_restored:
            self.load_state_dict(state)

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any], join: bool = False) -> dict[str, Any]:
        """Return a search space in the form that the constructor takes as `space`.

        Parameters
        ----------
        spec : mapping
            The search space, which may contain constants.
        join : bool, default=False
            Whether the result contains the constants of `spec`, too.

        Raises
        ------
        ConfigError
            If the space has a grid, or is not a dict.

        Examples
        --------
        >>> from dasktune.space import uniform
        >>> OptunaSearch.convert_search_space({"lr": uniform(0, 1), "depth": 3})
        {'lr': Float(lower=0.0, upper=1.0, sampler=Uniform())}
        """
        return searched_domains(spec, join, "OptunaSearch")

    @property
    def study(self) -> Any:
        """The Optuna study, for inspection only; None before the search has begun."""
        return None if self._book is None else self._book.study

    def _require_study(self) -> OptunaStudy:
        return self._create_study(None) if self._book is None else self._book

    def _create_study(self, seed: int | None) -> OptunaStudy:
        """Create the study, and replace an existing one."""
        hint = "Give it to TuneConfig or to OptunaSearch."
        for name in ("metric", "mode"):
            given = getattr(self, name)
            check(given is not None, name, "given", given, hint)
        check(self._space is not None, "space", "given, here or as param_space", None)
        count = len(self.metric) if isinstance(self.metric, list) else 1
        modes = self.mode if isinstance(self.mode, list) else [self.mode]
        rule = f"given once for each metric of {self.metric!r}"
        check(len(modes) == count, "mode", rule, self.mode)
        assert self._space is not None
        seed = seed if self._seed is None else self._seed
        self._root = seed or 0
        sampler = deepcopy(self._sampler)
        if sampler is None:
            sampler = new_tpe(seed, grouped=self._space.conditional and count == 1)
        study = OptunaStudy(sampler, modes, self._study_name)
        for point in self._evaluated:
            self._learn(study, point)
        study.waiting = [self._space.params_of(point) for point in self._points]
        self._book = study
        return study

    def _ask(self, study: OptunaStudy, trial_id: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        assert self._space is not None
        trial = study.ask(trial_id, params)
        try:
            return self._space.draw(trial, self._seed_of(trial))
        except Exception:
            study.tell(trial_id, "FAIL")
            raise

    def _seed_of(self, trial: Any) -> SeedSequence:
        return SeedSequence([self._root, trial.number])

    def _values(self, result: Mapping[str, Any]) -> list[float] | None:
        """Return the values of the metrics, None if one is missing or not finite."""
        metrics = self.metric if isinstance(self.metric, list) else [str(self.metric)]
        values = (number(lookup(result, metric)) for metric in metrics)
        finite = [value for value in values if value is not None and isfinite(value)]
        return finite if len(finite) == len(metrics) else None

    def _constrain(self, trial: Any, result: Mapping[str, Any]) -> bool:
        """Set the trial's constraint values; return False if one cannot be computed."""
        try:
            values = {} if self._constraints is None else self._constraints(result)
        except Exception as error:  # for example a KeyError: a single result may lack a metric
            logger.warning("constraints(result) raised %r; the trial counts as failed", error)
            return False
        name = "constraints(result)"
        check(isinstance(values, Mapping), name, "a dict of numbers", values)
        numbers = {key: number(value) for key, value in values.items()}
        finite = {key: value for key, value in numbers.items() if value is not None and isfinite(value)}
        if len(finite) < len(numbers):
            return False
        for key, value in finite.items():
            trial.set_constraint(str(key), value)
        return True

    def _prunes(self, study: OptunaStudy) -> bool:
        """Whether a trial that a scheduler stopped early is reported as pruned."""
        if self._stopped_trials is None:
            return study.ranks_pruned
        return self._stopped_trials == "pruned"

    def _learn(self, study: OptunaStudy, point: EvaluatedPoint) -> None:
        assert self._space is not None
        value = point.value
        numbers = [number(item) for item in (value if isinstance(value, list) else [value])]
        rule = f"one number for each of {study.metrics} metrics"
        check(len(numbers) == study.metrics, "value", rule, value)
        values = [item for item in numbers if item is not None and isfinite(item) and not point.error]
        trial = require_optuna().trial.FixedTrial(
            self._space.params_of(point.parameters), number=len(study.study.trials)
        )
        try:
            self._space.draw(trial, self._seed_of(trial))
        except ValueError as problem:
            rule = "a whole point of the space"
            given = dict(point.parameters)
            raise ConfigError(f"parameters must be {rule}, got {given!r}: {problem}") from None
        if len(values) < len(numbers):
            study.learn(trial, "FAIL", None, point.intermediate_values)
        else:
            state = "PRUNED" if point.pruned else "COMPLETE"
            study.learn(trial, state, values, point.intermediate_values)


class _NamesPickler(pickle.Pickler):
    """Pickles functions and classes as names: after a restore, a script's are other objects."""

    def persistent_id(self, obj: Any) -> str | None:
        return obj.__qualname__ if isinstance(obj, FunctionType | type) else None


def _check_sampler(sampler: Any, seed: int | None) -> None:
    known = isinstance(sampler, require_optuna().samplers.BaseSampler)
    rule = "an Optuna sampler, such as optuna.samplers.TPESampler()"
    check(known, "sampler", rule, sampler)
    require_picklable(sampler)
    if seed is not None:
        logger.warning("seed=%r is not used: the sampler has its own", seed)
