"""A search that thinks while trials run."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_kit import ONE_CPU, Lab

from dasktune.errors import InvalidTransition
from dasktune.schedulers.decision import Pause
from dasktune.trial.events import (
    SessionBegan,
    Suggested,
    SuggestionAsked,
    TrialEnded,
    TrialPaused,
)
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


def ask(lab: Lab) -> str:
    trial_id = lab.experiment.next_trial_id
    lab.handle(SuggestionAsked(trial_id=trial_id, time=lab.tick()))
    return trial_id


def answer(lab: Lab, trial_id: str, config: dict[str, Any] | None = None) -> None:
    resources = None if config is None else ONE_CPU
    lab.handle(Suggested(trial_id=trial_id, config=config, resources=resources, time=lab.tick()))


def paused_for_others(lab: Lab) -> Trial:
    trial = lab.running()
    lab.scheduler.lets_others_come = True
    lab.scheduler.decide = lambda *_: Pause("at a rung", save=False)
    lab.result(trial, 1)
    return trial


def test_while_a_search_is_asked_it_gets_nothing_and_is_not_asked_again():
    lab = Lab()
    trial = lab.running()
    name = ask(lab)
    assert not lab.experiment.wants_suggestion
    assert lab.experiment.may_have_suggestion
    lab.result(trial, 1)
    lab.tell(trial, TrialEnded)
    assert lab.search.results == lab.search.ends == []
    assert lab.scheduler.ends(trial) == ["complete"]
    answer(lab, name, {"x": 1})
    assert lab.search.results == [(trial.trial_id, 1)]
    assert lab.search.ends == [(trial.trial_id, {"training_iteration": 1}, False)]
    assert lab.experiment.next_trial() is lab.experiment.trials[name]


def test_what_it_did_not_get_comes_in_the_order_in_which_it_happened():
    lab = Lab()
    trial = paused_for_others(lab)
    name = ask(lab)
    lab.tell(trial, TrialPaused)
    lab.grant(trial)
    assert lab.search.pauses == []
    answer(lab, name)
    assert lab.search.pauses == [("pause", trial.trial_id), ("unpause", trial.trial_id)]


@pytest.mark.parametrize("news", [False, True])
def test_a_search_that_has_nothing_to_offer_is_asked_again_when_it_knows_more(news: bool):
    lab = Lab()
    trial = lab.running()
    name = ask(lab)
    lab.result(trial, 1)
    if news:
        lab.tell(trial, TrialEnded)
    answer(lab, name)
    assert lab.experiment.wants_suggestion == lab.experiment.may_have_suggestion == news


def test_a_trial_that_waits_for_others_is_news_to_it():
    lab = Lab()
    trial = paused_for_others(lab)
    name = ask(lab)
    lab.tell(trial, TrialPaused)
    answer(lab, name)
    assert lab.experiment.wants_suggestion


def test_a_wait_for_an_answer_is_no_standstill():
    lab = Lab()
    trial = paused_for_others(lab)
    lab.scheduler.strands = True
    name = ask(lab)
    lab.tell(trial, TrialPaused)
    lab.time_passes()
    assert trial.status is TrialStatus.PAUSED
    assert not lab.experiment.finished
    answer(lab, name, {"x": 1})
    assert lab.experiment.trial_index.pending


def test_who_stops_everything_does_not_wait_for_an_answer():
    lab = Lab()
    name = ask(lab)
    lab.stop()
    assert lab.experiment.finished
    answer(lab, name, {"x": 1})
    trial = lab.experiment.trials[name]
    assert trial.status is TrialStatus.TERMINATED
    assert lab.seen_once(trial, "remove")
    assert lab.experiment.finished


def test_another_driver_asks_again_and_tells_what_the_last_one_could_not():
    lab = Lab()
    trial = lab.running()
    name = ask(lab)
    lab.tell(trial, TrialEnded)
    lab.handle(SessionBegan(time=lab.tick()))
    assert lab.search.ends == [(trial.trial_id, None, False)]
    assert lab.experiment.wants_suggestion
    assert lab.experiment.next_trial_id == name


def test_what_is_held_back_is_part_of_the_state():
    lab, other = Lab(), Lab()
    trial = lab.running()
    name = ask(lab)
    lab.result(trial, 1, loss=0.5)
    lab.tell(trial, TrialEnded)
    other.experiment.load_state_dict(lab.experiment.state_dict())
    assert not other.experiment.wants_suggestion
    answer(other, name, {"x": 1})
    last = {"training_iteration": 1, "loss": 0.5}
    assert other.search.told == [last]
    assert other.search.ends == [(trial.trial_id, last, False)]


def test_it_is_asked_for_one_trial_at_a_time():
    lab = Lab()
    name = ask(lab)
    with pytest.raises(InvalidTransition, match=f"{name} was requested while that for {name} was pending"):
        ask(lab)
