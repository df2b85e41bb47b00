"""A saved state is loaded by the class that it belongs to, or refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_kit import Lab

from dasktune.errors import ConfigError, StorageError
from dasktune.experiment.policy_states import identity_of, load_scheduler, load_search, load_stopper
from dasktune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from dasktune.search import (
    ConcurrencyLimiter,
    QuasiRandomSearch,
    Repeater,
    Searcher,
    SearchGenerator,
    TuneBOHB,
)
from dasktune.space import choice, uniform
from dasktune.stopper import (
    CombinedStopper,
    MaximumIterationStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
)


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


def load(now: Any, then: Any, unfinished: tuple[str, ...] = ("a",)) -> None:
    load_scheduler(now, identity_of(now), then.state_dict(), identity_of(then), unfinished)


@pytest.mark.parametrize("now", STATEFUL)
@pytest.mark.parametrize("then", ["fifo", *STATEFUL])
def test_another_scheduler_is_refused_with_what_to_do(then: str, now: str):
    before = FIFOScheduler() if then == "fifo" else STATEFUL[then]()
    after = STATEFUL[now]()
    if then == now:
        load(after, before)
        assert after.state_dict() == before.state_dict()
        return
    with pytest.raises(ConfigError, match=r" must be .* Restore with"):
        load(after, before)


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
    assert identity_of(outer) == ["Own", {}, ["Own", {}]]


def asha(metric: Any = "loss", mode: Any = "min", **arguments: Any) -> ASHAScheduler:
    return ASHAScheduler(metric=metric, mode=mode, **arguments)


@pytest.mark.parametrize("unfinished", [("a",), ()])
@pytest.mark.parametrize(
    ("now", "message"),
    [
        (asha("acc"), "^metric of AsyncHyper.* must be 'loss' as at the start, got 'acc'"),
        (asha(mode="max"), "^mode of .* must be 'min' as at the start, got 'max'"),
        (asha(time_attr="t"), "^time_attr of .* must be 'training_iteration' .* got 't'"),
    ],
)
def test_a_scheduler_that_compares_by_other_values_is_refused(now: Any, message: str, unfinished: Any):
    for wrapped in (lambda one: one, ResourceChangingScheduler):
        with pytest.raises(ConfigError, match=message):
            load(wrapped(now), wrapped(asha()), unfinished)


def test_goals_are_names_wherever_they_are_given():
    taken, own = asha(None, None), Own()
    taken.set_search_properties("loss", "min")
    assert identity_of(taken) == identity_of(asha())
    own.metrics, own.metric, own.modes = ("a", "b"), print, [1]  # type: ignore[attr-defined, assignment]
    assert identity_of(own) == ["Own", {"metrics": ["a", "b"]}]


class Mine(Searcher):
    """A searcher of the user."""

    def suggest(self, trial_id: str) -> Any:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"mine": 1}

    def load_state_dict(self, state: Any) -> None:
        state["mine"]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (Mine, QuasiRandomSearch),
        (QuasiRandomSearch, Mine),
        (Mine, lambda: ConcurrencyLimiter(Mine(), 2)),
        (lambda: ConcurrencyLimiter(Mine(), 2), Mine),
    ],
)
def test_another_searcher_is_refused_wherever_it_is(then: Any, now: Any):
    before, after = SearchGenerator(then()), SearchGenerator(now())
    saved = identity_of(before)
    with pytest.raises(ConfigError, match=r"^search_alg must be .* Restore with"):
        load_search(after.load_state_dict, identity_of(after), before.state_dict(), saved)


@pytest.mark.parametrize(
    "wrapped", [lambda one: one, lambda one: Repeater(one, 2), lambda one: ConcurrencyLimiter(one, 2)]
)
def test_a_searcher_with_another_metric_is_refused_wherever_it_is(wrapped: Any):
    before, after = (SearchGenerator(wrapped(Mine(metric=name))) for name in ("loss", "acc"))
    with pytest.raises(ConfigError, match=r"^metric of Mine must be 'loss' as at the start, got 'acc'"):
        load_search(after.load_state_dict, identity_of(after), before.state_dict(), identity_of(before))


def test_the_state_of_a_model_belongs_to_its_space():
    space = {"lr": uniform(0, 1), "kind": choice(["a", "b"])}
    known = identity_of(TuneBOHB(space))[1]
    assert known == {"time_attr": "training_iteration", "searched_parameters": ["kind: 2", "lr: (0.0, 1.0)"]}
    assert identity_of(QuasiRandomSearch(space))[1] == {}


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
    load_stopper(now, identity_of(now), then.state_dict(), identity_of(then), [trial])
    assert now.counts == {trial.trial_id: 3}


def test_of_several_stoppers_each_gets_the_state_of_its_class():
    trial, kept, new = three_results(), Fifth(), MaximumIterationStopper(9)
    then_kept, gone = Fifth(), TimeoutStopper(60)
    then_kept.counts = {"other": 4}
    then, now = CombinedStopper(gone, then_kept), CombinedStopper(kept, new)
    load_stopper(now, identity_of(now), then.state_dict(), identity_of(then), [trial])
    assert kept.counts == {"other": 4}
    assert new.state_dict() == {"results": {trial.trial_id: 3}}


def test_a_stopper_of_another_metric_is_a_new_one():
    trial = three_results()
    then, now = TrialPlateauStopper("loss"), TrialPlateauStopper("acc")
    then("other", {"loss": 1.0})
    load_stopper(now, identity_of(now), then.state_dict(), identity_of(then), [trial])
    assert now.state_dict() == {"results": {trial.trial_id: 3}, "last": {}}


def test_a_stopper_that_cannot_follow_the_results_is_refused():
    class Needs(Fifth):
        def __call__(self, trial_id: str, result: Any) -> bool:
            return bool(result["accuracy"] > 1)

    now, then = Needs(), TimeoutStopper(60)
    with pytest.raises(ConfigError, match=r"stop must be .* KeyError\('accuracy'\) from Needs at"):
        load_stopper(now, identity_of(now), then.state_dict(), identity_of(then), [three_results()])


@pytest.mark.parametrize("state", [{}, {"stoppers": 3}, {"stoppers": [{}]}])
def test_a_damaged_state_of_several_stoppers_is_refused(state: Any):
    then = identity_of(CombinedStopper(TimeoutStopper(60), Fifth()))
    now = MaximumIterationStopper(9)
    with pytest.raises(StorageError, match=r"the state of .* is damaged"):
        load_stopper(now, identity_of(now), state, then, [])


def test_stoppers_in_another_order_keep_their_states():
    kept, limit, then_kept = Fifth(), MaximumIterationStopper(9), Fifth()
    then_kept.counts = {"other": 4}
    then, now = CombinedStopper(MaximumIterationStopper(9), then_kept), CombinedStopper(kept, limit)
    load_stopper(now, identity_of(now), then.state_dict(), identity_of(then), [three_results()])
    assert kept.counts == {"other": 4}
    assert limit.state_dict() == {"results": {}}


def test_the_same_classes_in_another_order_are_others():
    scheduler = STATEFUL[next(iter(STATEFUL))]()
    saved, names = ["A", {}, ["B", {}], ["C", {}]], ["A", {}, ["C", {}, ["B", {}]]]
    with pytest.raises(ConfigError, match=r"scheduler must be A\(B, C\) as before, got A\(C\(B\)\)"):
        load_scheduler(scheduler, names, scheduler.state_dict(), saved, ("a",))


def test_a_state_that_its_own_class_cannot_load_is_refused_with_the_class():
    class Forgetful(FIFOScheduler):
        def load_state_dict(self, state: Any) -> None:
            if "max_t" in state:
                raise ConfigError("max_t must be 9 as before")
            state["gone"]

    names = identity_of(Forgetful())
    with pytest.raises(ConfigError, match=r"scheduler must be able to load .* KeyError.* from Forgetful"):
        load_scheduler(Forgetful(), names, {"here": 1}, names, ("a",))
    # A sentence of the scheduler itself stands as it is.
    with pytest.raises(ConfigError, match=r"^max_t must be 9 as before$"):
        load_scheduler(Forgetful(), names, {"max_t": 1}, names, ("a",))
