"""The Gaussian process bandit of PB2, which suggests hyperparameters for clones.

A call takes from some milliseconds to a second, and the first one imports scikit-learn, which takes
a second more. So the calls are made in a background thread, not in the driver's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dasktune.numeric_threads import single_threaded

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Constants of the confidence bound, :math:`\beta = c_1 + \max(0, \log(c_2 n))`.
_C1: Final = 0.2
_C2: Final = 0.4

#: Maximum number of observations; older ones are dropped.
MOST_CHANGES: Final = 1_000

#: Number of newest observations for the fit of the kernel's parameters, the most expensive step.
_MOST_FITTED: Final = 200

#: Number of random candidates, and of the best of them from which the bound is maximised.
_CANDIDATES: Final = 1_000
_CLIMBS: Final = 5

#: Standardised observations are clipped to this many standard deviations.
_CLIP: Final = 2.0

#: A length scale so large that the process does not depend on the input.
_ENDLESS: Final = 1e5

#: Length scale, in perturbation intervals, of :math:`(1 - \epsilon)^{|t - t'| / 2}`, epsilon = 0.1.
_MEMORY: Final = -2 / np.log1p(-0.1)


@dataclass(frozen=True, slots=True)
class Change:
    """One observation: the improvement of a trial between two rankings.

    Parameters
    ----------
    time : float
        Time of the second ranking, in perturbation intervals.
    before : float
        Reward at the first ranking; higher is better.
    rate : float
        Improvement of the reward per unit of time.
    point : tuple of float
        The hyperparameters, scaled to [0, 1].
    """

    time: float
    before: float
    rate: float
    point: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BanditState:
    """The input of :func:`suggest_points`.

    Parameters
    ----------
    changes : sequence of Change
        The observations, newest last; at least one.
    pending : sequence of tuple of float
        Points that other trials use and for which there is no observation yet.
    time : float
        Current time, in perturbation intervals.
    rewards : sequence of float
        Reward of the donor of each clone; one point is suggested for each.
    seed : int
        Seed of the random candidates.
    """

    changes: Sequence[Change]
    pending: Sequence[tuple[float, ...]]
    time: float
    rewards: Sequence[float]
    seed: int


@single_threaded("scipy.optimize", "sklearn.gaussian_process")
def suggest_points(situation: BanditState) -> list[tuple[float, ...]]:
    r"""Return, one after the other, points with the largest upper confidence bound of improvement.

    The improvement is modelled by a Gaussian process with the kernel
    :math:`k_{SE}(x, x') (1 - \epsilon)^{|t - t'| / 2}`, and the bound is
    :math:`\mu(x) + \sqrt{\beta} \sigma(x)`. For :math:`\sigma`, pending points and points that were
    suggested before count as observed.

    Parameters
    ----------
    situation : BanditState
        Observations, pending points, time and rewards.

    Returns
    -------
    list of tuple of float
        One point for each reward, scaled to [0, 1].

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
    >>> (best,), (other,) = suggest_points(BanditState(seen, (), time=2.0, rewards=[0, 0], seed=0))
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
    process = _fit(x, _standardise([change.rate for change in changes]))
    beta = _C1 + max(0.0, np.log(_C2 * len(changes)))
    rng = np.random.default_rng(situation.seed)
    found: list[tuple[float, ...]] = []
    for reward in situation.rewards:
        at = partial(inputs, situation.time, reward)
        pending = [*situation.pending, *found]
        informed = _condition_on(process, at(pending)) if pending else process
        bound = _Bound(process, informed, at, np.sqrt(beta))
        found.append(_maximum(bound, len(changes[0].point), rng))
    return found


@dataclass(frozen=True, slots=True)
class _Bound:
    """The upper confidence bound of the improvement as a function of the hyperparameters."""

    process: Any
    #: The process with pending points added as observations, for the variance only.
    informed: Any
    #: Converts hyperparameters to inputs of the processes.
    at: Callable[[Any], NDArray[np.float64]]
    #: sqrt(beta), the factor of the standard deviation.
    width: float

    def __call__(self, points: Any) -> NDArray[np.float64]:
        """Return the bound for each row of hyperparameters."""
        inputs = self.at(points)
        spread = self.informed.predict(inputs, return_std=True)[1]
        value: NDArray[np.float64] = self.process.predict(inputs) + self.width * spread
        return value


def _fit(x: NDArray[np.float64], y: NDArray[np.float64]) -> Any:
    """Fit a Gaussian process; the kernel maximises the likelihood of the newest observations."""
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
    """Return the kernel: RBF in hyperparameters and reward, exponential in time, plus noise."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    endless = (_ENDLESS, _ENDLESS)
    others = columns - 1
    smooth = RBF([_ENDLESS] + [1.0] * others, [endless] + [(0.05, 20.0)] * others)
    # A Matern kernel with nu = 1/2 is the exponential of the distance.
    forgetful = Matern([_MEMORY] + [_ENDLESS] * others, [(1.0, 1e3)] + [endless] * others, nu=0.5)
    return ConstantKernel(1.0, (0.05, 20.0)) * smooth * forgetful + WhiteKernel(0.01, (1e-4, 1.0))


def _condition_on(process: Any, theirs: NDArray[np.float64]) -> Any:
    """Return the process with added observations of value 0; use it for the variance only."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    y = np.append(process.y_train_, np.zeros(len(theirs)))
    x = np.vstack([process.X_train_, theirs])
    return GaussianProcessRegressor(process.kernel_, optimizer=None).fit(x, y)


def _standardise(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values)
    clipped: NDArray[np.float64] = np.clip((array - array.mean()) / (array.std() or 1.0), -_CLIP, _CLIP)
    return clipped


def _maximum(bound: Any, dimensions: int, rng: np.random.Generator) -> tuple[float, ...]:
    """Maximise the bound by L-BFGS-B from the best of many random points."""
    from scipy.optimize import minimize

    starts = rng.uniform(size=(_CANDIDATES, dimensions))
    best = starts[np.argsort(-bound(starts), kind="stable")[:_CLIMBS]]
    ends = [
        minimize(
            lambda point: -float(bound(point)[0]), start, method="L-BFGS-B", bounds=[(0.0, 1.0)] * dimensions
        ).x
        for start in best
    ]
    tops = np.vstack([best, ends])
    return tuple(float(value) for value in tops[int(np.argmax(bound(tops)))])
