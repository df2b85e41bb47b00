"""GPUs by device name: which worker owns which, and which of them a trial gets.

Parts of this module are pickled by value for Dask schedulers without dasktune, so it must import
the standard library only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

#: Tolerance of rounding errors: ten shares of 0.1 must fit on one GPU.
EPSILON: Final = 1e-6

#: Decimal places to which amounts are rounded, so that equal amounts compare equal.
PLACES: Final = 12


def parse_visible_devices(value: str | None) -> tuple[str, ...] | None:
    """Return the devices in a value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.

    Parameters
    ----------
    value : str or None
        The variable's value. As in CUDA, entries after a negative number are ignored.

    Examples
    --------
    >>> parse_visible_devices("1,2, 0"), parse_visible_devices("-1"), parse_visible_devices(None)
    (('1', '2', '0'), (), None)
    """
    if value is None:
        return None
    names: list[str] = []
    for name in (part.strip() for part in value.split(",")):
        if not name or name.startswith("-"):
            break
        names.append(name)
    return tuple(dict.fromkeys(names))


def is_rotation(visible: Sequence[str], others: Iterable[Sequence[str]] = ()) -> bool:
    """Whether a list of devices is a rotation, as dask-cuda sets one for each worker of a host.

    With such lists every worker sees all devices, and the first one in its list is its own.

    Parameters
    ----------
    visible : sequence of str
        The worker's list.
    others : iterable of sequence of str, default=()
        Lists of other workers on the same host.

    Examples
    --------
    >>> is_rotation(["1", "2", "0"]), is_rotation(["0", "1"]), is_rotation(["0", "1"], [["1", "0"]])
    (True, False, True)
    """
    mine = list(visible)
    if len(mine) < 2:
        return False
    numbers = sorted(mine, key=int) if all(name.isdecimal() for name in mine) else mine
    rotations = [mine[turn:] + mine[:turn] for turn in range(1, len(mine))]
    return numbers in rotations or any(list(other) in rotations for other in others)


def assign_devices(
    visible: Sequence[str],
    *,
    taken: Collection[str],
    others: Iterable[Sequence[str]] = (),
    waiting: int = 1,
    wanted: int | None = None,
) -> tuple[str, ...]:
    """Return the devices that a worker gets.

    Parameters
    ----------
    visible : sequence of str
        The devices visible to it, in order.
    taken : collection of str
        Devices of other workers on the host.
    others : iterable of sequence of str, default=()
        The devices visible to those workers.
    waiting : int, default=1
        Number of workers on the host without devices, this one included.
    wanted : int, optional
        Number of GPUs that it declares.

    Returns
    -------
    tuple of str
        If the workers' lists are rotations, its first device. Otherwise as many free devices as it
        declares, or, without a declaration, every n-th free device for n waiting workers. If it
        declares some and others have all of them, it shares theirs.

    Examples
    --------
    >>> first = assign_devices("0123", taken=(), waiting=2)
    >>> first, assign_devices("0123", taken=first, waiting=1)
    (('0', '2'), ('1', '3'))
    >>> assign_devices("0", taken="0", wanted=1)
    ('0',)
    """
    if is_rotation(visible, others):
        visible = visible[:1]
        wanted = None
    left = [name for name in visible if name not in taken]
    return tuple(left[:: max(1, waiting)] if wanted is None else (left or visible)[:wanted])


def gpu_names(devices: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the device of each of a worker's GPUs.

    Parameters
    ----------
    devices : sequence of str
        The devices that it owns.
    count : int
        Number of GPUs. If it declares more than it owns, several share a device; if it owns none,
        they are numbered.

    Examples
    --------
    >>> gpu_names(["4", "5"], 2), gpu_names(["4", "5"], 3), gpu_names([], 2)
    (('4', '5'), ('4', '5', '4'), ('0', '1'))
    """
    names = devices or [str(number) for number in range(count)]
    return tuple(names[number % len(names)] for number in range(count))


def pick_gpus(loads: Sequence[float], amount: float) -> tuple[int, ...] | None:
    """Choose idle GPUs for a whole amount, or the most used GPU with room for a fraction.

    Parameters
    ----------
    loads : sequence of float
        Used share of each GPU, from 0 to 1.
    amount : float
        A fraction up to 1, or a whole number.

    Returns
    -------
    tuple of int or None
        Their positions in `loads`; None if the amount does not fit.

    Examples
    --------
    >>> pick_gpus([0.5, 0, 0], 2), pick_gpus([0, 0.25, 0.5], 0.5), pick_gpus([0.5], 1)
    ((1, 2), (2,), None)
    """
    if amount >= 1:
        empty = [number for number, load in enumerate(loads) if load <= EPSILON]
        return tuple(empty[: int(amount)]) if len(empty) >= amount else None
    room = [number for number, load in enumerate(loads) if load + amount <= 1 + EPSILON]
    return (max(room, key=lambda number: loads[number]),) if room else None


def allocate_shares(
    gpus: Sequence[str],
    taken: Iterable[tuple[float, Sequence[int]]],
    shares: Iterable[tuple[float, Sequence[str]]],
) -> list[tuple[int, ...]] | None:
    """Allocate shares of a worker's GPUs, on the suggested devices if these are still free.

    Parameters
    ----------
    gpus : sequence of str
        The device of each GPU.
    taken : iterable of (float, sequence of int)
        Existing allocations: the amount, and the positions of the GPUs.
    shares : iterable of (float, sequence of str)
        Requested allocations: the amount, and the names of the suggested devices.

    Returns
    -------
    list of tuple of int, or None
        The positions of the GPUs of each share; None if they do not all fit.

    Examples
    --------
    >>> allocate_shares("456", [(1, [0])], [(1, "5"), (0.5, "4")])
    [(1,), (2,)]
    """
    loads: tuple[float, ...] = (0.0,) * len(gpus)
    for amount, before in taken:
        loads = add_load(loads, before, amount)
    given = []
    for amount, names in shares:
        # For the first attempt, GPUs that were not suggested count as full.
        hinted = [load if name in names else 1.0 for load, name in zip(loads, gpus, strict=True)]
        numbers = pick_gpus(hinted, amount) or pick_gpus(loads, amount)
        if numbers is None:
            return None
        loads = add_load(loads, numbers, amount)
        given.append(numbers)
    return given


def add_load(loads: Sequence[float], numbers: Sequence[int], amount: float) -> tuple[float, ...]:
    """Return the loads after an amount is added to GPUs, or subtracted if it is negative.

    Parameters
    ----------
    loads : sequence of float
        Used share of each GPU, from 0 to 1.
    numbers : sequence of int
        Positions in `loads`, as :func:`pick_gpus` returned them.
    amount : float
        The total amount, split equally among the GPUs.

    Examples
    --------
    >>> add_load([0, 0.5, 0], [0, 2], 2), add_load([0.3], [0], -0.1)
    ((1.0, 0.5, 1.0), (0.2,))
    """
    return tuple(
        round(load + amount / len(numbers), PLACES) if number in numbers else load
        for number, load in enumerate(loads)
    )
