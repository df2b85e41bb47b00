"""Quasi-random search with Sobol and Halton sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.random import PCG64, Generator, default_rng
from numpy.typing import NDArray

from dasktune.errors import ConfigError, check
from dasktune.search.searcher import EvaluatedPoint
from dasktune.search.space_searcher import SpaceSearcher
from dasktune.trial.metrics import Metric, Modes


class QuasiRandomSearch(SpaceSearcher):
    """Suggest the points of a low-discrepancy sequence. Needs SciPy.

    The points cover the space more evenly than random ones. The searcher learns nothing from
    results. Use it for a first look at a space, or for the first trials of a model-based searcher.

    Parameters
    ----------
    space : mapping, optional
        The search space; by default the experiment's ``param_space``. Each domain is one dimension
        of the sequence and keeps its distribution: integers, log scales, normal distributions,
        quantised values and choices. Domains inside a choice, and functions, are drawn at random.
    method : {"sobol", "halton"}, default="sobol"
        The sequence. Sobol is best if the number of samples is a power of 2.
    scramble : bool, default=True
        Whether to scramble the sequence with the seed. This keeps it even and removes patterns.
    metric, mode : optional
        As in :class:`Searcher`; ignored.
    points_to_evaluate : sequence of mapping, optional
        Complete or partial configurations that are suggested before all others. Missing values are
        drawn at random.
    seed : int, optional
        The seed of all randomness; by default the experiment's.

    Raises
    ------
    ConfigError
        If an argument is invalid, the space has a grid or no domain, or SciPy is missing.

    References
    ----------
    .. [1] Owen, "Scrambling Sobol' and Niederreiter-Xing points", Journal of Complexity 14, 1998.

    Examples
    --------
    >>> from numpy.random import SeedSequence
    >>> from dasktune.space import randint
    >>> search = QuasiRandomSearch({"x": randint(0, 4)}, seed=1)
    >>> search.set_search_properties(None, None, {}, seed=SeedSequence(0))
    False
    >>> sorted(search.suggest(name)["x"] for name in "abcd")
    [0, 1, 2, 3]
    """

    answers_at_once = True
    learns = False

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        *,
        method: Literal["sobol", "halton"] = "sobol",
        scramble: bool = True,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        check(method in ("sobol", "halton"), "method", "'sobol' or 'halton'", method)
        check(isinstance(scramble, bool), "scramble", "a bool", scramble)
        _qmc()
        self.method = method
        self.scramble = scramble
        #: SciPy's engine, at the position of the next suggestion; created at the first one.
        self._engine: Any = None
        super().__init__(space, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, seed=seed)

    def _set_space(self, space: Mapping[str, Any], name: str) -> None:
        super()._set_space(space, name)
        hint = "Use a domain such as uniform(0, 1) for each value to search."
        check(bool(self._axes), name, "a dict with at least one domain", space, hint)
        for path, domain in self._axes.items():
            try:
                domain.sample(random_state=_Coordinate(0.5))
            except Exception as error:
                rule = "a domain that can be drawn from"
                message = f"{name}[{path!r}] must be {rule}, got {domain!r}: {error}"
                raise ConfigError(message) from error

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the next point of the sequence."""
        self._start_without_experiment()
        rng = self._next_rng()
        config = self._next_preset(rng)
        if config is None:
            point = self._next_point()
            values = {
                path: domain.sample(random_state=_Coordinate(quantile))
                for (path, domain), quantile in zip(self._axes.items(), point, strict=True)
            }
            config = self._variants.fill_in(values, rng)
        self._count += 1
        return self._searched_part(config)

    def _next_point(self) -> list[float]:
        if self._engine is None:
            kind = _qmc().Sobol if self.method == "sobol" else _qmc().Halton
            rng = default_rng(self._entropy)
            self._engine = kind(len(self._axes), scramble=self.scramble, seed=rng)
            done = self._count - len(self._presets)
            if done:  # some versions of SciPy cannot advance by 0 points
                self._engine.fast_forward(done)
        point: list[float] = self._engine.random(1)[0].tolist()
        return point

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Ignore the point: the sequence does not depend on results."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the sequence and the random seed."""
        return {"count": self._count, "entropy": list(self._entropy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._count, self._entropy = state["count"], list(state["entropy"])
        self._engine = None


class _Coordinate(Generator):
    """A random generator that returns a given quantile, so that domains map it to a value."""

    def __init__(self, quantile: float) -> None:
        super().__init__(PCG64(0))
        #: In [0, 1).
        self._quantile = quantile

    def random(self, size: int = 1) -> NDArray[np.float64]:  # type: ignore[override]
        return np.full(size, self._quantile)

    def integers(  # type: ignore[override]
        self, low: int, high: int, size: int = 1, dtype: type[Any] = np.int64
    ) -> NDArray[Any]:
        # For a large range the product may round up to the range itself.
        return np.full(size, min(low + int(self._quantile * (high - low)), high - 1), dtype)

    def normal(  # type: ignore[override]
        self, loc: float = 0.0, scale: float = 1.0, size: int = 1
    ) -> NDArray[np.float64]:
        # Sobol points are multiples of 2**-30; the first one is 0 if not scrambled.
        quantile = max(self._quantile, 2.0**-31)
        return np.full(size, NormalDist(loc, scale).inv_cdf(quantile))


def _qmc() -> Any:
    try:
        from scipy.stats import qmc
    except ImportError as error:
        raise ConfigError(
            "QuasiRandomSearch must have SciPy, which is not installed. Run: pip install scipy."
        ) from error
    return qmc
