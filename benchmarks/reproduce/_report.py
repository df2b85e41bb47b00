"""Figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isinf
from statistics import median

__all__ = ["spread", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spread(values: Sequence[float], style: str = ".3g") -> str:
    """Return the median, and the least and the most in brackets; infinity is never."""
    low, middle, high = (
        "never" if isinf(one) else format(one, style)
        for one in (min(values), median(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"
