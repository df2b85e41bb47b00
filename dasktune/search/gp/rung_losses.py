"""`RungLosses`, the losses of configurations at the rungs, and their standardisation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, inf, isfinite, log, ulp
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

#: The distance of two rungs on the scale of resources: five rungs, as 1, 3, 9, 27 and 81, have the
#: distance 1 in all.
_RUNG: Final = 0.25

#: Number of values that a rung must have to be the one at which configurations are compared.
_ENOUGH: Final = 6

#: Number of running configurations that are taken into account.
_MOST_PENDING: Final = 100

#: Losses above this quantile of their rung are clipped, or a model would see the diverged trials
#: only.
_CLIP: Final = 0.9

#: Relative rounding error of a quotient of logarithms: that of 243 and 3 is less than 5.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class LossTable:
    """Observations as arrays, sorted by rung and then by the number of the configuration.

    Attributes
    ----------
    numbers : ndarray of shape (n,)
        The number of the configuration.
    resources : ndarray of shape (n,)
        The resource u: 0 at the first rung, 1/4 at the second, and so on.
    losses : ndarray of shape (n,)
        The standardised losses, lower is better; 0 is the median of a rung.
    target : float
        The resource at which to compare configurations: that of the highest rung with at least 6
        finite losses.
    """

    numbers: NDArray[np.int64]
    resources: NDArray[np.float64]
    losses: NDArray[np.float64]
    target: float

    def sample(self, most: int, rng: Generator) -> NDArray[np.int64]:
        """Return the rows of at most so many observations, ascending.

        Half of them are from the highest rungs, the others random.

        Parameters
        ----------
        most : int
            The largest number of rows.
        rng : Generator
            The random generator.
        """
        size = len(self.losses)
        if size <= most:
            return np.arange(size)
        half = most // 2
        order = np.lexsort((rng.random(size), -self.resources))
        others = rng.choice(order[half:], most - half, replace=False)
        return np.sort(np.concatenate([order[:half], others]))


@dataclass(slots=True)
class _Curve:
    """What is known of one configuration."""

    #: In the unit cube; None for parameters that it does not have.
    point: list[float | None]
    #: ``{rung: loss}``, where rungs are counted from 0; inf if not defined.
    losses: dict[int, float] = field(default_factory=dict)
    #: The time of the last recorded result, and of the last result.
    time: float = -inf
    latest: float = -inf
    #: Time and loss of the last result of a complete training that ended between two rungs. The
    #: time is None if it is not known.
    final: tuple[float | None, float] | None = None


class RungLosses:
    """The losses of configurations at the rungs ``grace_period * reduction_factor**k``.

    Of each configuration it keeps the first result at or after each rung, and the last result of a
    complete training. Configurations are known by numbers, not by the order of arrival, so that
    models of the same losses are equal.

    Parameters
    ----------
    grace_period : float
        The first rung, > 0.
    reduction_factor : float
        The ratio of two rungs, > 1.

    Examples
    --------
    >>> curves = RungLosses(1, 3)
    >>> for number, loss in enumerate([0.5, 0.25, 1.0]):
    ...     curves.add(number, [0.1 * number])
    ...     curves.observe(number, time=3, loss=loss)
    >>> table = curves.table()
    >>> table.resources.tolist(), table.losses.round(3).tolist()
    ([0.25, 0.25, 0.25], [0.0, -1.358, 1.086])
    """

    def __init__(self, grace_period: float, reduction_factor: float) -> None:
        self._first = grace_period
        self._log_factor = log(reduction_factor)
        self._curves: dict[int, _Curve] = {}

    def add(self, number: int, point: Sequence[float | None]) -> None:
        """Add a configuration, in the unit cube; None for parameters that it does not have."""
        self._curves[number] = _Curve(list(point))

    def remove(self, number: int) -> None:
        """Remove a configuration, if it is known."""
        self._curves.pop(number, None)

    def observe(self, number: int, *, time: float | None, loss: float) -> None:
        """Record a result if it is the configuration's first one at a rung.

        Parameters
        ----------
        number : int
            The configuration; an unknown one is ignored.
        time : float or None
            How long it has trained, in units of `grace_period`; None if not known.
        loss : float
            The loss, lower is better; one that is not finite is recorded as inf.
        """
        curve = self._curves.get(number)
        if curve is None or time is None:
            return
        curve.latest = time
        if time < self._first:
            return
        rung = floor(self._position(time) + _ROUNDING)
        if rung not in curve.losses:
            curve.losses[rung] = loss if isfinite(loss) else inf
            curve.time = time

    def finish(self, number: int, *, time: float | None, loss: float) -> None:
        """Record the last result of a complete training; parameters as for :meth:`observe`.

        If the time is not known, the training counts as long as the longest one.
        """
        self.observe(number, time=time, loss=loss)
        curve = self._curves.get(number)
        if curve is not None and (time is None or time > curve.time):
            curve.final = (time, loss if isfinite(loss) else inf)

    def fail(self, number: int) -> None:
        """Record that a configuration failed: an infinite loss at its next rung."""
        curve = self._curves.get(number)
        if curve is not None:
            curve.losses[self._next_rung(curve)] = inf

    @property
    def num_observed(self) -> int:
        """The number of configurations with at least one loss."""
        return sum(bool(curve.losses) or curve.final is not None for curve in self._curves.values())

    def is_observed(self, number: int) -> bool:
        """Return whether there is a loss of a configuration."""
        curve = self._curves.get(number)
        return curve is not None and (bool(curve.losses) or curve.final is not None)

    def points(self, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the points of configurations, an array of shape (n, d); NaN for missing values."""
        return np.array([self._curves[int(number)].point for number in numbers], dtype=float)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all configurations, ascending."""
        return sorted(self._curves)

    def pending(
        self, running: Iterable[int], *, most: int = _MOST_PENDING
    ) -> tuple[list[int], NDArray[np.float64]]:
        """Return the configurations that are expected to reach another rung, and that rung's u.

        A configuration whose last result is the one recorded at a rung is left out until it reports
        again: its trial may be paused there, which not every scheduler reports to searchers.

        Parameters
        ----------
        running : iterable of int
            The configurations whose trials are not known to be paused or to have ended; unknown
            ones are ignored.
        most : int, default=100
            The largest number of configurations, at least 1. Of more of them the newest ones are
            returned.

        Returns
        -------
        tuple
            The numbers, ascending, and the resources of their next rungs, an array of shape (n,).
        """
        curves = {number: self._curves[number] for number in running if number in self._curves}
        newest = sorted(number for number, one in curves.items() if not _is_at_rung(one))[-most:]
        return newest, np.array([self.next_resource(number) for number in newest])

    def next_resource(self, number: int) -> float:
        """Return the resource u of the next rung of a configuration."""
        return _RUNG * self._next_rung(self._curves[number])

    def table(self) -> LossTable:
        """Return all observations, standardised rung by rung.

        If no loss is negative, logarithms are taken first: then the differences of small losses
        count as much as those of large ones. In each rung losses are clipped at their 90 %
        quantile, which also stands for those that are not finite. They are centred at their median
        and divided by their standard deviation. Trials that ended by themselves between two rungs
        are standardised together.
        """
        rungs = self._rungs()
        floor_ = _smallest_positive([loss for rung in rungs for _, _, loss in rung])
        target = 0.0
        for rung in rungs:
            if sum(isfinite(loss) for _, _, loss in rung) >= _ENOUGH:
                target = max(target, float(np.median([resource for _, resource, _ in rung])))
        losses = [_standardised([loss for _, _, loss in rung], floor_) for rung in rungs]
        return LossTable(
            np.array([number for rung in rungs for number, _, _ in rung], dtype=np.int64),
            np.array([resource for rung in rungs for _, resource, _ in rung]),
            np.concatenate(losses) if losses else np.empty(0),
            target,
        )

    def _rungs(self) -> list[list[tuple[int, float, float]]]:
        """Return number, resource and loss of all observations, in a list for each rung."""
        ordered = sorted(self._curves.items())
        known = {rung for _, curve in ordered for rung in curve.losses}
        rungs = [
            [(number, _RUNG * rung, curve.losses[rung]) for number, curve in ordered if rung in curve.losses]
            for rung in sorted(known)
        ]
        finals = [(number, curve.final) for number, curve in ordered if curve.final is not None]
        if finals:
            times = [final[0] for _, final in finals if final[0] is not None]
            longest = max([*(self._resource(time) for time in times), *(_RUNG * rung for rung in known), 0.0])
            rungs.append(
                [
                    (number, longest if time is None else self._resource(time), loss)
                    for number, (time, loss) in finals
                ]
            )
        return rungs

    def _position(self, time: float) -> float:
        """Return the rung of a time, counted from 0, with the part of the way to the next one."""
        return log(time / self._first) / self._log_factor

    def _resource(self, time: float) -> float:
        return _RUNG * self._position(max(time, self._first))

    def _next_rung(self, curve: _Curve) -> int:
        return max(curve.losses, default=-1) + 1

    def state_dict(self) -> list[Any]:
        """Return the complete state as JSON-serializable values; infinite losses become None."""
        return [
            [
                number,
                list(curve.point),
                [[rung, _as_json(loss)] for rung, loss in curve.losses.items()],
                _as_json(curve.time),
                _as_json(curve.latest),
                None if curve.final is None else [curve.final[0], _as_json(curve.final[1])],
            ]
            for number, curve in self._curves.items()
        ]

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._curves = {
            number: _Curve(
                list(point),
                {rung: inf if loss is None else loss for rung, loss in losses},
                -inf if time is None else time,
                -inf if latest is None else latest,
                None if final is None else (final[0], inf if final[1] is None else final[1]),
            )
            for number, point, losses, time, latest, final in state
        }


def _is_at_rung(curve: _Curve) -> bool:
    return bool(curve.losses) and curve.latest == curve.time


def _as_json(value: float) -> float | None:
    return value if isfinite(value) else None


def _smallest_positive(losses: Sequence[float]) -> float | None:
    """Return half the smallest positive loss; None if there is none, or if one is negative."""
    positive = [loss for loss in losses if 0 < loss < inf]
    # Half of the smallest number that a float can hold would be 0.
    return max(min(positive) / 2, ulp(0.0)) if positive and min(losses) >= 0 else None


def _standardised(losses: Sequence[float], least: float | None) -> NDArray[np.float64]:
    """Standardise the losses of a rung; take logarithms first if a lower bound of them is given."""
    values = np.array(losses)
    if least is not None:
        values = np.log(np.maximum(values, least))
    finite = np.isfinite(values)
    # Divided by the largest one, whose square could overflow in the standard deviation.
    known = values[finite] / (np.abs(values[finite]).max(initial=0) or 1)
    standardised = np.ones(len(values))
    if len(known):
        known = np.minimum(known, np.quantile(known, _CLIP))
        deviation = known.std()
        known = (known - np.median(known)) / deviation if deviation > 0 else np.zeros(len(known))
        standardised[finite] = known
        # As bad as the worst of the others, or worse than all of them if these are equal.
        standardised[~finite] = known.max() or 1.0
    return standardised
