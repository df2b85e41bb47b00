"""The tables of the results."""

from __future__ import annotations

from math import inf
from statistics import fmean, median

import numpy as np

from benchmarks._report import spread, table
from benchmarks.search_quality.contenders import RANDOM
from benchmarks.search_quality.figures import (
    Found,
    Regrets,
    Times,
    holm,
    mean_ranks,
    p_value,
    speed_up,
)
from benchmarks.search_quality.problems import problem

__all__ = ["details", "matrix", "summary", "times_table"]

#: The level of significance.
_LEVEL = 0.05


def details(found: Found) -> str:
    """Return a table of each search: regrets, rank, significance and speed-up."""
    budget = _budget(found)
    moments = [budget // 4, budget // 2, budget]
    header = ["problem", "searcher", *(f"after {count}" for count in moments)]
    header += ["mean rank", "p against random", "speed-up"]
    against, rows = _against_random(found), []
    for name, sides in found.items():
        ranks = _ranks(sides)
        for label, regrets in sides.items():
            quartiles = [_quartiles(regrets[:, count - 1]) for count in moments]
            p = f"{against[name, label]:.2g}" if label != RANDOM else ""
            speed = f"{speed_up(regrets, sides[RANDOM]):.2g}" if label != RANDOM else ""
            about = f"{name} ({problem(name).unit})" if label == RANDOM else ""
            rows.append([about, label, *quartiles, f"{ranks[label]:.2f}", p, speed])
    return table(header, rows)


def matrix(found: Found) -> str:
    """Return the final median regrets, with a sign where they differ from random search's."""
    labels = list(next(iter(found.values())))
    against = _against_random(found)

    def cell(name: str, label: str) -> str:
        sign = _SIGNS[_verdict(found, against, name, label)] if label != RANDOM else ""
        return f"{median(found[name][label][:, -1].tolist()):.3g}{sign}"

    rows = [[name, *(cell(name, label) for label in labels)] for name in found]
    return table(["problem", *labels], rows)


def summary(found: Found) -> str:
    """Return a row for each searcher, over all problems."""
    against = _against_random(found)
    header = ["searcher", "better than random", "no difference shown", "worse", "mean rank"]
    header += ["speed-up, median (minimum to maximum)"]
    rows = []
    for label in next(iter(found.values())):
        rank = f"{fmean(_ranks(sides)[label] for sides in found.values()):.2f}"
        if label == RANDOM:
            rows.append([label, "", "", "", rank, ""])
            continue
        verdicts = [_verdict(found, against, name, label) for name in found]
        speeds = [speed_up(sides[label], sides[RANDOM]) for sides in found.values()]
        counts = [verdicts.count(verdict) for verdict in _SIGNS]
        rows.append([label, *counts, rank, spread(speeds, ".2g")])
    return table(header, rows)


def times_table(times: Times) -> str:
    """Return the time until each pair was as good as random search at its end."""
    raw = {
        (name, label): p_value(_capped(shares), _capped(sides[RANDOM]))
        for name, sides in times.items()
        for label, shares in sides.items()
        if label != RANDOM
    }
    against = dict(zip(raw, holm(list(raw.values())), strict=True))
    rows = []
    for name, sides in times.items():
        for label, shares in sides.items():
            p = f"{against[name, label]:.2g}" if label != RANDOM else ""
            never = f"{shares.count(inf)} of {len(shares)}"
            rows.append([name, label, spread(shares, ".1%"), never, p])
    return table(["curves", "search", "of random search's time", "never", "p against random"], rows)


#: The verdicts on a searcher, and their signs.
_SIGNS = {"better": " +", "as good": "", "worse": " -"}


def _capped(shares: list[float]) -> list[float]:
    """Replace infinity by a finite time that is worse than all others."""
    return [min(share, 10.0) for share in shares]


def _budget(found: Found) -> int:
    return int(next(iter(next(iter(found.values())).values())).shape[1])


def _ranks(sides: dict[str, Regrets]) -> dict[str, float]:
    return mean_ranks({label: regrets[:, -1].tolist() for label, regrets in sides.items()})


def _against_random(found: Found) -> dict[tuple[str, str], float]:
    """Return the corrected p-values of the final regrets, by problem and searcher."""
    raw = {
        (name, label): p_value(regrets[:, -1].tolist(), sides[RANDOM][:, -1].tolist())
        for name, sides in found.items()
        for label, regrets in sides.items()
        if label != RANDOM
    }
    return dict(zip(raw, holm(list(raw.values())), strict=True))


def _verdict(found: Found, against: dict[tuple[str, str], float], name: str, label: str) -> str:
    if against[name, label] >= _LEVEL:
        return "as good"
    ranks = mean_ranks({one: found[name][one][:, -1].tolist() for one in (RANDOM, label)})
    return "better" if ranks[label] < ranks[RANDOM] else "worse"


def _quartiles(values: Regrets) -> str:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"
