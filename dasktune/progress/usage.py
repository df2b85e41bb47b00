"""Format the resources that trials hold and that the cluster has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum
from typing import Final

from dasktune.text.formatting import plural

#: Resources that are shown if the cluster has any; others are shown if trials hold them.
_ALWAYS: Final = ("CPU", "GPU")

_GIB: Final = 1 << 30


def usage_text(held: Iterable[Mapping[str, float]], offers: Mapping[str, Mapping[str, float]]) -> str:
    """Return how much of each resource is held and available; empty if `offers` is empty.

    Parameters
    ----------
    held : iterable of mapping
        The resources of each running trial, by name.
    offers : mapping
        The resources of each worker, by address and then by name.

    Examples
    --------
    >>> usage_text([{"CPU": 1}, {"CPU": 0.5}], {"a": {"CPU": 2}, "b": {"CPU": 2, "GPU": 1}})
    '1.5/4 CPUs, 0/1 GPU'
    """
    if not offers:
        return ""
    used, total = _sum(held), _sum(offers.values())
    others = sorted({kind for kind, amount in used.items() if amount} - set(_ALWAYS))
    kinds = [kind for kind in _ALWAYS if used.get(kind) or total.get(kind)]
    return ", ".join(_format(kind, used.get(kind, 0), total.get(kind, 0)) for kind in (*kinds, *others))


def _sum(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for one in amounts:
        for kind, amount in one.items():
            parts.setdefault(kind, []).append(amount)
    return {kind: fsum(values) for kind, values in parts.items()}


def _format(kind: str, used: float, total: float) -> str:
    if kind == "memory":
        # A worker without a memory limit adds nothing to the total, so more may be held.
        limit = f"/{total / _GIB:.3g}" if total else ""
        return f"{used / _GIB:.3g}{limit} GiB memory"
    name = plural(kind, 1 if total == 1 else 2) if kind in _ALWAYS else kind
    return f"{round(used, 2):g}/{round(total, 2):g} {name}"
