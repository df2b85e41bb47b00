"""Tables and figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isinf, sqrt
from statistics import fmean, median, stdev

__all__ = ["lead", "spread", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in cells)


def spread(values: Sequence[float], style: str = ".3g") -> str:
    """Return the median, with the minimum and maximum in brackets; infinity is shown as "never"."""
    low, middle, high = (
        "never" if isinf(one) else format(one, style) for one in (min(values), median(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def lead(own: Sequence[float], others: Sequence[float]) -> str:
    """Return the mean difference of pairs, and its 95 % confidence interval by Student's t."""
    from scipy.stats import t

    differences = [one - other for one, other in zip(own, others, strict=True)]
    middle, count = fmean(differences), len(differences)
    width = float(t.ppf(0.975, count - 1)) * stdev(differences) / sqrt(count)
    return f"{middle:+.2f} ({middle - width:+.2f} to {middle + width:+.2f})"
