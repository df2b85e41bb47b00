"""Searches of the sealed half: ``python -m benchmarks.search_quality.sealed_half``.

The final table of searches with early stopping. As `benchmarks.search_quality.full_trainings`, on
the sealed half of the curves and with sealed seeds of searches, from 1000 on. It is used once, for
methods that are fixed before: see `benchmarks.reproduce.recipes`. All searches run 4 trials at a
time until they have trained for the epochs of 20 full trainings.

Fixed on 2026-11-27, before the first run: the contenders below with their defaults, the problems
below, seeds 1000 to 1019, and the regret after 5, 10 and 20 full trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.reproduce.curves import EPOCHS
from benchmarks.reproduce.recipes import SEALED_ORDER
from benchmarks.search_quality.full_trainings import MOMENTS, Random, gaussian_process, search
from benchmarks.search_quality.paired_searches import PairedSearches
from dasktune.errors import check
from dasktune.schedulers import (
    ASHAScheduler,
    MedianStoppingRule,
    PromotingASHAScheduler,
    TrialScheduler,
)
from dasktune.search import Searcher, TuneBOHB

__all__ = ["CONTENDERS", "PROBLEM_NAMES", "regrets"]

_ETA, _SLOTS = 3, 4

#: Synthetic problems and the sealed sets.
PROBLEM_NAMES = (
    "hartmann3",
    "hartmann6",
    "crossing",
    "lightgbm_friedman2",
    "lightgbm_hastie",
    "mlp_clf40",
    "linear_regression40",
)


def _promoting(first: int) -> TrialScheduler:
    return PromotingASHAScheduler(max_t=EPOCHS, reduction_factor=_ETA, grace_period=first)


def _median() -> TrialScheduler:
    return MedianStoppingRule(time_attr="training_iteration", check_at=[3, 9, 27])


def _stopping() -> TrialScheduler:
    return ASHAScheduler(max_t=EPOCHS, reduction_factor=_ETA)


#: The searches by name; the first one is the one that others are compared with.
CONTENDERS: Mapping[str, Callable[[], tuple[Searcher, TrialScheduler]]] = {
    "random": lambda: (Random(), _promoting(1)),
    "BOHB": lambda: (TuneBOHB(), _promoting(1)),
    "GP": lambda: (gaussian_process(1), _promoting(1)),
    "random, grace 9": lambda: (Random(), _promoting(9)),
    "GP, grace 9": lambda: (gaussian_process(9), _promoting(9)),
    "random, stopping": lambda: (Random(), _stopping()),
    "random, median": lambda: (Random(), _median()),
}


def regrets(problem: str, contender: str, seed: int) -> list[float]:
    """Return the regret of a search after 5, 10 and 20 full trainings."""
    check(seed >= SEALED_ORDER, "seed", f"at least {SEALED_ORDER}", seed)
    searcher, scheduler = CONTENDERS[contender]()
    return search(problem, searcher, scheduler, seed, _SLOTS, sealed=True)


def _groups(known: list[str]) -> list[list[str]]:
    return [
        [name for name in known if name.startswith("hartmann")],
        [name for name in known if name.startswith("lightgbm")],
        [name for name in known if "_" in name],
        known,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the searches that a file does not have yet, and print the tables of all."""
    searches = PairedSearches(
        regrets=regrets,
        contenders=list(CONTENDERS),
        moments=MOMENTS,
        problem="problem",
        problems=PROBLEM_NAMES,
        default=PROBLEM_NAMES,
        groups=_groups,
        first_seed=SEALED_ORDER,
    )
    searches.main(arguments, __doc__)


if __name__ == "__main__":
    main()
