from __future__ import annotations

import pytest
from progress_kit import Printed, Run, trial_storage

import dasktune as tune
from dasktune.progress import ProgressReporter, open_progress
from dasktune.progress.observers import searched_names
from dasktune.trial.events import TimePassed


@pytest.fixture
def printed(monkeypatch, capsys):
    monkeypatch.delenv("DASKTUNE_PROGRESS", raising=False)
    return Printed(capsys)


class Noting(ProgressReporter):
    def __init__(self, broken=""):
        self.calls = []
        self.broken = broken

    def _note(self, name, *more):
        self.calls.append((name, *more))
        if name == self.broken:
            raise RuntimeError("the reporter is broken")

    def setup(self, start_time=None, total_samples=None, metric=None, mode=None, **kwargs):
        self._note("setup", metric, mode)

    def should_report(self, trials, done=False):
        self._note("should_report", done)
        return done or len(trials) > 0

    def report(self, trials, done, *sys_info):
        self._note("report", [str(trial.status) for trial in trials], done)
        assert all(isinstance(text, str) for text in sys_info)
        self.sys_info = [*getattr(self, "sys_info", []), *sys_info]


def drive(config, notes=()):
    run = Run()
    offers = {"w": {"CPU": 4}}
    with open_progress(config, run.experiment, trial_storage(), {}, lambda: offers, notes=notes) as observers:
        for run.observer in observers:
            run.tell(TimePassed(time=0.0))
            trial_id = run.start(time=1.0)
            run.report(trial_id, 1, 0.5, time=2.0)
            run.report(trial_id, 2, 0.5, time=2.05)
            run.end(trial_id, time=3.0)
            run.observer.on_end(run.experiment)
    return run


def test_a_reporter_of_the_users_takes_the_place_of_the_display(printed):
    reporter = Noting()
    drive(tune.RunConfig(progress_reporter=reporter))
    assert reporter.calls[0] == ("setup", "loss", "min")
    reports = [call[1:] for call in reporter.calls if call[0] == "report"]
    assert reports == [
        (["PENDING"], False),  # the three events of one moment are one question
        (["RUNNING"], False),
        (["TERMINATED"], False),
        (["TERMINATED"], True),
    ]
    assert "Resources used: 1/4 CPUs" in reporter.sys_info
    assert printed.getvalue() == ""


@pytest.mark.parametrize("broken", ["setup", "should_report", "report"])
def test_a_reporter_that_raises_is_disabled_and_logged(printed, broken, caplog):
    reporter = Noting(broken)
    drive(tune.RunConfig(progress_reporter=reporter))
    assert [call[0] for call in reporter.calls].count(broken) == 1
    assert "progress is no" in caplog.text
    assert "RuntimeError: the reporter is broken" in caplog.text


@pytest.mark.parametrize("options", [{"verbose": 0}, {"verbose": 0, "progress_reporter": Noting()}])
def test_who_wants_nothing_gets_nothing(printed, options):
    drive(tune.RunConfig(**options))
    assert printed.getvalue() == ""


def test_the_environment_chooses_how_it_is_shown(printed, monkeypatch):
    drive(tune.RunConfig())
    assert printed.getvalue().startswith("[dasktune] 0 trials done")
    assert "Results: memory://progress" in printed.getvalue()
    printed.forget()
    monkeypatch.setenv("DASKTUNE_PROGRESS", "none")
    drive(tune.RunConfig())
    assert printed.getvalue() == ""


def test_a_reporter_of_a_class_of_dasktunes_may_decide_when(printed):
    class WhenTrialsEnd(tune.CLIReporter):
        """As Ray Tune's guide has it."""

        def __init__(self):
            super().__init__()
            self.ended = 0

        def should_report(self, trials, done=False):
            before = self.ended
            self.ended = len([trial for trial in trials if trial.status == "TERMINATED"])
            return self.ended > before

    drive(tune.RunConfig(progress_reporter=WhenTrialsEnd()))
    assert printed.getvalue().count("Trials: 1 (1 TERMINATED)") == 1


def test_parameters_that_differ_between_trials_are_known_by_the_space():
    space = {
        "a": tune.uniform(0, 1),
        "b": {"grid_search": [1]},
        "c": {"d": tune.choice([1, 2]), "e": 3},
        "f": tune.sample_from(lambda spec: 1),
    }
    assert set(searched_names(space)) == {"a", "b", "c/d", "f"}


def test_notes_are_printed_once_before_the_first_progress(printed, monkeypatch):
    monkeypatch.setenv("DASKTUNE_PROGRESS", "plain")
    drive(tune.RunConfig(), notes=["learns from 1 experiment\nwith 30 trials"])
    first, second, *_ = printed.getvalue().splitlines()
    assert first == "[dasktune] learns from 1 experiment with 30 trials"
    assert "trials done" in second
