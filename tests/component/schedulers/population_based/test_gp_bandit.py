from __future__ import annotations

import numpy as np
import pytest

from dasktune.schedulers.population_based.gp_bandit import BanditState, Change, suggest_points


def seen(best: float, number: int, begin: float = 0.0) -> list[Change]:
    """Observe gains that are largest at `best`, some in each interval."""
    points = np.random.default_rng(7).uniform(size=number)
    return [
        Change(begin + i // 5, float(i // 5), -((x - best) ** 2), (float(x),)) for i, x in enumerate(points)
    ]


def suggest(changes: list[Change], pending: list[tuple[float, ...]] | None = None) -> float:
    last = changes[-1]
    ((point,),) = suggest_points(
        BanditState(changes, pending or [], time=last.time + 1, rewards=[last.before], seed=0)
    )
    return point


@pytest.mark.parametrize("best", [0.2, 0.5, 0.9])
def test_the_best_hyperparameter_is_found(best):
    assert suggest(seen(best, 40)) == pytest.approx(best, abs=0.05)


def test_what_was_best_long_ago_is_forgotten():
    assert suggest([*seen(0.2, 40), *seen(0.8, 40, begin=40.0)]) == pytest.approx(0.8, abs=0.05)


def test_points_that_others_are_trying_are_avoided():
    known = [Change(1.0, 0.5, 0.1, (0.5,))]
    first = suggest(known)
    assert suggest(known, [(first,)]) == pytest.approx(1 - first, abs=0.1)


def test_several_points_differ_as_if_each_was_pending_for_the_next():
    known = [Change(1.0, 0.5, 0.1, (0.5,))]
    (first,), (second,) = suggest_points(BanditState(known, [], time=2.0, rewards=[0.5, 0.5], seed=0))
    assert first == suggest(known)
    assert second == pytest.approx(1 - first, abs=0.1)


def test_a_single_observation_is_enough():
    assert 0 <= suggest([Change(1.0, 0.5, 0.1, (0.5,))]) <= 1


def test_the_same_situation_gives_the_same_point():
    assert suggest(seen(0.3, 20)) == suggest(seen(0.3, 20))


def test_observations_beyond_the_last_thousand_do_not_count():
    old = [Change(0.0, 0.0, 1e6, (0.9,))]
    new = seen(0.4, 1_000)
    assert suggest(old + new) == suggest(new)
