"""What becomes of a trial that is given up for a clone of another one."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from experiment_kit import Lab, bring, committed, kinds

from dasktune.experiment.precedent import Precedent
from dasktune.schedulers.decision import Continue, Exploit, ExploitOther, Pause, Stop, Unpause
from dasktune.trial.actions import (
    ContinueTraining,
    DeleteCheckpoint,
    ExploitTrial,
    RestoreTrial,
    StartTrial,
)
from dasktune.trial.checkpoint import CheckpointKind
from dasktune.trial.events import (
    CheckpointCommitted,
    CheckpointLost,
    ResultReported,
    SessionBegan,
    TrialEnded,
    TrialPaused,
    TrialReopenRequested,
)
from dasktune.trial.retention import Retention
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


def decide(lab: Lab, trial: Trial, iteration: int, decision: Any, **facts: Any) -> list[Any]:
    """Report a result on which the scheduler says this."""
    before, lab.scheduler.decide = lab.scheduler.decide, lambda *_: decision
    actions = lab.result(trial, iteration, **facts)
    lab.scheduler.decide = before
    return actions


def held(lab: Lab, *iterations: int) -> Trial:
    """Return a trial that has reported at these, and is held at the last, which it has saved."""
    trial = lab.running(x=1)
    *before, last = iterations
    for index, iteration in enumerate(before):
        lab.result(trial, iteration, checkpoint=index)
    decide(lab, trial, last, Continue(hold=True), checkpoint=len(before))
    return trial


def clone_of(donor: Trial, iteration: int | None = None, **facts: Any) -> Exploit:
    return Exploit(donor.trial_id, {"x": 2}, "is bad", iteration=iteration, **facts)


def test_a_trial_goes_on_as_a_clone():
    lab = Lab()
    donor, trial = held(lab, 1, 2), lab.running(x=0)
    for iteration in (1, 2, 3):
        lab.result(trial, iteration)
    actions = decide(lab, trial, 4, clone_of(donor, 2))
    assert kinds(actions) == ["ExploitTrial", "PauseTrial"]
    assert (actions[0].old_config, actions[0].iteration) == ({"x": 1}, 4)
    assert not actions[1].save
    assert trial.config == {"x": 2}
    # Its own rows beyond are gone.
    assert trial.last_iteration == 2
    lab.tell(trial, TrialPaused)
    order = lab.grant(trial)
    assert isinstance(order, RestoreTrial)
    assert (order.checkpoint, order.config) == (donor.held, {"x": 2})
    assert lab.experiment.cloning.rows == [
        [trial.trial_id, donor.trial_id, 4, 2, {"x": 1}, {"x": 2}]
    ]
    assert trial.ancestry == (0,)


def test_the_search_hears_of_a_clone_only_that_it_has_ended():
    lab = Lab()
    donor, trial = held(lab, 1), lab.running(x=0)
    lab.result(trial, 1)
    # What it is given up for is the last that is its own.
    decide(lab, trial, 2, clone_of(donor))
    lab.tell(trial, TrialPaused)
    lab.start(trial)
    lab.result(trial, 3)
    lab.tell(trial, TrialEnded)
    lab.tell(donor, TrialEnded)
    assert [seen for seen in lab.search.results if seen[0] == trial.trial_id] == [
        (trial.trial_id, 1),
        (trial.trial_id, 2),
    ]
    assert lab.search.ends == [
        (trial.trial_id, None, False),
        (donor.trial_id, {"training_iteration": 1}, False),
    ]


def test_the_search_hears_all_of_a_trial_whose_configuration_was_completed_before_it_began():
    lab = Lab()
    trial = lab.add(x=0)
    wish = ExploitOther(
        trial_id=trial.trial_id, donor=trial.trial_id, config={"x": 0, "y": 1}, reason="lacks y"
    )
    decide(lab, lab.running(), 1, Continue(commands=(wish,)))
    lab.start(trial)
    lab.result(trial, 1)
    lab.tell(trial, TrialEnded)
    assert lab.search.ends == [(trial.trial_id, {"training_iteration": 1}, False)]


def test_the_ancestry_of_a_clone_is_that_of_its_donor_and_its_own():
    lab = Lab()
    first, second, third = held(lab, 1), lab.running(x=0), lab.running(x=0)
    decide(lab, second, 1, clone_of(first))
    lab.tell(second, TrialPaused)
    lab.start(second)
    decide(lab, second, 2, Continue(hold=True), checkpoint=0)
    decide(lab, third, 2, clone_of(second, 2))
    assert (first.ancestry, second.ancestry, third.ancestry) == ((), (0,), (0, 1))
    request = TrialReopenRequested(trial_id=third.trial_id, fresh=True, time=lab.tick())
    lab.tell(third, TrialPaused)
    lab.handle(request)
    assert third.ancestry == ()


def test_whoever_has_nothing_to_be_cloned_from_is_not_cloned(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    lab = Lab()
    donor, trial = held(lab, 5), lab.running(x=0)
    [order] = decide(lab, trial, 4, clone_of(donor, 4))
    assert (order.trial_id, trial.config) == (trial.trial_id, {"x": 0})
    assert "which has no checkpoint of iteration 4 or before (is bad)" in caplog.text
    donor = lab.running()
    otherwise = Pause("later", commands=(Unpause(trial_id=donor.trial_id),))
    actions = decide(lab, trial, 5, clone_of(donor, otherwise=otherwise))
    assert kinds(actions) == ["PauseTrial"]
    assert "which has no checkpoint (is bad)" in caplog.text


def test_one_warning_tells_that_what_saves_nothing_is_never_cloned(
    caplog: pytest.LogCaptureFixture,
):
    lab = Lab()
    donor, forgetful, trial = held(lab, 5), lab.running(), lab.running(x=0)
    # It has one, though none that is old enough.
    decide(lab, trial, 1, clone_of(donor, 4))
    assert caplog.records == []
    for iteration in (2, 3):
        decide(lab, trial, iteration, clone_of(forgetful, 1))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    told = f"{trial.trial_id} is to go on as a clone of {forgetful.trial_id}, which has saved no"
    assert told in record.getMessage()
    assert "report(metrics, checkpoint=...)" in record.getMessage()


def test_a_trial_that_waits_can_be_told_to_be_a_clone():
    lab = Lab()
    donor, trial = held(lab, 1), bring(lab, TrialStatus.PAUSED)
    wish = ExploitOther(
        trial_id=trial.trial_id, donor=donor.trial_id, config={"x": (2,)}, reason="is bad"
    )
    running = replace(wish, trial_id=lab.running().trial_id)
    hopeless = replace(wish, donor=lab.add().trial_id)
    decision = Stop("enough", commands=(running, hopeless, wish, Unpause(trial_id=trial.trial_id)))
    actions = decide(lab, lab.running(), 1, decision)
    assert kinds(actions) == ["StopTrial", "ExploitTrial", "UnpauseTrial"]
    assert actions[1].pickled
    assert trial.pickled
    assert lab.grant(trial).checkpoint == donor.held


def test_a_trial_whose_own_configuration_changes_is_saved_first():
    lab = Lab()
    trial = lab.running(x=0)
    lab.result(trial, 1)
    actions = decide(lab, trial, 2, clone_of(trial))
    assert kinds(actions) == ["ExploitTrial", "PauseTrial"]
    assert actions[1].save
    assert (trial.last_iteration, trial.config) == (2, {"x": 2})
    assert trial.ancestry == (0,)


def test_a_new_trial_that_gets_another_configuration_has_no_past():
    lab = Lab()
    lab.scheduler.on_trial_add = lambda trial: (  # type: ignore[method-assign]
        ExploitOther(
            trial_id=trial.trial_id, donor=trial.trial_id, config={"x": 5}, reason="lacks x"
        ),
    )
    trial = lab.add()
    assert (trial.config, trial.ancestry) == ({"x": 5}, ())
    order = lab.grant(trial)
    assert isinstance(order, StartTrial)
    assert order.config == {"x": 5}


def test_a_checkpoint_that_comes_late_does_not_undo_the_clone():
    lab = Lab()
    donor, trial = held(lab, 1), lab.running(x=0)
    decide(lab, trial, 3, clone_of(donor, 1))
    lab.save(trial, 0, 3)
    lab.tell(trial, TrialPaused)
    assert lab.grant(trial).checkpoint == donor.held
    lab.lose(trial)
    lab.start(trial)
    lab.result(trial, 2, checkpoint=1)
    assert trial.origin is None


def test_results_that_streamed_on_when_a_trial_was_given_up_are_not_the_clones():
    lab = Lab()
    donor, trial = held(lab, 1), lab.running(x=0)
    for iteration in (1, 2):
        lab.result(trial, iteration, awaits=False)
    decide(lab, trial, 3, clone_of(donor, 1), awaits=False)
    lab.result(trial, 4, awaits=False, checkpoint=0)
    assert [row["training_iteration"] for row in trial.history] == [1]
    lab.tell(trial, TrialPaused)
    lab.start(trial)
    lab.result(trial, 2)
    assert [row["training_iteration"] for row in trial.history] == [1, 2]
    assert ("result 2", trial.trial_id) == lab.scheduler.calls[-1]


def test_a_worker_that_dies_while_its_trial_is_paused_for_its_clone_changes_nothing():
    lab = Lab()
    donor, trial = held(lab, 1), lab.running(x=0)
    decide(lab, trial, 3, clone_of(donor, 1))
    lab.lose(trial)
    assert trial.status is TrialStatus.PAUSED
    assert lab.grant(trial).checkpoint == donor.held


def test_what_was_cut_from_a_history_is_no_progress():
    lab = Lab(max_worker_losses=1)
    donor, trial = held(lab, 1), lab.running(x=0)
    for iteration in range(1, 9):
        lab.result(trial, iteration)
    lab.lose(trial)
    lab.start(trial)
    for iteration in range(1, 10):
        lab.result(trial, iteration)
    decide(lab, trial, 10, clone_of(donor, 1))
    lab.tell(trial, TrialPaused)
    lab.start(trial)
    lab.result(trial, 2)
    lab.lose(trial)
    assert (trial.worker_losses, trial.status) == (1, TrialStatus.PENDING)


# What is held


def gone(actions: list[Any]) -> list[int]:
    return [one.checkpoint.index for one in actions if isinstance(one, DeleteCheckpoint)]


def test_what_is_held_outlives_retention_until_the_next_is():
    lab = Lab(retention=Retention(num_to_keep=1))
    donor = held(lab, 1, 2)
    assert gone(lab.result(donor, 3, checkpoint=2)) == []
    assert gone(lab.result(donor, 4, checkpoint=3)) == [2]
    assert donor.held is not None
    assert donor.held.index == 1
    assert [one.index for one in donor.lent] == [1]
    assert gone(decide(lab, donor, 5, Continue(hold=True), checkpoint=4)) == [3, 1]
    assert donor.held.index == 4
    lab.tell(donor, TrialEnded)
    assert donor.held is None


def test_what_is_saved_at_a_result_is_what_is_held_of_it():
    lab = Lab(retention=Retention(num_to_keep=1))
    donor = held(lab, 1)
    decide(lab, donor, 3, Continue(save=True, hold=True, kind=CheckpointKind.MEMORY))
    assert donor.held is not None
    assert donor.held.index == 0
    record = replace(committed(donor, 1, 3), kind=CheckpointKind.MEMORY)
    lab.tell(donor, CheckpointCommitted, checkpoint=record)
    assert donor.held == record
    assert gone(lab.result(donor, 4, checkpoint=2)) == [0]
    assert donor.memory is None
    assert gone(lab.tell(donor, TrialEnded)) == [1]


@pytest.mark.parametrize("way", ["worker", "driver"])
def test_when_what_is_held_is_lost_an_older_one_is(way: str):
    lab = Lab()
    donor = held(lab, 1)
    decide(lab, donor, 3, Pause("later", hold=True))
    record = replace(committed(donor, 1, 3), kind=CheckpointKind.MEMORY)
    lab.tell(donor, CheckpointCommitted, checkpoint=record)
    lab.tell(donor, TrialPaused)
    if way == "driver":
        lab.handle(SessionBegan(time=lab.tick()))
    else:
        key, path = donor.trial_id, record.path
        lab.handle(CheckpointLost(trial_id=key, path=path, reason="gone", time=lab.tick()))
    assert donor.held == donor.checkpoint
    again = Lab()
    again.experiment.load_state_dict(lab.experiment.state_dict())
    assert again.experiment.state_dict() == lab.experiment.state_dict()


def test_a_clone_without_a_checkpoint_of_its_own_holds_and_lends_its_origin():
    lab = Lab(retention=Retention(num_to_keep=1))
    donor, trial = held(lab, 1), lab.running()
    lab.result(trial, 5, checkpoint=0)
    decide(lab, trial, 6, clone_of(donor, 1))
    lab.tell(trial, TrialPaused)
    lab.start(trial)
    decide(lab, trial, 7, Continue(hold=True))
    assert trial.held == trial.origin == donor.held
    path = donor.held.path
    lab.result(trial, 8, checkpoint=1)
    lab.tell(donor, TrialEnded)
    assert trial.held.path == path
    third = lab.running()
    assert decide(lab, third, 9, clone_of(trial, 7))[0].checkpoint.path == path


# In replay


def told(lab: Lab, trial: Trial, donor: Trial, **changes: Any) -> ExploitTrial:
    facts: dict[str, Any] = {
        "trial_id": trial.trial_id,
        "incarnation": 1,
        "donor": donor.trial_id,
        "config": {"x": 2},
        "old_config": {"x": 1},
        "reason": "was bad",
        "iteration": 3,
    }
    return ExploitTrial(**{**facts, **changes})


def replayed(lab: Lab, trial: Trial, decision: Any, *story: Any, **facts: Any) -> Precedent:
    """Let a result be judged of which the journal says what came of it."""
    lab.scheduler.decide = lambda *_: decision
    event = lab.event(trial, ResultReported, metrics={"training_iteration": 3}, **facts)
    precedent = Precedent(story)
    lab.experiment.handle(event, precedent)
    return precedent


@pytest.mark.parametrize(
    ("config", "overruled"), [({"x": 2}, ""), ({"x": 3}, "RecordingScheduler"), (None, "")]
)
def test_a_clone_goes_on_with_what_the_journal_says(config: Any, overruled: str):
    lab = Lab()
    donor, trial = held(lab, 1), lab.running(x=0)
    wish: Any = Continue() if config is None else replace(clone_of(donor), config=config)
    precedent = replayed(lab, trial, wish, told(lab, trial, donor), None)
    assert kinds(precedent.done) == ["ExploitTrial", "PauseTrial"]
    assert trial.config == {"x": 2}
    if config is None:
        assert precedent.overruled
    else:
        assert precedent.overruled == overruled


@pytest.mark.parametrize("proposes", [True, False])
def test_an_order_to_be_a_clone_stands(proposes: bool):
    lab = Lab()
    donor, trial, other = held(lab, 1), bring(lab, TrialStatus.PAUSED), lab.running()
    wish = ExploitOther(
        trial_id=trial.trial_id, donor=donor.trial_id, config={"x": 2}, reason="was bad"
    )
    decision = Continue(commands=(wish,) if proposes else ())
    precedent = replayed(lab, other, decision, None, told(lab, trial, donor))
    assert (trial.config, trial.origin) == ({"x": 2}, donor.held)
    assert bool(precedent.overruled) is not proposes


def test_that_a_result_is_held_stands():
    lab = Lab()
    donor = held(lab, 1)
    story = ContinueTraining(trial_id=donor.trial_id, incarnation=1, seq=1, hold=True)
    replayed(lab, donor, Continue(), story)
    assert donor.held_at == 3
