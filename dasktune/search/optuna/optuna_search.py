"""Suggestions by Optuna's samplers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from math import isfinite
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
from dasktune.trial.metrics import Metric, Modes, lookup, number

__all__ = ["OptunaSearch"]

logger = logging.getLogger(__name__)


class OptunaSearch(Searcher):
    """Suggest what an Optuna sampler proposes: TPE, CMA-ES, NSGA-II, Gaussian processes and others.

    It needs Optuna: ``pip install dasktune[optuna]``.

    Parameters
    ----------
    space : dict or callable, optional
        What to search, in place of ``param_space``: a dict, at any depth, of dasktune's domains,
        Optuna's distributions and plain values; or ``space(trial)``, which asks an
        ``optuna.Trial`` for parameters and may return a dict to be laid over them.
    metric : str or list of str, optional
        What is to be optimised; a list for several goals at once. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Which way it is better; a list, one for each, if `metric` is one. Likewise.
    points_to_evaluate : list of dict, optional
        Configurations to begin with. Parameters that one of them lacks are sampled.
    sampler : optuna.samplers.BaseSampler, optional
        The sampler; a copy is used. By default ``TPESampler``, which counts running trials as poor
        ones, so that it does not propose the same again, and which samples parameters that depend
        on others in groups.
    study_name : str, optional
        Name of the study, by default "optuna".
    storage : None
        Not supported: the study is kept in the driver's memory and in the experiment's snapshots.
    seed : int, optional
        Seed of the default sampler, by default derived from the experiment's seed. A sampler that
        you pass has its own seed; without one, a restored experiment gets other proposals.
    evaluated_rewards : list of float or of lists, optional
        Known values of `points_to_evaluate`: Optuna learns from them, and they are not run.
    stopped_trials : {"pruned", "complete"}, optional
        How trials that a trial scheduler ends early are reported to Optuna: as pruned at their
        last step, or as complete with their last value. By default the former for TPE, which
        ranks them behind all others, by how far they came; and the latter for samplers that ignore
        pruned trials, and for several metrics.
    constraints : callable, optional
        ``constraints(result)`` returns a dict of numbers; a trial is feasible if none is above 0.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or the space has what Optuna cannot search.
    ImportError
        If Optuna is not installed.

    Notes
    -----
    A trial that fails, is lost without a result, or whose last value is missing or not finite, is
    told to have failed: samplers ignore it.

    ``sample_from`` is computed of what was suggested, and not searched itself.

    Asking costs 10 ms with the default sampler after 100 trials, and 70 ms after 5,000.

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
        #: Arguments of :meth:`add_evaluated_point` that came before there was a study.
        self._evaluated: list[EvaluatedPoint] = []
        self._book: OptunaStudy | None = None
        for point, reward in zip(points, rewards or [], strict=False):
            self.add_evaluated_point(point, reward)

    def set_search_properties(
        self, metric: Metric | None, mode: Modes | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take metric, mode, space and seed of the experiment, where they were left open.

        Raises
        ------
        ConfigError
            If something is missing, set differently in two places, or cannot be searched.
        """
        super().set_search_properties(metric, mode, config, **spec)
        if self._own_space is None:
            self._space = make_space(config, "param_space")
        sequence = spec.get("seed")
        self._create_study(None if sequence is None else int(sequence.generate_state(1)[0]))
        return self._own_space is None

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Ask the sampler; :data:`FINISHED` if it has proposed all there is.

        Raises
        ------
        ConfigError
            If metric, mode or space is missing, or the function that is the space raises.
        """
        book = self._require_study()
        if book.exhausted:
            return FINISHED
        return self._ask(book, trial_id, book.waiting.pop(0) if book.waiting else None)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Report it as an intermediate value; with several metrics Optuna takes none."""
        book, values = self._book, self._values(result)
        step = number(lookup(result, "training_iteration"))
        if book is not None and trial_id in book.open and step is not None and values is not None:
            book.report(trial_id, int(step), values[0])

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna what came of a trial: a value, that it was pruned, or that it failed."""
        book = self._book
        if book is None or trial_id not in book.open:
            return
        values = None if error or result is None else self._values(result)
        if values is None or result is None or not self._constrain(book.open[trial_id], result):
            book.tell(trial_id, "FAIL")
        elif result.get(STOPPED_EARLY) and self._prunes(book):
            self.on_trial_result(trial_id, result)
            book.tell(trial_id, "PRUNED")
        else:
            book.tell(trial_id, "COMPLETE", values)

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Add a trial to the study; one value that is not finite means that it failed.

        Raises
        ------
        ConfigError
            If it is no point of the space, or values and metrics do not match in number. If the
            space is not known yet, that shows when it is.
        """
        if self._book is None:
            self._evaluated.append(point)
        else:
            self._learn(self._book, point)

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Let Optuna forget what it proposed, and give the trial what it had."""
        book = self._require_study()
        if trial_id in book.open:
            book.tell(trial_id, "FAIL")
        if config is not None:
            assert self._space is not None
            self._ask(book, trial_id, self._space.known_params(config))

    def state_dict(self) -> dict[str, Any]:
        """Return the study with its sampler, as a pickle in text; nothing before it has begun."""
        return {} if self._book is None else self._book.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned; unpickling may run code."""
        if state:
            self._require_study().load_state_dict(state)

    @property
    def study(self) -> Any:
        """The Optuna study, to be looked at; None before the search has begun."""
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
        book = OptunaStudy(sampler, modes, self._study_name)
        for point in self._evaluated:
            self._learn(book, point)
        book.waiting = [self._space.params_of(point) for point in self._points]
        self._book = book
        return book

    def _ask(self, book: OptunaStudy, trial_id: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        assert self._space is not None
        trial = book.ask(trial_id, params)
        try:
            return self._space.draw(trial, self._seed_of(trial))
        except Exception:
            book.tell(trial_id, "FAIL")
            raise

    def _seed_of(self, trial: Any) -> SeedSequence:
        return SeedSequence([self._root, trial.number])

    def _values(self, result: Mapping[str, Any]) -> list[float] | None:
        """Return the values of the metrics, None if one is missing or not finite."""
        metrics = self.metric if isinstance(self.metric, list) else [str(self.metric)]
        values = (number(lookup(result, metric)) for metric in metrics)
        told = [value for value in values if value is not None and isfinite(value)]
        return told if len(told) == len(metrics) else None

    def _constrain(self, trial: Any, result: Mapping[str, Any]) -> bool:
        """Tell the values of the constraints, and return whether all are numbers."""
        try:
            values = {} if self._constraints is None else self._constraints(result)
        except Exception as error:  # what it looks for may be missing in one result of many
            logger.warning("constraints(result) raised %r; the trial counts as failed", error)
            return False
        name = "constraints(result)"
        check(isinstance(values, Mapping), name, "a dict of numbers", values)
        numbers = {key: number(value) for key, value in values.items()}
        told = {key: value for key, value in numbers.items() if value is not None}
        if len(told) < len(numbers) or not all(map(isfinite, told.values())):
            return False
        for key, value in told.items():
            trial.set_constraint(str(key), value)
        return True

    def _prunes(self, book: OptunaStudy) -> bool:
        """Whether a trial that was ended early is reported as pruned."""
        if self._stopped_trials is None:
            return book.ranks_pruned
        return self._stopped_trials == "pruned"

    def _learn(self, book: OptunaStudy, point: EvaluatedPoint) -> None:
        assert self._space is not None
        value = point.value
        told = [number(one) for one in (value if isinstance(value, list) else [value])]
        rule = f"one number for each of {book.metrics} metrics"
        check(len(told) == book.metrics, "value", rule, value)
        values = [one for one in told if one is not None and isfinite(one) and not point.error]
        trial = require_optuna().trial.FixedTrial(
            self._space.params_of(point.parameters), number=len(book.study.trials)
        )
        try:
            self._space.draw(trial, self._seed_of(trial))
        except ValueError as problem:
            rule = "a whole point of the space"
            given = dict(point.parameters)
            raise ConfigError(f"parameters must be {rule}, got {given!r}: {problem}") from None
        if len(values) < len(told):
            book.learn(trial, "FAIL", None, point.intermediate_values)
        else:
            state = "PRUNED" if point.pruned else "COMPLETE"
            book.learn(trial, state, values, point.intermediate_values)


def _check_sampler(sampler: Any, seed: int | None) -> None:
    known = isinstance(sampler, require_optuna().samplers.BaseSampler)
    rule = "an Optuna sampler, as optuna.samplers.TPESampler()"
    check(known, "sampler", rule, sampler)
    require_picklable(sampler)
    if seed is not None:
        logger.warning("seed=%r is not used: the sampler has its own", seed)
