"""How far early losses predict final ones: ``python -m benchmarks.reproduce.correlations``.

For each set of recorded curves, and each synthetic problem: the rank correlation of the losses of
all configurations after 1, 3, 9 and 27 epochs with those after 81, and the share of the best
hundredth of the configurations that are among the best third after each of these epochs. A
scheduler that stops two thirds of its trials there keeps no more than that. With ``--sealed`` the
table has the sealed curves.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks._report import table
from benchmarks.reproduce.curves import load, set_names
from dasktune.testing.problems import PROBLEMS

__all__ = ["RUNGS", "kept", "rank_correlations"]

#: The epochs that are compared with the last one.
RUNGS = (1, 3, 9, 27)

#: The number of random configurations of a synthetic problem.
_SIZE = 3000


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks of values; equal ones have the mean of their ranks."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[index]
    return means


def rank_correlations(losses: NDArray[np.float64]) -> list[float]:
    """Return Spearman's correlation with the last epoch, of each epoch of `RUNGS`.

    Parameters
    ----------
    losses : ndarray of shape (configs, epochs)
    """
    final = _ranks(losses[:, -1])
    return [float(np.corrcoef(_ranks(losses[:, rung - 1]), final)[0, 1]) for rung in RUNGS]


def kept(losses: NDArray[np.float64]) -> list[float]:
    """Return which share of the best hundredth is among the best third, at each of `RUNGS`.

    The best ones are those with the lowest loss at any epoch, and at least five.

    Parameters
    ----------
    losses : ndarray of shape (configs, epochs)
    """
    best = np.argsort(losses.min(axis=1), kind="stable")[: max(5, len(losses) // 100)]
    shares = []
    for rung in RUNGS:
        early = losses[:, rung - 1]
        better = (early < early[best, None]).mean(axis=1)
        shares.append(float((better < 1 / 3).mean()))
    return shares


def _sources(sealed: bool) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names and losses of shape (configs, seeds, epochs)."""
    for name in set_names(sealed=sealed):
        yield name, load(name, sealed=sealed).loss
    if not sealed:
        for name, make in PROBLEMS.items():
            problem = make()
            configs = problem.sample(_SIZE, seed=0)
            yield name, np.stack([problem.curves(configs, seed) for seed in range(2)], axis=1)


def main(sealed: bool = False) -> None:
    rows = []
    for name, losses in _sources(sealed):
        by_seed = losses.swapaxes(0, 1)
        correlations = np.mean([rank_correlations(one) for one in by_seed], axis=0)
        shares = np.mean([kept(one) for one in by_seed], axis=0)
        cells = [f"{one:.2f}" for one in (*correlations, *shares)]
        rows.append([name, len(losses), *cells])
    header = ["curves", "rows", *(f"rho({rung},81)" for rung in RUNGS)]
    print(table([*header, *(f"kept at {rung}" for rung in RUNGS)], rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce.correlations", description=__doc__)
    parser.add_argument("--sealed", action="store_true", help="of the sealed curves")
    main(parser.parse_args().sealed)
