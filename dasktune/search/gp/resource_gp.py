"""A Gaussian process over configurations and resources, and expected improvement."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dasktune.numeric_threads import single_threaded

Array = NDArray[np.float64]

#: Medians and standard deviations of the log-normal priors: of each length scale, of the length
#: scale of resources, and of the noise variance. The share w is logit-normal, with the mean 0.
_LENGTH, _RESOURCE_LENGTH, _NOISE = 0.6, 1.0, 0.05
_LENGTH_SD: Final = 0.8

#: Bounds of the logarithms and of the logit, so that no step of the optimiser overflows and the
#: covariance matrix stays positive definite.
_BOUNDS: Final = (-9.0, 5.0)

#: Variance that is added to the noise.
_JITTER: Final = 1e-6

#: The steps of the optimiser: the start is the last fit, to smaller data, so a few are enough.
_STEPS: Final = 8


def prior_mean(num_parameters: int) -> Array:
    """Return the hyperparameters at the middle of their priors, an array of shape (d + 3,).

    They are the logarithms of a length scale for each parameter, the logit of w, and the logarithms
    of the resource's length scale and of the noise variance.
    """
    logs = np.log([*[_LENGTH] * num_parameters, 1.0, _RESOURCE_LENGTH, _NOISE])
    return np.asarray(logs)


@single_threaded("scipy.linalg", "scipy.optimize")
def fit_hyperparameters(theta: Array, vectors: Array, owners: NDArray[np.int64], u: Array, z: Array) -> Array:
    """Return hyperparameters of a larger posterior density, by 8 steps of L-BFGS from `theta`.

    Parameters
    ----------
    theta : ndarray of shape (d + 3,)
        The hyperparameters to start from, as from :func:`prior_mean`.
    vectors : ndarray of shape (n, f)
        The configurations, as from `KernelFeatures`.
    owners : ndarray of shape (f,)
        The parameter of each column of `vectors`.
    u : ndarray of shape (n,)
        The resources.
    z : ndarray of shape (n,)
        The standardised losses.
    """
    from scipy.optimize import minimize

    d = len(theta) - 3
    # The squared distances in each parameter; a choice, for instance, has several columns.
    squares = np.zeros((d, len(z), len(z)))
    for column, owner in zip(vectors.T, owners, strict=True):
        squares[owner] += (column[:, None] - column[None, :]) ** 2
    found = minimize(
        negative_log_density,
        theta,
        (squares, np.abs(u[:, None] - u[None, :]), z),
        jac=True,
        method="L-BFGS-B",
        bounds=[_BOUNDS] * len(theta),
        options={"maxiter": _STEPS},
    )
    return np.asarray(found.x)


def negative_log_density(theta: Array, squares: Array, steps: Array, z: Array) -> tuple[float, Array]:
    """Return the negative logarithm of the posterior density, and its gradient.

    These are equations 2.30 and 5.9 of [1]_ with the priors, without constant terms.

    Parameters
    ----------
    theta : ndarray of shape (d + 3,)
        The hyperparameters, as from :func:`prior_mean`.
    squares : ndarray of shape (d, n, n)
        The squared distances of the configurations in each parameter.
    steps : ndarray of shape (n, n)
        The distances of the resources.
    z : ndarray of shape (n,)
        The standardised losses.

    References
    ----------
    .. [1] Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press 2006.
    """
    from scipy.linalg import cho_factor, cho_solve

    d, n = len(squares), len(z)
    weights = np.exp(-2 * theta[:d])
    share, length, noise = _share(theta), np.exp(theta[d + 1]), np.exp(theta[d + 2])
    root, decay = _decay(np.tensordot(weights, squares, 1))
    matern = (1 + root + root**2 / 3) * decay
    fade = np.exp(-steps / length)
    resource = share + (1 - share) * fade
    covariance = matern * resource
    covariance[np.diag_indices(n)] += noise + _JITTER
    factor = cho_factor(covariance, lower=True)
    inverse = cho_solve(factor, np.eye(n))
    alpha = inverse @ z
    outer = inverse - np.outer(alpha, alpha)
    # The derivative of a Matern kernel by the squared distance is -5/6 (1 + root) decay.
    inner = outer * (1 + root) * decay * resource * (5 / 3)
    gradient = np.empty_like(theta)
    gradient[:d] = 0.5 * np.tensordot(squares, inner, 2) * weights
    gradient[d] = 0.5 * (outer * matern * (1 - fade)).sum() * share * (1 - share)
    gradient[d + 1] = 0.5 * (outer * matern * (1 - share) * fade * steps).sum() / length
    gradient[d + 2] = 0.5 * np.trace(outer) * noise
    away = (theta - prior_mean(d)) / np.array([*[_LENGTH_SD] * d, 1.0, 1.0, 1.0])
    density = 0.5 * z @ alpha + np.log(np.diag(factor[0])).sum() + 0.5 * (away**2).sum()
    return float(density), gradient + away / np.array([*[_LENGTH_SD] * d, 1.0, 1.0, 1.0])


class ResourceGP:
    """A Gaussian process over configurations x and resources u, with given hyperparameters.

    The covariance is ``M(x, x') (w + (1 - w) exp(-|u - u'| / l))``, with the Matern kernel M of
    smoothness 5/2 (equation 4.17 of [1]_) and a length scale for each parameter. The mean is 0.

    Parameters
    ----------
    theta : ndarray of shape (d + 3,)
        The hyperparameters, as from :func:`prior_mean`.
    owners : ndarray of shape (f,)
        The parameter of each column of the configurations.
    vectors : ndarray of shape (n, f)
        The observed configurations, as from `KernelFeatures`.
    u : ndarray of shape (n,)
        Their resources.
    z : ndarray of shape (n,)
        Their losses.

    References
    ----------
    .. [1] Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press 2006.

    Examples
    --------
    >>> points, losses = np.array([[0.0], [0.5]]), np.array([-1.0, 1.0])
    >>> process = ResourceGP(prior_mean(1), np.array([0]), points, np.zeros(2), losses)
    >>> mean, variance = process.predict(np.array([[0.0], [0.25]]), np.zeros(2))
    >>> bool(mean[0] < -0.8), bool(abs(mean[1]) < 1e-9), bool(variance[0] < variance[1])
    (True, True, True)
    """

    @single_threaded("scipy.linalg")
    def __init__(self, theta: Array, owners: NDArray[np.int64], vectors: Array, u: Array, z: Array) -> None:
        from scipy.linalg import cho_factor, cho_solve

        self._theta, self._owners = theta, owners
        self._vectors, self._u, self._z = vectors, u, z
        covariance = self.covariance(vectors, u, vectors, u)
        covariance[np.diag_indices(len(z))] += np.exp(theta[-1]) + _JITTER
        self._factor = cho_factor(covariance, lower=True)
        self._alpha = cho_solve(self._factor, z)

    @single_threaded("scipy.linalg")
    def predict(self, vectors: Array, u: Array) -> tuple[Array, Array]:
        """Return mean and variance at other configurations and resources.

        These are equations 2.25 and 2.26 of the book; the variance is that of the loss without
        noise, and at least 1e-9.

        Parameters
        ----------
        vectors : ndarray of shape (m, f)
            The configurations.
        u : ndarray of shape (m,)
            The resources.
        """
        from scipy.linalg import solve_triangular

        between = self.covariance(self._vectors, self._u, vectors, u)
        solved = solve_triangular(self._factor[0], between, lower=True)
        return between.T @ self._alpha, np.maximum(1 - (solved**2).sum(axis=0), 1e-9)

    @single_threaded("scipy.linalg")
    def draw(self, vectors: Array, u: Array, rng: Generator) -> Array:
        """Draw the losses without noise at other configurations, all of them jointly.

        Parameters
        ----------
        vectors : ndarray of shape (m, f)
            The configurations.
        u : ndarray of shape (m,)
            The resources.
        rng : Generator
            The random generator.

        Returns
        -------
        ndarray of shape (m,)
            One draw, by equations 2.25, 2.26 and A.2 of the book.
        """
        from scipy.linalg import solve_triangular

        between = self.covariance(self._vectors, self._u, vectors, u)
        solved = solve_triangular(self._factor[0], between, lower=True)
        covariance = self.covariance(vectors, u, vectors, u) - solved.T @ solved
        covariance[np.diag_indices(len(u))] += _JITTER
        drawn: Array = between.T @ self._alpha + np.linalg.cholesky(covariance) @ rng.standard_normal(len(u))
        return drawn

    def believing(self, vectors: Array, u: Array) -> ResourceGP:
        """Return the process that has also observed its own means at pending configurations.

        This is the kriging believer of [1]_: the means stay, and the variances near pending
        configurations shrink.

        Parameters
        ----------
        vectors : ndarray of shape (m, f)
            The pending configurations.
        u : ndarray of shape (m,)
            The resources of their next results.

        References
        ----------
        .. [1] Ginsbourger, Le Riche and Carraro, "Kriging Is Well-Suited to Parallelize
           Optimization", in: Computational Intelligence in Expensive Optimization Problems, 2010.
        """
        if not len(vectors):
            return self
        means, _ = self.predict(vectors, u)
        return ResourceGP(
            self._theta,
            self._owners,
            np.concatenate([self._vectors, vectors]),
            np.concatenate([self._u, u]),
            np.concatenate([self._z, means]),
        )

    def covariance(self, first: Array, u: Array, second: Array, v: Array) -> Array:
        """Return the covariance of the losses, without noise, of some configurations with others.

        Parameters
        ----------
        first : ndarray of shape (m, f)
            Configurations.
        u : ndarray of shape (m,)
            Their resources.
        second : ndarray of shape (k, f)
            The other configurations.
        v : ndarray of shape (k,)
            Their resources.

        Returns
        -------
        ndarray of shape (m, k)
            The covariances.
        """
        scales = np.exp(-self._theta[self._owners])
        a, b = first * scales, second * scales
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
        root, decay = _decay(np.maximum(squares, 0.0))
        share, length = _share(self._theta), np.exp(self._theta[-2])
        fade = np.exp(-np.abs(u[:, None] - v[None, :]) / length)
        covariance: Array = (1 + root + root**2 / 3) * decay * (share + (1 - share) * fade)
        return covariance


def expected_improvement(mean: Array, variance: Array, best: float) -> Array:
    """Return the expected improvement on a loss, equation 15 of [1]_.

    Parameters
    ----------
    mean, variance : ndarray of shape (m,)
        The predictions.
    best : float
        The loss to improve on.

    References
    ----------
    .. [1] Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box
       Functions", Journal of Global Optimization 13, 1998.

    Examples
    --------
    >>> expected_improvement(np.zeros(1), np.ones(1), 0.0).round(4).tolist()
    [0.3989]
    """
    from scipy.special import ndtr

    deviation = np.sqrt(variance)
    t = (best - mean) / deviation
    improvement: Array = deviation * (t * ndtr(t) + np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi))
    return improvement


def _share(theta: Array) -> Any:
    """Return w, the share of the covariance that does not depend on the resource."""
    return 1 / (1 + np.exp(-theta[-3]))


def _decay(squares: Array) -> tuple[Array, Array]:
    """Return r = sqrt(5) times the distances, and exp(-r)."""
    root = np.sqrt(5 * squares)
    return root, np.exp(-root)
