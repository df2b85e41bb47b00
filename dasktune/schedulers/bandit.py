"""The Gaussian process bandit of PB2: which hyperparameters may improve trials the most now.

scikit-learn is imported where it is needed, which takes a second; a call takes from some
milliseconds to a second, so it is made off the driver's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOST_CHANGES", "Change", "Situation", "most_promising"]

#: Constants of the confidence bound, :math:`\beta = c_1 + \max(0, \log(c_2 n))`.
_C1: Final = 0.2
_C2: Final = 0.4

#: What was observed before so many others is forgotten.
MOST_CHANGES: Final = 1_000

#: How many of the last observations choose the kernel's parameters, which takes most of the time.
_MOST_FITTED: Final = 200

#: Random points at which the bound is looked at, and from how many of the best it is climbed.
_CANDIDATES: Final = 1_000
_CLIMBS: Final = 5

#: Standard deviations beyond which an observation counts as this many.
_CLIP: Final = 2.0

#: A length on which nothing changes.
_ENDLESS: Final = 1e5

#: Length in perturbation intervals of :math:`(1 - \epsilon)^{|t - t'| / 2}` with epsilon = 0.1.
_MEMORY: Final = -2 / np.log1p(-0.1)


@dataclass(frozen=True, slots=True)
class Change:
    """What a trial gained between two perturbations.

    Parameters
    ----------
    time : float
        When it ended, in perturbation intervals.
    before : float
        The reward at its beginning; more is better.
    rate : float
        Reward gained, per unit of time.
    point : tuple of float
        The hyperparameters meanwhile, each from 0 to 1 within its bounds.
    """

    time: float
    before: float
    rate: float
    point: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known where trials need new hyperparameters.

    Parameters
    ----------
    changes : sequence of Change
        All that was observed, the newest last; at least one.
    pending : sequence of tuple of float
        Hyperparameters that other trials were given, of which nothing is known yet.
    time : float
        Now, in perturbation intervals.
    rewards : sequence of float
        The rewards of the trials that are cloned, one for each point that is wanted.
    seed : int
        Of the random points.
    """

    changes: Sequence[Change]
    pending: Sequence[tuple[float, ...]]
    time: float
    rewards: Sequence[float]
    seed: int


def most_promising(situation: Situation) -> list[tuple[float, ...]]:
    r"""Return the points that maximise the upper confidence bound of the gain, one after the other.

    The gain is modelled by a Gaussian process with the kernel
    :math:`k_{SE}(x, x') (1 - \epsilon)^{|t - t'| / 2}`, and the bound is
    :math:`\mu(x) + \sqrt{\beta} \sigma(x)`, where :math:`\sigma` takes the pending points as
    observed, and the points that were found before.

    Parameters
    ----------
    situation : Situation
        What is known.

    Returns
    -------
    list of tuple of float
        For each reward the hyperparameters, each from 0 to 1 within its bounds.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.

    References
    ----------
    .. [1] J. Parker-Holder, V. Nguyen and S. Roberts, "Provably Efficient Online Hyperparameter
       Optimization with Population-Based Bandits", NeurIPS, 2020. https://arxiv.org/abs/2002.02518

    Examples
    --------
    >>> seen = [Change(1.0, 0.0, -((x - 0.7) ** 2), (x,)) for x in (0.0, 0.25, 0.5, 0.75, 1.0)]
    >>> (best,), (other,) = most_promising(Situation(seen, (), time=2.0, rewards=[0, 0], seed=0))
    >>> 0.6 < best < 0.8, best == other
    (True, False)
    """
    changes = situation.changes[-MOST_CHANGES:]
    rewards = np.array([change.before for change in changes])
    centre, scale = rewards.mean(), rewards.std() or 1.0

    def inputs(time: float, before: float, points: Any) -> NDArray[np.float64]:
        """Return one row for each point: time, reward, hyperparameters."""
        points = np.atleast_2d(points)
        same = np.full(len(points), (before - centre) / scale)
        return np.column_stack([np.full(len(points), time), same, points])

    x = np.vstack([inputs(one.time, one.before, one.point) for one in changes])
    process = _fit(x, _standardised([change.rate for change in changes]))
    beta = _C1 + max(0.0, np.log(_C2 * len(changes)))
    rng = np.random.default_rng(situation.seed)
    found: list[tuple[float, ...]] = []
    for reward in situation.rewards:
        at = partial(inputs, situation.time, reward)
        pending = [*situation.pending, *found]
        informed = _conditioned(process, at(pending)) if pending else process
        bound = _Bound(process, informed, at, np.sqrt(beta))
        found.append(_maximum(bound, len(changes[0].point), rng))
    return found


@dataclass(frozen=True, slots=True)
class _Bound:
    """The upper confidence bound of what a trial gains with some hyperparameters."""

    process: Any
    #: Knows where others are trying already, but not what comes of it.
    informed: Any
    #: Returns the inputs of the processes for hyperparameters.
    at: Callable[[Any], NDArray[np.float64]]
    #: How many standard deviations are hoped for.
    hope: float

    def __call__(self, points: Any) -> NDArray[np.float64]:
        """Return it for each row of hyperparameters."""
        inputs = self.at(points)
        spread = self.informed.predict(inputs, return_std=True)[1]
        value: NDArray[np.float64] = self.process.predict(inputs) + self.hope * spread
        return value


def _fit(x: NDArray[np.float64], y: NDArray[np.float64]) -> Any:
    """Return a Gaussian process of the observations, its kernel the likeliest for the last."""
    from scipy.optimize import minimize
    from sklearn.gaussian_process import GaussianProcessRegressor

    recent = GaussianProcessRegressor(_kernel(x.shape[1]), optimizer=None)
    recent.fit(x[-_MOST_FITTED:], y[-_MOST_FITTED:])

    def unlikeliness(theta: Any) -> tuple[float, Any]:
        likelihood, gradient = recent.log_marginal_likelihood(theta, eval_gradient=True)
        return -likelihood, -gradient

    kernel = recent.kernel_
    found = minimize(unlikeliness, kernel.theta, jac=True, method="L-BFGS-B", bounds=kernel.bounds)
    return GaussianProcessRegressor(kernel.clone_with_theta(found.x), optimizer=None).fit(x, y)


def _kernel(columns: int) -> Any:
    """Return the kernel: smooth in the hyperparameters and the reward, forgetful in time."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    endless = (_ENDLESS, _ENDLESS)
    others = columns - 1
    smooth = RBF([_ENDLESS] + [1.0] * others, [endless] + [(0.05, 20.0)] * others)
    # A Matern kernel with nu = 1/2 is the exponential of the distance.
    forgetful = Matern([_MEMORY] + [_ENDLESS] * others, [(1.0, 1e3)] + [endless] * others, nu=0.5)
    return ConstantKernel(1.0, (0.05, 20.0)) * smooth * forgetful + WhiteKernel(0.01, (1e-4, 1.0))


def _conditioned(process: Any, theirs: NDArray[np.float64]) -> Any:
    """Return a process that is as certain as if some more had been observed."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    y = np.append(process.y_train_, np.zeros(len(theirs)))
    x = np.vstack([process.X_train_, theirs])
    return GaussianProcessRegressor(process.kernel_, optimizer=None).fit(x, y)


def _standardised(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values)
    clipped: NDArray[np.float64] = np.clip(
        (array - array.mean()) / (array.std() or 1.0), -_CLIP, _CLIP
    )
    return clipped


def _maximum(bound: Any, dimensions: int, rng: np.random.Generator) -> tuple[float, ...]:
    """Climb from the best of many random points."""
    from scipy.optimize import minimize

    starts = rng.uniform(size=(_CANDIDATES, dimensions))
    best = starts[np.argsort(-bound(starts), kind="stable")[:_CLIMBS]]
    ends = [
        minimize(
            lambda point: -float(bound(point)[0]),
            start,
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * dimensions,
        ).x
        for start in best
    ]
    tops = np.vstack([best, ends])
    return tuple(float(value) for value in tops[int(np.argmax(bound(tops)))])
