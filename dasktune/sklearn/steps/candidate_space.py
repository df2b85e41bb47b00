"""Conversion of scikit-learn search spaces for any searcher, and fixed lists of candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, Final

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterSampler

from dasktune.errors import check
from dasktune.runner.secret_values import with_secrets
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.space import Domain, Secret, choice, lograndint, loguniform, randint, uniform

#: Types of values that every searcher and the journal support. A secret is one of them: the driver
#: reads the values of the secrets in a configuration. A worker, which decodes an index of a list,
#: cannot read them.
_PLAIN: Final = (str, int, float, bool, type(None), Secret)

#: The parameter of a configuration that selects one of several dicts of distributions.
_WHICH: Final = "which"


class CandidateQueue(SearchAlgorithm):
    """Suggests a fixed list of candidates, in their order.

    Parameters
    ----------
    candidates : iterable of dict
        The parameters of each candidate.

    Examples
    --------
    >>> queue = CandidateQueue([{"C": 1.0}])
    >>> queue.next_trial("t0").config, queue.next_trial("t1").finished
    ({'C': 1.0}, True)
    """

    lookahead = 64
    answers_at_once = True

    def __init__(self, candidates: Iterable[Mapping[str, Any]]) -> None:
        self._candidates = [dict(one) for one in candidates]
        self._given = 0

    def setup(self, spec: SearchSpec) -> None:
        """Do nothing: the candidates are fixed."""

    @property
    def total_samples(self) -> int | None:
        """The number of candidates."""
        return len(self._candidates)

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the next candidate."""
        if self._given >= len(self._candidates):
            return Suggestion(config=None, finished=True)
        config = self._candidates[self._given]
        self._given += 1
        return Suggestion(config=dict(config), tag=self._tag(self._given - 1))

    def _tag(self, number: int) -> str:
        return f"candidate={number}"

    def state_dict(self) -> dict[str, Any]:
        """Return the number of candidates suggested so far."""
        return {"given": self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._given = state["given"]


def sample_candidates(distributions: Any, n_iter: int, random_state: Any) -> list[dict[str, Any]]:
    """Return the candidates that scikit-learn's random search draws.

    Parameters
    ----------
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.
    n_iter : int
        Number of candidates; fewer if all values are given as lists with fewer combinations.
    random_state : int, RandomState or None
        Seed or source of random numbers.
    """
    known = [{name: _sampleable(value) for name, value in one.items()} for one in _as_list(distributions)]
    return list(ParameterSampler(known, n_iter, random_state=random_state))


def example_candidates(distributions: Any) -> list[dict[str, Any]]:
    """Return one candidate for each dict of distributions; skip candidates that set estimators.

    Parameters
    ----------
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.
    """
    found = [sample_candidates(one, 1, 0)[0] for one in _as_list(distributions)]
    return [one for one in found if not any(hasattr(value, "get_params") for value in one.values())]


def estimator_variants(estimator: Any, distributions: Any) -> list[Any]:
    """Return clones of an estimator, one for each value that may change its training mode.

    These are the values in lists and categorical domains that are not numbers, such as those of
    ``solver``.

    Parameters
    ----------
    estimator : estimator
        The estimator; it is cloned.
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> space = {"C": [0.1, 1.0], "solver": ["lbfgs", "saga"]}
    >>> estimator_variants(LogisticRegression(), space)
    [LogisticRegression(), LogisticRegression(solver='saga')]
    """
    found = []
    for one in _as_list(distributions):
        pairs = [(name, value) for name, many in one.items() for value in _categorical_values(many)]
        whole = [(name, value) for name, value in pairs if hasattr(value, "get_params")]
        others = [(name, value) for name, value in pairs if not hasattr(value, "get_params")]
        bases = [_with_param(estimator, *pair) for pair in whole] or [estimator]
        found += bases if whole else []
        found += [_with_param(base, *pair) for base in bases for pair in others]
    return [one for one in found if one is not None]


def _categorical_values(many: Any) -> list[Any]:
    """Return the values of a list or a categorical domain that are not numbers."""
    domain = _as_domain(many)
    if domain is not None:
        many = getattr(domain, "categories", ())
    if hasattr(many, "rvs") or isinstance(many, str | Mapping) or not isinstance(many, Iterable):
        return []
    return [one for one in many if isinstance(one, bool) or not isinstance(one, Number)]


def _with_param(estimator: Any, name: str, value: Any) -> Any:
    """Return a clone with another value of a parameter; None if the estimator refuses it."""
    try:
        return clone(estimator).set_params(**{name: clone(value, safe=False)})
    except Exception:  # perhaps valid with other values only; else `check_candidates` raises
        return None


def check_candidates(estimator: Any, candidates: Iterable[Mapping[str, Any]]) -> None:
    """Check that the estimator has all parameters of the candidates, before anything is fitted.

    The valid names may depend on values that are estimators. So each candidate that sets an
    estimator is checked. Of the other candidates, one is checked for each set of names.

    Parameters
    ----------
    estimator : estimator
        The estimator; it is cloned.
    candidates : iterable of mapping
        The parameters of each candidate.

    Raises
    ------
    ValueError
        If a parameter does not exist; the error comes from the estimator's ``set_params``.
    ConfigError
        If the environment of this process lacks the variable of a secret.

    Examples
    --------
    >>> from sklearn.svm import SVC
    >>> check_candidates(SVC(), [{"C": 1.0}, {"C": 2.0}])
    >>> check_candidates(SVC(), [{"D": 1.0}])
    Traceback (most recent call last):
        ...
    ValueError: Invalid parameter 'D' for estimator SVC(). ...
    """
    seen: set[frozenset[str]] = set()
    for params in candidates:
        values, names = with_secrets(dict(params)), frozenset(params)
        if names not in seen or any(hasattr(value, "get_params") for value in values.values()):
            seen.add(names)
            clone(estimator).set_params(**clone(values, safe=False))


class _SampleableDomain:
    """A domain with ``rvs``, the method by which scikit-learn samples."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain

    def rvs(self, random_state: Any = None) -> Any:
        return self._domain.sample(random_state=random_state)


def _sampleable(value: Any) -> Any:
    domain = _as_domain(value)
    return value if domain is None else _SampleableDomain(domain)


class CandidateSpace:
    """Converts a scikit-learn search space to domains, and configurations back to parameters.

    Lists become choices. If a list has other values than numbers, bools, strings, None and secrets,
    the searcher chooses an index. For a distribution without an equivalent domain, the searcher
    chooses a quantile.

    Parameters
    ----------
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.

    Raises
    ------
    ConfigError
        If a value is not a list, a distribution or a domain.

    Examples
    --------
    >>> space = CandidateSpace({"alpha": [0.1, 0.2], "penalty": [("l", 1), ("l", 2)]})
    >>> space.params({"alpha": 0.2, "penalty": 1})
    {'alpha': 0.2, 'penalty': ('l', 2)}
    """

    def __init__(self, distributions: Any) -> None:
        self._spaces: list[dict[str, Any]] = []
        #: For each dict: {parameter: a function from the searched value to the parameter's value}
        self._decoders: list[dict[str, Any]] = []
        for one in _as_list(distributions):
            pairs = {name: _encode(name, value) for name, value in one.items()}
            self._spaces.append({name: domain for name, (domain, _) in pairs.items()})
            self._decoders.append({name: how for name, (_, how) in pairs.items() if how is not None})

    @property
    def space(self) -> dict[str, Any]:
        """The search space for a searcher."""
        if len(self._spaces) == 1:
            return dict(self._spaces[0])
        several = {str(number): one for number, one in enumerate(self._spaces)}
        return {_WHICH: choice(list(range(len(self._spaces)))), **several}

    def params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a candidate.

        Parameters
        ----------
        config : mapping
            A point of :attr:`space`.
        """
        number = int(config[_WHICH]) if len(self._spaces) > 1 else 0
        values = config[str(number)] if len(self._spaces) > 1 else config
        decoders = self._decoders[number]
        return {name: decoders[name](value) if name in decoders else value for name, value in values.items()}


class _SpaceEntry:
    """Decodes an index to the value at that index of a list."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __call__(self, index: Any) -> Any:
        return self._values[int(index)]


class _Quantile:
    """Decodes a probability to the quantile of a distribution."""

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution

    def __call__(self, probability: float) -> Any:
        value = self._distribution.ppf(probability)
        is_discrete = hasattr(self._distribution.dist, "pmf")
        return int(value) if is_discrete else float(value)


def _as_list(distributions: Any) -> list[Mapping[str, Any]]:
    return [distributions] if isinstance(distributions, Mapping) else list(distributions)


def _encode(name: str, value: Any) -> tuple[Any, Any]:
    """Return a domain and the decoder of its values; the decoder is None if it is not needed."""
    known = _as_domain(value)
    if known is not None:
        return known, None
    if hasattr(value, "rvs"):
        return _scipy_domain(name, value)
    listed = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    check(listed, f"param_distributions[{name!r}]", "a list, a distribution or a domain", value)
    values = list(value)
    plain = [one.item() if isinstance(one, np.generic) else one for one in values]
    if all(isinstance(one, _PLAIN) for one in plain):
        return choice(plain), None
    return choice(list(range(len(values)))), _SpaceEntry(values)


def _scipy_domain(name: str, value: Any) -> tuple[Any, Any]:
    known = getattr(getattr(value, "dist", None), "name", "")
    check(
        hasattr(value, "ppf") and hasattr(value, "dist"),
        f"param_distributions[{name!r}]",
        "a distribution of scipy.stats where search_alg is given",
        value,
        "It has no quantiles. Use a domain, such as dasktune.uniform(0, 1).",
    )
    low, high = value.support()
    if known == "randint":
        return randint(int(low), int(high) + 1), None
    if known == "uniform":
        return uniform(float(low), float(high)), None
    if known in ("loguniform", "reciprocal"):
        return loguniform(float(low), float(high)), None
    # The quantiles of 0 and 1 may be infinite.
    return uniform(1e-9, 1 - 1e-9), _Quantile(value)


def _as_domain(value: Any) -> Domain | None:
    """Return a domain as it is, or an Optuna distribution as a domain; None for other values."""
    if isinstance(value, Domain):
        return value
    if not type(value).__module__.startswith("optuna."):
        return None
    kind = type(value).__name__
    if kind == "CategoricalDistribution":
        return choice(list(value.choices))
    if kind == "IntDistribution":
        if value.log:
            return lograndint(value.low, value.high + 1)
        if value.step > 1:
            return choice(list(range(value.low, value.high + 1, value.step)))
        return randint(value.low, value.high + 1)
    if value.step is not None:
        steps = round((value.high - value.low) / value.step)
        return choice([value.low + number * value.step for number in range(steps + 1)])
    return loguniform(value.low, value.high) if value.log else uniform(value.low, value.high)
