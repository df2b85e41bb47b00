"""Points that are spread more evenly than random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.random import PCG64, Generator, default_rng
from numpy.typing import NDArray

from dasktune.errors import ConfigError, check
from dasktune.search.space_searcher import SpaceSearcher
from dasktune.search.suggest import EvaluatedPoint
from dasktune.trial.metrics import Metric, Modes

__all__ = ["QuasiRandomSearch"]


class QuasiRandomSearch(SpaceSearcher):
    """Draw configurations from a sequence that leaves no corner of the space out. Needs SciPy.

    It learns nothing: a random search with less luck in it, for a first look at a space, or as the
    first trials of a searcher that builds a model.

    Parameters
    ----------
    space : mapping, optional
        What to search; by default the experiment's ``param_space``. Integers, log scales, normal
        distributions, quantised values and choices are drawn as they would be at random, each from
        an axis of its own. Values inside a choice, and functions, are drawn at random.
    method : {"sobol", "halton"}, default="sobol"
        The sequence. Sobol's is at its best where the number of samples is a power of 2.
    scramble : bool, default=True
        Whether to shuffle it by the seed. It stays as even, and has no patterns any more.
    metric, mode : optional
        As in :class:`Searcher`; not looked at.
    points_to_evaluate : sequence of mapping, optional
        Configurations, or parts of one, that are suggested before all others. What they leave open
        is drawn at random.
    seed : int, optional
        The source of all randomness; by default the experiment's.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, the space has a grid or no domain, or SciPy is missing.

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
        #: SciPy's, at the place of the next suggestion; made when it is needed.
        self._engine: Any = None
        super().__init__(
            space, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, seed=seed
        )

    def _take(self, space: Mapping[str, Any], name: str) -> None:
        super()._take(space, name)
        hint = "Write values to be searched as uniform(0, 1) or the like."
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
        rng = self._stream()
        config = self._preset(rng)
        if config is None:
            point = self._next_point()
            values = {
                path: domain.sample(random_state=_Coordinate(part))
                for (path, domain), part in zip(self._axes.items(), point, strict=True)
            }
            config = self._variants.filled(values, rng)
        self._count += 1
        return self._answer(config)

    def _next_point(self) -> list[float]:
        if self._engine is None:
            kind = _qmc().Sobol if self.method == "sobol" else _qmc().Halton
            rng = default_rng(self._entropy)
            self._engine = kind(len(self._axes), scramble=self.scramble, seed=rng)
            done = self._count - len(self._presets)
            if done:  # some versions of SciPy cannot go nowhere
                self._engine.fast_forward(done)
        point: list[float] = self._engine.random(1)[0].tolist()
        return point

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Learn nothing: the sequence is the same whatever is known."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the sequence and the source of randomness."""
        return {"count": self._count, "entropy": list(self._entropy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._count, self._entropy = state["count"], list(state["entropy"])
        self._engine = None


class _Coordinate(Generator):
    """A generator whose every draw is at the same quantile: domains draw from it as from any."""

    def __init__(self, part: float) -> None:
        super().__init__(PCG64(0))
        #: In [0, 1).
        self._part = part

    def random(self, size: int = 1) -> NDArray[np.float64]:  # type: ignore[override]
        return np.full(size, self._part)

    def integers(  # type: ignore[override]
        self, low: int, high: int, size: int = 1, dtype: type[Any] = np.int64
    ) -> NDArray[Any]:
        # A product with a large range may round up to it.
        return np.full(size, min(low + int(self._part * (high - low)), high - 1), dtype)

    def normal(  # type: ignore[override]
        self, loc: float = 0.0, scale: float = 1.0, size: int = 1
    ) -> NDArray[np.float64]:
        # Sobol's points are multiples of 2**-30; the first of all, if not scrambled, is 0.
        part = max(self._part, 2.0**-31)
        return np.full(size, NormalDist(loc, scale).inv_cdf(part))


def _qmc() -> Any:
    try:
        from scipy.stats import qmc
    except ImportError as error:
        raise ConfigError(
            "QuasiRandomSearch must have SciPy, which is not installed. "
            "Run: pip install dasktune[scipy]."
        ) from error
    return qmc
