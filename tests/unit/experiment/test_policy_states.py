"""A saved state is loaded by the class that it belongs to, or refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_kit import Lab

from dasktune.errors import ConfigError, StorageError
from dasktune.experiment.policy_states import class_names, load_scheduler, load_search, load_stopper
from dasktune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from dasktune.search import ConcurrencyLimiter, QuasiRandomSearch, Searcher, SearchGenerator
from dasktune.stopper import CombinedStopper, MaximumIterationStopper, Stopper, TimeoutStopper


class Own(FIFOScheduler):
    """A scheduler of the user, with a state and no thought of others."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


STATEFUL = {
    "asha": lambda: ASHAScheduler(metric="loss", mode="min"),
    "hyperband": lambda: HyperBandScheduler(metric="loss", mode="min"),
    "median": lambda: MedianStoppingRule(metric="loss", mode="min"),
    "pbt": lambda: PopulationBasedTraining(metric="loss", mode="min", hyperparam_mutations={"lr": [1, 2]}),
    "resizing": lambda: ResourceChangingScheduler(ASHAScheduler(metric="loss", mode="min")),
    "own": Own,
}


def load(now: Any, then: Any, unfinished: tuple[str, ...] = ("a",), *, named: bool = True) -> None:
    saved = class_names(then) if named else None
    load_scheduler(now, class_names(now), then.state_dict(), saved, unfinished)


@pytest.mark.parametrize("now", STATEFUL)
@pytest.mark.parametrize("then", ["fifo", *STATEFUL])
@pytest.mark.parametrize("named", [True, False])
def test_another_scheduler_is_refused_with_what_to_do(then: str, now: str, named: bool):
    before = FIFOScheduler() if then == "fifo" else STATEFUL[then]()
    after = STATEFUL[now]()
    if then == now:
        load(after, before, named=named)
        assert after.state_dict() == before.state_dict()
        return
    with pytest.raises(ConfigError, match=r" must be .* Restore with"):
        load(after, before, named=named)


@pytest.mark.parametrize("then", STATEFUL)
def test_every_scheduler_may_be_followed_by_one_without_a_state(then: str):
    load(FIFOScheduler(), STATEFUL[then]())


@pytest.mark.parametrize("now", STATEFUL)
def test_another_scheduler_may_follow_when_every_trial_has_ended(now: str):
    after, fresh = STATEFUL[now](), STATEFUL[now]()
    load(after, Own(), unfinished=())
    assert after.state_dict() == fresh.state_dict()


def test_a_scheduler_inside_another_counts():
    then = ResourceChangingScheduler(ASHAScheduler(metric="loss", mode="min"))
    now = ResourceChangingScheduler(Own())
    inner = ASHAScheduler.__name__
    message = rf"must be ResourceChangingScheduler\({inner}\) as before, got ResourceChangingScheduler\(Own\)"
    with pytest.raises(ConfigError, match=message):
        load(now, then)


def test_a_policy_that_refers_to_the_one_around_it_is_named_once():
    inner, outer = Own(), Own()
    inner.outer, outer.inner = outer, [inner]
    assert class_names(outer) == ["Own", ["Own"]]


class Mine(Searcher):
    """A searcher of the user."""

    def suggest(self, trial_id: str) -> Any:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"mine": 1}

    def load_state_dict(self, state: Any) -> None:
        state["mine"]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("then", "now"),
    [
        (Mine, QuasiRandomSearch),
        (QuasiRandomSearch, Mine),
        (Mine, lambda: ConcurrencyLimiter(Mine(), 2)),
        (lambda: ConcurrencyLimiter(Mine(), 2), Mine),
    ],
)
def test_another_searcher_is_refused_wherever_it_is(then: Any, now: Any, named: bool):
    before, after = SearchGenerator(then()), SearchGenerator(now())
    saved = class_names(before) if named else None
    with pytest.raises(ConfigError, match=r"^search_alg must be .* Restore with"):
        load_search(after.load_state_dict, class_names(after), before.state_dict(), saved)


class Fifth(Stopper):
    """A stopper of the user: stops a trial at its fifth result."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def __call__(self, trial_id: str, result: Any) -> bool:
        self.counts[trial_id] = self.counts.get(trial_id, 0) + 1
        return self.counts[trial_id] >= 5

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: Any) -> None:
        self.counts = dict(state["counts"])


def three_results() -> Any:
    lab = Lab()
    trial = lab.running()
    for iteration in (1, 2, 3):
        lab.result(trial, iteration)
    return trial


@pytest.mark.parametrize("then", [MaximumIterationStopper(9), TimeoutStopper(60), CombinedStopper()])
def test_a_new_stopper_is_shown_what_was_recorded(then: Stopper):
    trial, now = three_results(), Fifth()
    load_stopper(now, class_names(now), then.state_dict(), class_names(then), [trial])
    assert now.counts == {trial.trial_id: 3}


def test_of_several_stoppers_each_gets_the_state_of_its_class():
    trial, kept, new = three_results(), Fifth(), MaximumIterationStopper(9)
    then_kept, gone = Fifth(), TimeoutStopper(60)
    then_kept.counts = {"other": 4}
    then, now = CombinedStopper(gone, then_kept), CombinedStopper(kept, new)
    load_stopper(now, class_names(now), then.state_dict(), class_names(then), [trial])
    assert kept.counts == {"other": 4}
    assert new.state_dict() == {"results": {trial.trial_id: 3}}


def test_a_stopper_that_cannot_follow_the_results_is_refused():
    class Needs(Fifth):
        def __call__(self, trial_id: str, result: Any) -> bool:
            return bool(result["accuracy"] > 1)

    now, then = Needs(), TimeoutStopper(60)
    with pytest.raises(ConfigError, match=r"stop must be .* KeyError\('accuracy'\) from Needs at"):
        load_stopper(now, class_names(now), then.state_dict(), class_names(then), [three_results()])


@pytest.mark.parametrize("state", [{}, {"stoppers": 3}, {"stoppers": [{}]}])
def test_a_damaged_state_of_several_stoppers_is_refused(state: Any):
    then = class_names(CombinedStopper(TimeoutStopper(60), Fifth()))
    now = MaximumIterationStopper(9)
    with pytest.raises(StorageError, match=r"the state of .* is damaged"):
        load_stopper(now, class_names(now), state, then, [])


def test_stoppers_in_another_order_keep_their_states():
    kept, limit, then_kept = Fifth(), MaximumIterationStopper(9), Fifth()
    then_kept.counts = {"other": 4}
    then, now = CombinedStopper(MaximumIterationStopper(9), then_kept), CombinedStopper(kept, limit)
    load_stopper(now, class_names(now), then.state_dict(), class_names(then), [three_results()])
    assert kept.counts == {"other": 4}
    assert limit.state_dict() == {"results": {}}
