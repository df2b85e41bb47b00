from __future__ import annotations

import pickle
import re
import sys
from dataclasses import replace

import pytest
from numpy.random import default_rng

from dasktune.errors import ConfigError
from dasktune.forecast.contenders import arguments_note, contenders
from dasktune.forecast.recorded_trial import CurveSelection, FullCurve
from dasktune.forecast.what_if import Interval, WhatIf, WhatIfRow, notes_of, replay_all
from dasktune.schedulers import ASHAScheduler, FIFOScheduler, create_scheduler


def curves(trials=30, epochs=9, *, crossing=False):
    """Return curves, of which the best begins as the worst if they cross."""
    found = []
    for number in range(trials):
        early = trials - number if crossing else number
        rows = [
            {"training_iteration": n, "time_total_s": 2.0 * n, "loss": number + 99 * early / n**3}
            for n in range(1, epochs + 1)
        ]
        found.append(FullCurve(rows, "loss", "min"))
    return found


def replayed(some, schedulers, **options):
    given = contenders(schedulers, 9)
    for scheduler in given.values():
        scheduler.set_search_properties("loss", "min")
    options = {"workers": 4, "orders": 20, "seed": 0, "progress": lambda done, total: None, **options}
    return replay_all(some, given, **options)


def what_if(rows, **facts):
    about = {"metric": "loss", "mode": "min", "num_curves": 30, "max_t": 9, "orders": 20, "workers": 4}
    return WhatIf(rows=rows, **{**about, "min_kept": 0.9, **facts})


def row(name, share, kept, regret=0.0):
    same = [Interval(value, value, value) for value in (share, share, 9 * share, kept, regret)]
    names = ("iterations", "time", "hours", "kept", "regret")
    return WhatIfRow(scheduler=name, **dict(zip(names, same, strict=True)))


FULL = row("FIFOScheduler", 1.0, 1.0)


def test_full_training_costs_everything_and_loses_nothing():
    full, _ = replayed(curves(), ["asha"])
    assert full.iterations == full.time == (1, 1, 1)
    assert full.regret == (0, 0, 0)
    assert full.kept.value == 1
    # 30 trials of 18 seconds on 4 workers.
    assert full.hours == pytest.approx((8 * 18 / 3600,) * 3)


def test_a_scheduler_that_sees_the_ranking_keeps_the_best_and_one_that_is_misled_loses_it():
    asha = {"asha": ASHAScheduler(max_t=9, reduction_factor=3)}
    _, good = replayed(curves(), asha)
    _, bad = replayed(curves(crossing=True), asha)
    assert good.kept.value == 1
    assert bad.kept.value < 0.5
    assert good.regret.value == 0 < bad.regret.value
    assert 0.1 < good.iterations.low <= good.iterations.value <= good.iterations.high < 0.7
    assert good.kept.low < 1 == good.kept.high
    assert bad.kept.low <= bad.kept.value <= bad.kept.high


def test_the_seed_alone_decides_on_the_orders():
    brackets = {"asha": ASHAScheduler(max_t=9, brackets=2)}
    one, same, other = (replayed(curves(), brackets, seed=seed) for seed in (0, 0, 1))
    assert one == same != other


def test_the_given_scheduler_does_not_change():
    given = ASHAScheduler(max_t=9)
    before = given.state_dict()
    replayed(curves(), [given])
    assert given.state_dict() == before
    assert given.metric is None


def test_equal_curves_have_no_regret():
    _, asha = replayed([curves(2)[1]] * 25, ["asha"])
    assert asha.kept.value == 1
    assert asha.regret.value == 0


def test_curves_without_times_take_no_time():
    rows = [[{"training_iteration": 1, "loss": float(x)}] for x in default_rng(0).random(25)]
    full, _ = replayed([FullCurve(one, "loss", "min") for one in rows], ["asha"])
    assert full.hours.value == 0
    assert full.time.value == 1


def test_the_progress_counts_all_replays():
    calls = []
    replayed(curves(), ["asha"], progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 40) for done in range(1, 41)]


def test_by_default_grace_periods_up_to_a_third_of_the_training_are_compared():
    labels = list(contenders(None, 81))
    assert labels == [
        "FIFOScheduler",
        *(f"PromotingASHAScheduler(grace_period={grace})" for grace in (1, 3, 9)),
        *(f"ASHAScheduler(grace_period={grace})" for grace in (1, 3, 9)),
        "HyperBandScheduler",
        "MedianStoppingRule(grace_period=3)",
        "MedianStoppingRule(check_at=[3, 9, 27])",
    ]
    # What the labels leave out.
    assert "max_t=81 and reduction_factor=3" in arguments_note(81)
    assert len(contenders(None, 1)) == len(contenders(None, 2)) == 6
    assert list(contenders(None, 2))[-1] == "MedianStoppingRule(check_at=[1])"


def test_schedulers_may_be_given_by_name_and_several_of_a_kind():
    asha = ASHAScheduler(max_t=9)
    assert list(contenders([asha, "fifo", asha], 9)) == [
        "FIFOScheduler",
        "ASHAScheduler",
        "fifo",
        "ASHAScheduler 2",
    ]
    assert contenders("hyperband", 27)["hyperband"].max_t == 27
    assert contenders(asha, 27)["ASHAScheduler"].max_t == 9
    assert contenders({"mine": "median_stopping_rule"}, 9)["mine"].time_attr == "time_total_s"


def test_a_scheduler_by_name_has_the_end_of_the_curves_as_max_t_with_other_arguments_too():
    found = contenders([("hyperband", {"reduction_factor": 4}), ("asha", {"max_t": 5})], 27)
    assert list(found) == ["FIFOScheduler", "hyperband", "asha"]
    assert (found["hyperband"].max_t, found["hyperband"].reduction_factor, found["asha"].max_t) == (27, 4, 5)
    assert contenders({"mine": ("medianstopping", {"check_at": [3]})}, 9)["mine"].check_at == (3,)


@pytest.mark.parametrize("given", [[3], [("asha",)], [("asha", 3)], [()], ("asha", {"max_t": 5})])
def test_anything_else_is_no_scheduler(given):
    with pytest.raises(ConfigError, match="schedulers must be trial schedulers, their names, or tuples"):
        contenders(given, 9)


def test_a_time_attr_that_no_trial_reports_is_refused():
    with pytest.raises(ConfigError, match=r"time_attr of mine must be a number that .* got 'epoch'"):
        replayed(curves(), {"mine": ASHAScheduler(max_t=9, time_attr="epoch")})


def test_a_missing_metric_is_warned_of_once_in_all_orders(caplog):
    some = curves()
    del some[3].rows[0]["loss"]
    replayed(some, ["asha"])
    assert [record.message.split(" reports ")[1] for record in caplog.records] == [
        "no number 'loss', which AsyncHyperBandScheduler needs; check its spelling"
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "at least one"),
        ([FIFOScheduler()], "at least one"),
        ([3], "got 3"),
        (["no"], "scheduler must be"),
    ],
)
def test_what_is_no_scheduler_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        contenders(given, 9)


@pytest.mark.parametrize(
    ("name", "arguments", "does"),
    [
        ("pbt", {"hyperparam_mutations": {"lr": [1, 2]}}, "clones trials"),
        ("resource_changing", {}, "changes the resources of trials"),
    ],
)
def test_schedulers_that_change_trials_are_refused(name, arguments, does):
    if name == "pbt":
        arguments = {"time_attr": "training_iteration", "perturbation_interval": 2, **arguments}
    else:
        arguments = {
            "base_scheduler": FIFOScheduler(),
            "resources_allocation_function": lambda *_: {"CPU": 2},
        }
    with pytest.raises(ConfigError, match=f"schedulers must be .* which {does}"):
        replayed(curves(), {"it": create_scheduler(name, **arguments)})


def test_the_cheapest_of_the_schedulers_that_keep_the_best_is_recommended():
    found = what_if((FULL, row("quick", 0.05, 0.5), row("middle", 0.2, 0.95), row("slow", 0.4, 0.99)))
    assert found.recommended.scheduler == "middle"
    assert "Use middle: it takes 20.0% of the iterations" in found.recommendation
    assert "quick takes 5.0% of the iterations, but keeps it only with 50%" in found.recommendation
    careful = what_if(found.rows, min_kept=0.97)
    assert careful.recommended.scheduler == "slow"


def test_where_no_scheduler_keeps_the_best_full_training_is_recommended():
    found = what_if((FULL, row("quick", 0.05, 0.5, 0.3), row("other", 0.1, 0.7, 0.06)))
    assert found.recommended is FULL
    assert "Train all trials to their end" in found.recommendation
    assert "other comes closest with 70% and a regret of 0.06" in found.recommendation


def test_a_near_miss_is_recommended_where_no_scheduler_keeps_the_best():
    close = row("close", 0.3, 0.4, 0.01)
    found = what_if((FULL, row("quick", 0.05, 0.5, 0.04), close, row("slow", 0.5, 0.4, 0.01)))
    assert found.recommended is close
    assert "keeps the best configuration with a probability of 40%, and has a regret of 0.01" in str(found)


def test_the_text_has_a_line_for_each_scheduler_and_says_what_was_left_out():
    quick = WhatIfRow(
        scheduler="<quick>",
        iterations=Interval(0.04, 0.05, 0.06),
        time=Interval(0.1, 0.1, 0.1),
        hours=Interval(1, 1, 1),
        kept=Interval(0.9, 0.95, 1),
        regret=Interval(0, 0.01, 0.1),
    )
    found = what_if((FULL, quick), censored={"failed": 3, "stopped by the scheduler": 2}, notes=("So.",))
    text = str(found)
    assert "<quick>        5.0% (4.0% to 6.0%)" in text
    assert "3 failed, 2 stopped by the scheduler" in text
    assert text.endswith("So.")
    assert "it takes 5.0% of the iterations and 10.0% of the time" in text
    page = found._repr_html_()
    assert "&lt;quick&gt;" in page
    assert "<quick>" not in page
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("hours", "head", "cell"),
    [(2.5, "hours", "2.5"), (0.25, "minutes", "15"), (3.28e-05, "seconds", "0.118"), (72.0, "days", "3")],
)
def test_the_text_has_durations_in_a_unit_that_people_read(hours, head, cell):
    full = replace(FULL, hours=Interval(hours, hours, hours))
    page = what_if((full, replace(full, scheduler="quick")))._repr_html_()
    heads, cells = (re.findall(f"<{tag}>(.*?)</{tag}>", page) for tag in ("th", "td"))
    first = cells[: len(heads)]
    assert dict(zip(heads, first, strict=True))[head] == cell


def test_the_table_is_flat_for_data_frames(monkeypatch):
    pandas = pytest.importorskip("pandas")
    found = what_if((FULL, row("quick", 0.05, 0.5)))
    frame = found.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["scheduler"]) == ["FIFOScheduler", "quick"]
    assert frame.loc[1, ["iterations", "kept_low", "regret_high"]].tolist() == [0.05, 0.5, 0.0]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        found.to_dataframe()


def test_survivors_of_a_scheduler_are_noted():
    selection = CurveSelection(curves=[], max_t=9, censored={"stopped by the scheduler": 12, "failed": 1})
    (note,) = notes_of(selection)
    assert "stopped 12 trials" in note
    assert notes_of(CurveSelection(curves=[], max_t=9, censored={"failed": 1})) == ()
