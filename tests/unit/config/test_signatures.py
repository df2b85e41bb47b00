"""Policies whose methods do not take what they are given are refused before anything begins."""

from __future__ import annotations

from typing import Any

import pytest

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.schedulers import (
    ASHAScheduler,
    Continue,
    FIFOScheduler,
    ResourceChangingScheduler,
    TrialScheduler,
)
from dasktune.search import ConcurrencyLimiter, Searcher
from dasktune.stopper import CombinedStopper, NoopStopper, Stopper


def train(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": 0.0}


def tuner(*, stop: Any = None, callbacks: Any = None, **tune_config: Any) -> tune.Tuner:
    return tune.Tuner(
        train,
        tune_config=tune.TuneConfig(metric="loss", mode="min", **tune_config),
        run_config=tune.RunConfig(stop=stop, callbacks=callbacks),
    )


class OfRay(TrialScheduler):
    """As Ray Tune's documents have it."""

    def on_trial_add(self, tune_controller, trial):
        pass

    def on_trial_error(self, tune_controller, trial):
        pass

    def on_trial_result(self, tune_controller, trial, result):
        return "CONTINUE"

    def on_trial_complete(self, tune_controller, trial, result):
        pass

    def on_trial_remove(self, tune_controller, trial):
        pass

    def choose_trial_to_run(self, tune_controller):
        return None


class HalfOfRay(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return "CONTINUE"


def test_a_scheduler_in_ray_tunes_signatures_is_refused_with_the_new_ones():
    with pytest.raises(ConfigError) as caught:
        tuner(scheduler=OfRay())
    text = str(caught.value)
    assert "OfRay with on_trial_add(self, tune_controller, trial)" in text
    assert "def on_trial_add(self, trial)" in text
    assert "def on_trial_result(self, trial, result)" in text
    assert "returns Continue(), Pause(" in text


@pytest.mark.parametrize("scheduler", [HalfOfRay(), ResourceChangingScheduler(base_scheduler=HalfOfRay())])
def test_one_hook_is_enough_also_of_a_scheduler_inside_another(scheduler: TrialScheduler):
    with pytest.raises(ConfigError, match=r"def on_trial_result\(self, trial, result\)\. "):
        tuner(scheduler=scheduler)


class Lenient(FIFOScheduler):
    """Odd, but it works."""

    def on_trial_add(self, *args):
        return ()

    def on_trial_result(self, one, other, more=None, **rest):
        return Continue()

    on_trial_error = staticmethod(lambda trial: ())


@pytest.mark.parametrize("scheduler", [Lenient(), ASHAScheduler(), "fifo", None])
def test_what_works_is_not_refused(scheduler: Any):
    assert tuner(scheduler=scheduler)


class OldSearch(Searcher):
    def suggest(self, trial_id):
        return {"x": 1}

    def on_trial_complete(self, trial_id, result):
        pass


class NarrowSearch(Searcher):
    def suggest(self, trial_id):
        return {"x": 1}

    def set_search_properties(self, metric, mode, config):
        return True


@pytest.mark.parametrize(
    ("searcher", "right"),
    [
        (OldSearch(), r"def on_trial_complete\(self, trial_id, result=None, error=False\)"),
        (ConcurrencyLimiter(OldSearch(), 2), r"def on_trial_complete\("),
        (NarrowSearch(), r"def set_search_properties\(self, metric, mode, config, \*\*spec\)"),
    ],
)
def test_so_are_searchers(searcher: Searcher, right: str):
    with pytest.raises(ConfigError, match=rf"search_alg must be .*{right}"):
        tuner(search_alg=searcher)


class Swapped(Stopper):
    def __call__(self, result):
        return False


@pytest.mark.parametrize("stop", [Swapped(), CombinedStopper(NoopStopper(), Swapped())])
def test_so_are_stoppers(stop: Stopper):
    with pytest.raises(ConfigError, match=r"stop must be .*def __call__\(self, trial_id, result\)"):
        tuner(stop=stop)


class Misnamed(tune.Callback):
    def on_trial_result(self, step, everyone, trial, result, **info):
        pass


class WithoutInfo(tune.Callback):
    """Works as long as no version adds an argument."""

    def on_trial_result(self, trials, result, trial, iteration):
        pass


def test_so_are_callbacks_which_get_their_arguments_by_name():
    with pytest.raises(ConfigError, match=r"callbacks must be .*def on_trial_result\(self, iter"):
        tuner(callbacks=[Misnamed()])
    assert tuner(callbacks=[WithoutInfo()])
