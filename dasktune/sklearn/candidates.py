"""What a search may try: the spaces of scikit-learn's users, for any searcher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, Final

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterSampler

from dasktune.errors import check
from dasktune.search.searcher import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.space import Domain, choice, lograndint, loguniform, randint, uniform

__all__ = ["CandidateQueue", "CandidateSpace", "check_candidates", "drawn", "examples", "variants"]

#: What every searcher and the journal can hold.
_PLAIN: Final = (str, int, float, bool, type(None))

#: Which of several dicts of distributions a candidate comes from.
_WHICH: Final = "which"


class CandidateQueue(SearchAlgorithm):
    """Gives out candidates that are known before, in their order.

    Parameters
    ----------
    candidates : iterable of dict
        The parameters of each.

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
        """Take the task: there is nothing to know."""

    @property
    def total_samples(self) -> int | None:
        """How many there are."""
        return len(self._candidates)

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the next candidate."""
        if self._given >= len(self._candidates):
            return Suggestion(config=None, finished=True)
        config = self._candidates[self._given]
        self._given += 1
        return Suggestion(config=dict(config), tag=f"candidate={self._given - 1}")

    def state_dict(self) -> dict[str, Any]:
        """Return how many were given out."""
        return {"given": self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._given = state["given"]


def drawn(distributions: Any, n_iter: int, random_state: Any) -> list[dict[str, Any]]:
    """Return the candidates that scikit-learn's random search draws.

    Parameters
    ----------
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.
    n_iter : int
        How many; fewer if all values are lists, with fewer combinations.
    random_state : int, RandomState or None
        Where randomness comes from.
    """
    known = [
        {name: _drawable(value) for name, value in one.items()} for one in _dicts(distributions)
    ]
    return list(ParameterSampler(known, n_iter, random_state=random_state))


def examples(distributions: Any) -> list[dict[str, Any]]:
    """Return a candidate of each of several spaces, without those that choose estimators.

    Parameters
    ----------
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.
    """
    found = [drawn(one, 1, 0)[0] for one in _dicts(distributions)]
    return [one for one in found if not any(hasattr(value, "get_params") for value in one.values())]


def variants(estimator: Any, distributions: Any) -> list[Any]:
    """Return an estimator with each value that may decide by which way it can be trained.

    Those are listed and no numbers, as of a parameter that chooses an algorithm.

    Parameters
    ----------
    estimator : estimator
        Is cloned.
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> space = {"C": [0.1, 1.0], "solver": ["lbfgs", "saga"]}
    >>> variants(LogisticRegression(), space)
    [LogisticRegression(), LogisticRegression(solver='saga')]
    """
    found = []
    for one in _dicts(distributions):
        pairs = [(name, value) for name, many in one.items() for value in _deciding(many)]
        whole = [(name, value) for name, value in pairs if hasattr(value, "get_params")]
        others = [(name, value) for name, value in pairs if not hasattr(value, "get_params")]
        bases = [_with(estimator, *pair) for pair in whole] or [estimator]
        found += bases if whole else []
        found += [_with(base, *pair) for base in bases for pair in others]
    return [one for one in found if one is not None]


def _deciding(many: Any) -> list[Any]:
    """Return the values of a list, or of a domain of such, that are no numbers."""
    domain = _of_optuna(many)
    if domain is not None:
        many = getattr(domain, "categories", ())
    if hasattr(many, "rvs") or isinstance(many, str | Mapping) or not isinstance(many, Iterable):
        return []
    return [one for one in many if isinstance(one, bool) or not isinstance(one, Number)]


def _with(estimator: Any, name: str, value: Any) -> Any:
    """Return an estimator with another value of a parameter; None if it takes none."""
    try:
        return clone(estimator).set_params(**{name: clone(value, safe=False)})
    except Exception:  # said where candidates are checked, if it is none with the others of its own
        return None


def check_candidates(estimator: Any, candidates: Iterable[Mapping[str, Any]]) -> None:
    """Find a parameter that the estimator does not have, before anything is fitted.

    Which ones it has may hang on those that are estimators themselves, so all that set one are
    tried, and of the others the first with the same names.

    Parameters
    ----------
    estimator : estimator
        Is cloned.
    candidates : iterable of mapping
        The parameters of each.

    Raises
    ------
    ValueError
        As the estimator's ``set_params`` has it.

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
        names = frozenset(params)
        if names not in seen or any(hasattr(value, "get_params") for value in params.values()):
            seen.add(names)
            clone(estimator).set_params(**clone(dict(params), safe=False))


class _Drawable:
    """A domain with the method that scikit-learn draws by."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain

    def rvs(self, random_state: Any = None) -> Any:
        return self._domain.sample(random_state=random_state)


def _drawable(value: Any) -> Any:
    domain = _of_optuna(value)
    return value if domain is None else _Drawable(domain)


class CandidateSpace:
    """A search space of scikit-learn's users in the words of any searcher, and the way back.

    Lists become choices. Values that are not plain are searched as their places in the list, and
    distributions that no searcher knows as their quantiles.

    Parameters
    ----------
    distributions : mapping or list of mapping
        As `TuneSearchCV` takes them.

    Raises
    ------
    ConfigError
        If a value is none that can be searched.

    Examples
    --------
    >>> space = CandidateSpace({"alpha": [0.1, 0.2], "penalty": [("l", 1), ("l", 2)]})
    >>> space.params({"alpha": 0.2, "penalty": 1})
    {'alpha': 0.2, 'penalty': ('l', 2)}
    """

    def __init__(self, distributions: Any) -> None:
        self._spaces: list[dict[str, Any]] = []
        #: For each dict, what stands for the values of a parameter.
        self._decoders: list[dict[str, Any]] = []
        for one in _dicts(distributions):
            pairs = {name: _encoded(name, value) for name, value in one.items()}
            self._spaces.append({name: domain for name, (domain, _) in pairs.items()})
            self._decoders.append(
                {name: how for name, (_, how) in pairs.items() if how is not None}
            )

    @property
    def space(self) -> dict[str, Any]:
        """What a searcher searches."""
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
        return {
            name: decoders[name](value) if name in decoders else value
            for name, value in values.items()
        }


class _Entry:
    """The value at a place of a list."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __call__(self, place: Any) -> Any:
        return self._values[int(place)]


class _Quantile:
    """The value of a distribution below which a share of it lies."""

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution

    def __call__(self, share: float) -> Any:
        value = self._distribution.ppf(share)
        is_discrete = hasattr(self._distribution.dist, "pmf")
        return int(value) if is_discrete else float(value)


def _dicts(distributions: Any) -> list[Mapping[str, Any]]:
    return [distributions] if isinstance(distributions, Mapping) else list(distributions)


def _encoded(name: str, value: Any) -> tuple[Any, Any]:
    """Return a domain, and how its values are turned back; None for those that are as they are."""
    known = _of_optuna(value)
    if known is not None:
        return known, None
    if hasattr(value, "rvs"):
        return _of_scipy(name, value)
    listed = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    check(
        listed,
        f"param_distributions[{name!r}]",
        "a list, a distribution or a domain",
        value,
    )
    values = list(value)
    plain = [one.item() if isinstance(one, np.generic) else one for one in values]
    if all(isinstance(one, _PLAIN) for one in plain):
        return choice(plain), None
    return choice(list(range(len(values)))), _Entry(values)


def _of_scipy(name: str, value: Any) -> tuple[Any, Any]:
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
    # The outermost quantiles may be infinite.
    return uniform(1e-9, 1 - 1e-9), _Quantile(value)


def _of_optuna(value: Any) -> Domain | None:
    """Return the domain that a value is, or that one of Optuna's distributions stands for."""
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
