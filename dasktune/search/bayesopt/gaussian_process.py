"""`GaussianProcess`, the ask-and-tell interface to the package bayesian-optimization."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState, SeedSequence, default_rng

from dasktune.errors import check
from dasktune.numeric_threads import single_threaded
from dasktune.search.ask_tell import AskTell
from dasktune.search.searcher import FINISHED, Finished
from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.spaces.unit_cube import UnitCube
from dasktune.space import Domain

logger = logging.getLogger(__name__)


def require_bayes_opt() -> None:
    """Raise ImportError if the package is not installed; the message says how to install it."""
    try:
        import bayes_opt  # noqa: F401
    except ImportError as error:
        message = "BayesOptSearch needs bayesian-optimization 3: pip install 'bayesian-optimization>=3'"
        raise ImportError(message) from error


@dataclass(frozen=True, slots=True)
class DuplicateRule:
    """How to treat suggestions that repeat an earlier point.

    Parameters
    ----------
    tries : int
        Number of duplicates in a row after which the optimiser gives no suggestion; 0 if duplicates
        are suggested like other points.
    digits : int
        Points are duplicates if their parameters, scaled to [0, 1], agree to this number of
        decimals.
    """

    tries: int
    digits: int


class GaussianProcess(AskTell):
    """Suggests points by a Gaussian process, which is created and fitted for each suggestion.

    A suggestion depends only on the known values, the running trials, the number of suggestions and
    the seed, so the saved state contains no model.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains by path, all of them ranges.
    seed : int
        The seed of all randomness.
    random_steps : int
        Number of random suggestions before the Gaussian process is used.
    patience : DuplicateRule
        How to treat suggestions that repeat an earlier point.
    utility : mapping
        ``kind``, ``kappa`` and ``xi`` of the acquisition function.
    verbose : bool, default=False
        Whether suggestions are logged.

    Raises
    ------
    ConfigError
        If there is a choice or a domain without bounds, or no domain has more than one value.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        *,
        seed: int,
        random_steps: int,
        patience: DuplicateRule,
        utility: Mapping[str, Any],
        verbose: bool = False,
    ) -> None:
        self._flat = FlatSpace(domains, "BayesOptSearch")
        self._cube = UnitCube(self._flat.parameters)
        choices = [parameter.name for parameter in self._flat.parameters if parameter.is_choice]
        hint = "BayesOptSearch searches ranges; use OptunaSearch for choices."
        check(not choices, "param_space", "made of ranges", choices, hint)
        self._seed = seed
        self._random_steps = random_steps
        self._duplicates = patience
        self._utility = utility
        self._verbose = verbose
        self._asked = 0
        #: The points of running trials, in the unit cube, as in the two lists below.
        self._running: list[list[float]] = []
        #: The evaluated points with their values, higher is better.
        self._known: list[tuple[list[float], float]] = []
        #: All points: running, evaluated and failed ones.
        self._seen: list[list[float]] = []

    def ask(self) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return the next point; if all attempts are duplicates, None or FINISHED.

        It is FINISHED if no trial is running, because the next attempts would be duplicates too.
        """
        for attempt in range(max(self._duplicates.tries, 1)):
            [seed] = SeedSequence([self._seed, self._asked, attempt]).generate_state(1)
            point = self._flat.point(self._cube.values(self._propose(int(seed))))
            vector = self._vector(point)
            assert vector is not None, "a suggestion is a point of the space"
            if not self._duplicates.tries or not self._is_duplicate(vector):
                self._asked += 1
                self._running.append(vector)
                self._seen.append(vector)
                return point
        return None if self._running else FINISHED

    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Add the value of a point, whether or not it was suggested here."""
        vector = self._vector(params)
        if vector is None:
            return
        if vector in self._running:
            self._running.remove(vector)
        else:
            self._seen.append(vector)
        if isinstance(loss, float | int):
            self._known.append((vector, -float(loss)))

    def _vector(self, point: Mapping[str, Any]) -> list[float] | None:
        values = self._flat.values(point)
        if values is None:
            return None
        return [part for part in self._cube.vector(values) if part is not None]

    def _is_duplicate(self, vector: list[float]) -> bool:
        near = 0.5 * 10.0**-self._duplicates.digits
        return bool(self._seen) and bool((np.abs(np.array(self._seen) - vector) <= near).all(axis=1).any())

    @single_threaded("bayes_opt")
    def _propose(self, seed: int) -> list[float]:
        names = [f"{index:03d}" for index in range(len(self._flat.parameters))]
        if self._asked < self._random_steps or not self._known:
            drawn: list[float] = default_rng(seed).random(len(names)).tolist()
            return drawn
        from bayes_opt import BayesianOptimization

        optimizer = BayesianOptimization(
            None,
            dict.fromkeys(names, (0.0, 1.0)),
            acquisition_function=self._acquisition(),
            random_state=RandomState(seed),
            verbose=0,
            allow_duplicate_points=True,
        )
        mean = float(np.mean([target for _, target in self._known]))
        for vector, target in [*self._known, *((point, mean) for point in self._running)]:
            optimizer.register(dict(zip(names, vector, strict=True)), target)
        with warnings.catch_warnings():
            # With few points the fitted kernel is often at its bounds, of which scikit-learn warns.
            warnings.simplefilter("ignore")
            suggested = optimizer.suggest()
        vector = [float(suggested[name]) for name in names]
        if self._verbose:
            # suggest() has fitted the process to the same points, so it is not fitted again.
            [mean], [deviation] = optimizer.predict([suggested], return_std=True, fit_gp=False)
            logger.info(
                "a Gaussian process of %d trials proposes %s and expects %.4g +- %.4g there "
                "(higher is better)",
                len(self._known),
                self._flat.point(self._cube.values(vector)),
                mean,
                deviation,
            )
        return vector

    def _acquisition(self) -> Any:
        from bayes_opt import acquisition

        if self._utility["kind"] == "ucb":
            return acquisition.UpperConfidenceBound(kappa=self._utility["kappa"])
        if self._utility["kind"] == "ei":
            return acquisition.ExpectedImprovement(xi=self._utility["xi"])
        return acquisition.ProbabilityOfImprovement(xi=self._utility["xi"])

    def state_dict(self) -> dict[str, Any]:
        """Return all points, and the number of suggestions made."""
        return {
            "asked": self._asked,
            "running": list(self._running),
            "known": [[vector, target] for vector, target in self._known],
            "tried": list(self._seen),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._asked = state["asked"]
        self._running = list(state["running"])
        self._known = [(vector, target) for vector, target in state["known"]]
        self._seen = list(state["tried"])
