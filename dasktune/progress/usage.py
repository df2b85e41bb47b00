"""What trials hold of what the cluster has for them, in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum
from typing import Final

from dasktune.progress.text import plural

__all__ = ["told_usage"]

#: What is always told of if the cluster has any; of everything else only what is held.
_ALWAYS: Final = ("CPU", "GPU")

_GIB: Final = 1 << 30


def told_usage(
    held: Iterable[Mapping[str, float]], offers: Mapping[str, Mapping[str, float]]
) -> str:
    """Return how much is held of each resource and how much there is; empty if nobody knows.

    Parameters
    ----------
    held : iterable of mapping
        What each trial holds, by name of the resource.
    offers : mapping
        What each worker has, by address and then by name of the resource.

    Examples
    --------
    >>> told_usage([{"CPU": 1}, {"CPU": 0.5}], {"a": {"CPU": 2}, "b": {"CPU": 2, "GPU": 1}})
    '1.5/4 CPUs, 0/1 GPU'
    """
    if not offers:
        return ""
    used, total = _sum(held), _sum(offers.values())
    others = sorted({kind for kind, amount in used.items() if amount} - set(_ALWAYS))
    kinds = [kind for kind in _ALWAYS if used.get(kind) or total.get(kind)]
    return ", ".join(
        _told(kind, used.get(kind, 0), total.get(kind, 0)) for kind in (*kinds, *others)
    )


def _sum(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for one in amounts:
        for kind, amount in one.items():
            parts.setdefault(kind, []).append(amount)
    return {kind: fsum(values) for kind, values in parts.items()}


def _told(kind: str, used: float, total: float) -> str:
    if kind == "memory":
        # A worker without a limit is not counted, so that there may be more than is known of.
        limit = f"/{total / _GIB:.3g}" if total else ""
        return f"{used / _GIB:.3g}{limit} GiB memory"
    name = plural(kind, 1 if total == 1 else 2) if kind in _ALWAYS else kind
    return f"{round(used, 2):g}/{round(total, 2):g} {name}"
