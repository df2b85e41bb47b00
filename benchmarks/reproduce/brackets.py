"""HyperBand's brackets: the number of trials and the budget of each rung, by (max_t, eta)."""

from __future__ import annotations

from benchmarks._report import table
from dasktune.schedulers.rungs import bracket_table

__all__ = ["GRID"]

#: Pairs of max_t and eta; the first is table 1 of the paper (Li et al., JMLR 18, 2018).
GRID = ((81, 3), (27, 3), (100, 3), (16, 2), (64, 4), (256, 4), (300, 5))


def main() -> None:
    rows = []
    for max_t, factor in GRID:
        brackets = (
            " ".join(f"{trials}@{budget:.4g}" for trials, budget in bracket)
            for bracket in bracket_table(max_t, factor)
        )
        rows.append([max_t, factor, "; ".join(brackets)])
    print("\ntrials@budget of each rung, bracket by bracket\n")
    print(table(["max_t", "eta", "brackets"], rows))


if __name__ == "__main__":
    main()
