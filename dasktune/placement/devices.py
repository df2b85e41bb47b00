"""GPUs by name: which worker owns which, and which of a worker's a trial gets.

Parts of this travel by value, to schedulers that may lack dasktune: it uses the standard library
only, and nothing else of dasktune.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

__all__ = [
    "EPSILON",
    "dealt",
    "handed_out",
    "is_rotated",
    "loaded",
    "picked",
    "shared_out",
    "visible_in",
]

#: Ten tenths must fit into 1.
EPSILON: Final = 1e-6

#: Decimal places that sums of shares are rounded to, so that equal sums are equal numbers.
_PLACES: Final = 12


def visible_in(value: str | None) -> tuple[str, ...] | None:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` names; None if it says nothing.

    Parameters
    ----------
    value : str or None
        The variable's value. As for CUDA, what comes after a negative number does not count.

    Examples
    --------
    >>> visible_in("1,2, 0"), visible_in(""), visible_in("-1"), visible_in(None)
    (('1', '2', '0'), (), (), None)
    """
    if value is None:
        return None
    names: list[str] = []
    for name in (part.strip() for part in value.split(",")):
        if not name or name.startswith("-"):
            break
        names.append(name)
    return tuple(dict.fromkeys(names))


def is_rotated(visible: Sequence[str], others: Iterable[Sequence[str]] = ()) -> bool:
    """Whether a list of devices is one of a set of rotations, of which each worker has its own.

    So dask-cuda does it: all workers see all devices, and each has another one in front, its own.

    Parameters
    ----------
    visible : sequence of str
        The worker's list.
    others : iterable of sequence of str, default=()
        Lists of other workers on the same host.

    Examples
    --------
    >>> is_rotated(["1", "2", "0"]), is_rotated(["0", "1"]), is_rotated(["0", "1"], [["1", "0"]])
    (True, False, True)
    """
    mine = list(visible)
    if len(mine) < 2:
        return False
    numbers = sorted(mine, key=int) if all(name.isdecimal() for name in mine) else mine
    rotations = [mine[turn:] + mine[:turn] for turn in range(1, len(mine))]
    return numbers in rotations or any(list(other) in rotations for other in others)


def dealt(
    visible: Sequence[str],
    *,
    taken: Collection[str],
    others: Iterable[Sequence[str]] = (),
    waiting: int = 1,
    wanted: int | None = None,
) -> tuple[str, ...]:
    """Return the devices that a worker shall own.

    Parameters
    ----------
    visible : sequence of str
        The devices that it sees, in order.
    taken : collection of str
        Devices that other workers on the host own.
    others : iterable of sequence of str, default=()
        What those workers see.
    waiting : int, default=1
        How many workers on the host have not been dealt their devices yet, with this one.
    wanted : int, optional
        How many GPUs it declares.

    Returns
    -------
    tuple of str
        Its own one, if the workers' lists are rotations of one; else as many of those that are left
        as it declares; else its part of them, when they go round.

    Examples
    --------
    >>> first = dealt("0123", taken=(), waiting=2)
    >>> first, dealt("0123", taken=first, waiting=1)
    (('0', '2'), ('1', '3'))
    """
    if is_rotated(visible, others):
        visible = visible[:1]
        wanted = None
    left = [name for name in visible if name not in taken]
    return tuple(left[:: max(1, waiting)] if wanted is None else left[:wanted])


def handed_out(devices: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the name of the device behind each of a worker's GPUs.

    Parameters
    ----------
    devices : sequence of str
        What it owns.
    count : int
        How many GPUs it has. If it declares more than it owns, several stand for one device; if it
        owns none, they have numbers.

    Examples
    --------
    >>> handed_out(["4", "5"], 2), handed_out(["4", "5"], 3), handed_out([], 2)
    (('4', '5'), ('4', '5', '4'), ('0', '1'))
    """
    names = devices or [str(number) for number in range(count)]
    return tuple(names[number % len(names)] for number in range(count))


def picked(loads: Sequence[float], amount: float) -> tuple[int, ...] | None:
    """Choose GPUs: whole ones for a whole amount, else the fullest that has room for a fraction.

    Parameters
    ----------
    loads : sequence of float
        How much of each is taken, from 0 to 1.
    amount : float
        A fraction up to 1, or a whole number.

    Returns
    -------
    tuple of int or None
        Their positions in `loads`; None if there is no room.

    Examples
    --------
    >>> picked([0.5, 0, 0], 2), picked([0, 0.25, 0.5], 0.5), picked([0.5], 1)
    ((1, 2), (2,), None)
    """
    if amount >= 1:
        empty = [number for number, load in enumerate(loads) if load <= EPSILON]
        return tuple(empty[: int(amount)]) if len(empty) >= amount else None
    room = [number for number, load in enumerate(loads) if load + amount <= 1 + EPSILON]
    return (max(room, key=lambda number: loads[number]),) if room else None


def shared_out(
    gpus: Sequence[str],
    taken: Iterable[tuple[float, Sequence[int]]],
    shares: Iterable[tuple[float, Sequence[str]]],
) -> list[tuple[int, ...]] | None:
    """Give shares of a worker's GPUs, those that were thought of wherever they are still free.

    Parameters
    ----------
    gpus : sequence of str
        The device behind each GPU.
    taken : iterable of (float, sequence of int)
        What is given already: how much, of the GPUs at which positions.
    shares : iterable of (float, sequence of str)
        What is asked: how much, and the names of the devices that were thought of.

    Returns
    -------
    list of tuple of int, or None
        The positions of the GPUs of each share; None if there is no room for all.

    Examples
    --------
    >>> shared_out("456", [(1, [0])], [(1, "5"), (0.5, "4")])
    [(1,), (2,)]
    """
    loads: tuple[float, ...] = (0.0,) * len(gpus)
    for amount, before in taken:
        loads = loaded(loads, before, amount)
    given = []
    for amount, names in shares:
        # What nobody thought of counts as full, for the first attempt.
        hinted = [load if name in names else 1.0 for load, name in zip(loads, gpus, strict=True)]
        numbers = picked(hinted, amount) or picked(loads, amount)
        if numbers is None:
            return None
        loads = loaded(loads, numbers, amount)
        given.append(numbers)
    return given


def loaded(loads: Sequence[float], numbers: Sequence[int], amount: float) -> tuple[float, ...]:
    """Return the loads after an amount was put onto, or with a negative one taken from, GPUs.

    Parameters
    ----------
    loads : sequence of float
        How much of each is taken, from 0 to 1.
    numbers : sequence of int
        Positions in `loads`, as :func:`picked` gave them.
    amount : float
        In all; of several GPUs each gets an equal part.

    Examples
    --------
    >>> loaded([0, 0.5, 0], [0, 2], 2), loaded([0.3], [0], -0.1)
    ((1.0, 0.5, 1.0), (0.2,))
    """
    return tuple(
        round(load + amount / len(numbers), _PLACES) if number in numbers else load
        for number, load in enumerate(loads)
    )
