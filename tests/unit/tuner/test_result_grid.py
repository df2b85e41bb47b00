from __future__ import annotations

import json
import pickle
import sys
from math import inf, nan

import pytest

from dasktune.errors import ConfigError, TrialError, TuneError
from dasktune.results.result import Result
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.retention import Retention
from dasktune.trial.rows.trial_history import History, StoredRows
from dasktune.trial.status import PublicStatus, TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo
from dasktune.tuner.result_grid import NoResultError, ResultGrid


def record(index, **metrics):
    return CheckpointRecord(path=f"c{index}", index=index, iteration=index, metrics=metrics)


def load(record):
    return f"opened {record.path}"


def trial(trial_id, *losses, status=TrialStatus.TERMINATED, config=None, **changes):
    return Trial(
        trial_id=trial_id,
        config={"lr": 0.1} if config is None else config,
        resources=PlacementGroupFactory([{"CPU": 1}]),
        status=status,
        history=History(
            {"loss": loss, "training_iteration": i, "pid": 7, "config/lr": 0.1}
            for i, loss in enumerate(losses, start=1)
        ),
        **changes,
    )


def grid(*trials, metric="loss", mode="min", retention=None):
    return ResultGrid.from_trials(trials, "s3://bucket/exp/", metric, mode, load, retention)


def failed(trial_id, *losses, **changes):
    return trial(trial_id, *losses, status=TrialStatus.ERROR, **changes)


# One trial


def test_a_result_tells_what_the_trial_did():
    result = grid(trial("a", 0.5, 0.2, reason="stopped by asha"))[0]
    assert result.trial_id == "a"
    assert result.config == {"lr": 0.1}
    assert result.metrics["loss"] == 0.2
    assert [row["loss"] for row in result.history] == [0.5, 0.2]
    assert result.status is PublicStatus.TERMINATED
    assert result.path == "s3://bucket/exp/trials/a"
    assert result.reason == "stopped by asha"
    assert result.error is None
    assert result.checkpoint is None
    assert result.best_checkpoints == []


def test_metrics_have_the_configuration_and_the_names_of_the_trial():
    one = trial("a", 0.5, config={"lr": 0.1, "net": {"depth": 3}}, tag="0_lr=0.1")
    one.history = History([{"loss": 0.5, "eval/acc": 0.9}])
    metrics = grid(one)[0].metrics
    assert metrics["config"] == {"lr": 0.1, "net": {"depth": 3}}
    assert (metrics["trial_id"], metrics["experiment_tag"]) == ("a", "0_lr=0.1")
    assert metrics["eval"] == {"acc": 0.9}
    # They are derived: the rows of the trial do not have them.
    assert one.history[-1] == {"loss": 0.5, "eval/acc": 0.9}
    assert set(metrics) == {"loss", "eval/acc", "config", "trial_id", "experiment_tag"}


def test_metrics_that_a_trial_has_reported_itself_stay():
    one = trial("a", 0.5, config={"lr": 0.1}, tag="0_lr=0.1")
    one.history = History([{"config/lr": 7, "trial_id": "mine", "experiment_tag": "own"}])
    metrics = grid(one)[0].metrics
    assert metrics == {"config/lr": 7, "trial_id": "mine", "experiment_tag": "own"}
    assert metrics["config"] == {"lr": 7}


def test_a_trial_that_never_reported_has_no_metrics():
    assert grid(trial("a"))[0].metrics == {}


def test_the_error_carries_the_traceback():
    info = ErrorInfo(message="ValueError: no", traceback="Traceback ...")
    error = grid(failed("a", errors=[info], reason=info.message))[0].error
    assert isinstance(error, TrialError)
    assert (error.trial_id, error.message, error.traceback) == ("a", info.message, info.traceback)


def test_a_trial_failed_by_lost_workers_does_not_blame_an_old_failure():
    info = ErrorInfo(message="ValueError: long retried", traceback="Traceback ...")
    error = grid(failed("a", errors=[info], reason="lost its worker 4 times"))[0].error
    assert (error.message, error.traceback) == ("lost its worker 4 times", "")


def test_a_failure_that_was_overcome_is_no_error():
    results = grid(trial("a", 1.0, errors=[ErrorInfo(message="ValueError: once")]))
    assert results[0].error is None
    assert results.errors == []


def test_a_checkpoint_is_opened_once_and_only_if_asked_for():
    opened = []

    def load_and_count(record):
        opened.append(record.path)
        return record.path

    source = trial("a", checkpoints=[record(0), record(1)])
    result = ResultGrid.from_trials([source], "exp", None, None, load_and_count)[0]
    assert opened == []
    assert (result.checkpoint, result.checkpoint) == ("c1", "c1")
    assert opened == ["c1"]


def test_the_best_checkpoints_come_worst_first_as_they_were_kept():
    source = trial("a", checkpoints=[record(0, acc=0.5), record(1, acc=0.9), record(2, acc=0.7)])
    keep = Retention(num_to_keep=2, score_attribute="acc")
    result = grid(source, retention=keep)[0]
    assert result.best_checkpoints == [("opened c2", {"acc": 0.7}), ("opened c1", {"acc": 0.9})]
    assert [name for name, _ in grid(source)[0].best_checkpoints] == [
        "opened c0",
        "opened c1",
        "opened c2",
    ]


def test_the_best_checkpoint_can_be_asked_for_by_any_metric():
    source = trial("a", checkpoints=[record(0, loss=0.5), record(1, loss=0.1), record(2, loss=nan)])
    result = grid(source)[0]
    assert result.get_best_checkpoint("loss", "min") == "opened c1"
    assert result.get_best_checkpoint("loss", "max") == "opened c0"
    assert result.get_best_checkpoint("acc", "max") is None
    assert grid(trial("a"))[0].get_best_checkpoint("loss", "min") is None
    with pytest.raises(ConfigError, match="mode must be"):
        result.get_best_checkpoint("loss", "low")


def test_the_repr_hides_what_was_filled_in():
    result = grid(trial("a", 0.5, checkpoints=[record(0)]))[0]
    assert repr(result) == (
        "Result(trial_id='a', status=TERMINATED, metrics={'loss': 0.5}, "
        "path='s3://bucket/exp/trials/a', checkpoint='c0')"
    )
    assert "error='ValueError: no'" in repr(grid(failed("b", reason="ValueError: no"))[0])
    assert "reason=" not in repr(grid(failed("b", reason="ValueError: no"))[0])


def test_the_repr_says_why_a_trial_was_stopped():
    result = grid(trial("a", 0.5, reason="loss 0.5 above cutoff 0.2"))[0]
    assert "status=TERMINATED, reason='loss 0.5 above cutoff 0.2', metrics=" in repr(result)


def test_a_trial_that_is_paused_says_why_only_as_long_as_it_is():
    paused = trial("a", 0.5, status=TrialStatus.PAUSED, pause_reason="waits at rung 3")
    assert grid(paused)[0].reason == "waits at rung 3"
    paused.status = TrialStatus.TERMINATED
    assert grid(paused)[0].reason == ""


def test_results_can_be_pickled():
    results = grid(trial("a", 0.5, checkpoints=[record(0)]), failed("b", reason="no"))
    copy = pickle.loads(pickle.dumps(results))
    assert copy.get_best_result().checkpoint == "opened c0"
    assert copy.errors[0].message == "no"


# All of them


def test_a_grid_is_a_sequence_in_the_order_of_the_trials():
    results = grid(trial("b", 1.0), trial("a", 2.0))
    assert len(results) == 2
    assert [result.trial_id for result in results] == ["b", "a"]
    assert results[-1].trial_id == "a"
    assert [result.trial_id for result in results[:1]] == ["b"]
    assert results.experiment_path == "s3://bucket/exp/"


def test_results_say_which_filesystem_they_lie_in(tmp_path):
    path, load_none = str(tmp_path / "exp"), print
    storage = Storage(path)
    storage.create("a.txt", b"1")
    results = ResultGrid.from_trials([trial("a")], path, "loss", "min", load_none, storage=storage)
    assert results.filesystem.cat(f"{results.experiment_path}/a.txt") == b"1"
    assert results[0].filesystem is results.filesystem
    simulated = grid(trial("a"))
    assert (simulated.filesystem, simulated[0].filesystem) == (None, None)


def test_a_grid_counts_how_the_trials_ended():
    results = grid(trial("a", 1.0), failed("b", reason="no"), trial("c", status=TrialStatus.RUNNING))
    assert (results.num_terminated, results.num_errors) == (1, 1)
    assert [error.trial_id for error in results.errors] == ["b"]


@pytest.mark.parametrize(
    ("arguments", "best"),
    [
        ({}, "steady"),
        ({"mode": "max"}, "late"),
        ({"scope": "all"}, "early"),
        ({"scope": "avg"}, "steady"),
        ({"scope": "avg", "mode": "max"}, "late"),
        ({"metric": "training_iteration", "mode": "max"}, "early"),
    ],
)
def test_the_best_result_is_as_asked_for(arguments, best):
    results = grid(trial("early", 0.1, 0.9, 0.9), trial("steady", 0.4, 0.4), trial("late", 1.0, 1.0))
    assert results.get_best_result(**arguments).trial_id == best


def test_of_equal_trials_the_first_is_best():
    assert grid(trial("a", 1.0), trial("b", 1.0)).get_best_result(mode="max").trial_id == "a"


def test_nan_and_inf_are_never_best_unless_they_may():
    results = grid(trial("nan", nan), trial("inf", -inf), trial("fine", 3.0))
    assert results.get_best_result().trial_id == "fine"
    assert results.get_best_result(filter_nan_and_inf=False).trial_id == "inf"


def test_a_single_trial_is_best_without_a_metric():
    assert grid(trial("a"), metric=None, mode=None).get_best_result().trial_id == "a"


@pytest.mark.parametrize(("metric", "mode", "missing"), [(None, None, "metric"), ("loss", None, "mode")])
def test_among_several_it_must_be_said_what_is_best(metric, mode, missing):
    results = grid(trial("a", 1.0), trial("b", 2.0), metric=metric, mode=mode)
    with pytest.raises(ConfigError, match=rf"{missing} must be .*got None\. Give it to"):
        results.get_best_result()


@pytest.mark.parametrize(
    ("results", "why"),
    [
        (grid(), "the experiment has no trials"),
        (grid(trial("a", nan), trial("b", inf)), "no trial has a usable number for 'loss'"),
        (grid(trial("a"), trial("b")), r"reported: nothing. Call tune.report\({'loss': ...}\)"),
        (
            grid(failed("a", reason="KeyError: 'lr'"), trial("b")),
            r"none of the 2 trials reported 'loss'. 1 failed, the first one \(a\) with KeyError: 'lr'",
        ),
        (
            grid(failed("a", reason="KeyError: 'lr'"), failed("b"), metric=None, mode=None),
            r"^all 2 trials failed, the first one \(a\) with KeyError: 'lr'",
        ),
        (
            grid(failed("a", 1.0, reason="KeyError: 'lr'"), trial("b"), metric="lss"),
            r"did you mean 'loss'\?. 1 failed, the first one \(a\) with KeyError: 'lr'",
        ),
        (
            grid(failed("a", nan, reason="ValueError: low"), failed("b"), mode="min"),
            r"ignores NaN and infinity\). All 2 trials failed, the first one \(a\) with ValueError: low",
        ),
        (grid(trial("a", 1.0), trial("b"), metric="lss"), "reported: loss; did you mean 'loss'"),
    ],
)
def test_that_there_is_no_best_is_explained(results, why):
    with pytest.raises(NoResultError, match=why) as raised:
        results.get_best_result()
    assert isinstance(raised.value, RuntimeError)
    assert isinstance(raised.value, TuneError)


def test_the_cause_of_failures_names_the_files_with_tracebacks():
    info = ErrorInfo(message="ValueError: no", traceback="Traceback ...")
    first = failed("a", errors=[info], reason=info.message)
    for others in ([failed("b", reason="KeyError: 'lr'")], [failed("b"), failed("c")]):
        with pytest.raises(NoResultError) as raised:
            grid(first, *others).get_best_result()
        assert str(raised.value) == (
            f"none of the {1 + len(others)} trials reported 'loss'. All {1 + len(others)} trials failed, the "
            "first one (a) with ValueError: no. Its traceback is in s3://bucket/exp/trials/a/error.txt. "
            "All failures: dasktune errors s3://bucket/exp"
        )


# Tables


def test_the_dataframe_has_a_row_for_each_trial():
    config = {"lr": 0.1, "net": {"depth": 3}}
    table = grid(trial("a", 0.5, 0.2, config=config), trial("b", config=config)).get_dataframe()
    assert list(table["trial_id"]) == ["a", "b"]
    assert table["loss"][0] == 0.2
    assert table["loss"].isna()[1]
    assert list(table["config/net/depth"]) == [3, 3]
    assert list(table.columns).count("config/lr") == 1
    assert [path.rpartition("/")[2] for path in table["logdir"]] == ["a", "b"]


def test_the_dataframe_takes_the_best_row_if_asked_for():
    results = grid(trial("a", 0.5, 0.1, 0.9), mode=None)
    assert list(results.get_dataframe("loss", "min")["training_iteration"]) == [2]
    assert list(results.get_dataframe("loss", "max")["training_iteration"]) == [3]
    with pytest.raises(ConfigError, match="filter_mode must be"):
        results.get_dataframe("loss")
    with pytest.raises(ConfigError, match="filter_metric must be given with filter_mode"):
        results.get_dataframe(filter_mode="min")


def test_the_metrics_dataframe_is_the_history():
    [result] = grid(trial("a", 0.5, 0.2, config={"net": {"lr": 0.1}}))
    table = result.metrics_dataframe
    assert list(table["config/net/lr"]) == [0.1, 0.1]
    assert list(table["loss"]) == [0.5, 0.2]


def test_without_pandas_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        _ = grid(trial("a", 0.5))[0].metrics_dataframe


def test_the_repr_shows_the_best_trials_in_a_table():
    results = grid(trial("a", 0.5), trial("b", 0.25), failed("c", reason="no"))
    assert repr(results).splitlines() == [
        "ResultGrid of 3 trials: 2 TERMINATED, 1 ERROR, in s3://bucket/exp/",
        "  trial_id  status      training_iteration  loss  config",
        "  b         TERMINATED  1                   0.25  lr=0.1",
        "  a         TERMINATED  1                   0.5   lr=0.1",
    ]


def test_a_restored_grid_reads_the_journal_for_the_best_result_only_if_the_scope_needs_older_ones():
    reads = []

    def stored(loss):
        def read():
            reads.append(loss)
            return History([{"loss": 0.0, "training_iteration": 1}])

        last = {"loss": loss, "training_iteration": 2}
        return History([last], stored=StoredRows(1, read))

    one, other = trial("a"), trial("b")
    one.history, other.history = stored(0.5), stored(0.25)
    results = grid(one, other)
    assert results.get_best_result().trial_id == "b"
    assert "0.25" in repr(results)
    assert "0.25" in results._repr_html_()
    assert reads == []
    assert results.get_best_result(scope="avg").trial_id == "b"
    assert reads == [0.5, 0.25]
    history = results[0].history
    assert json.loads(json.dumps(list(history))) == history


@pytest.mark.parametrize("count", [0, 1, 127, 128, 500])
def test_the_history_of_a_result_has_one_type_however_many_results_there_are(count: int):
    rows = [{"loss": 1 / step, "training_iteration": step} for step in range(1, count + 1)]
    ran, restored = trial("a"), trial("b")
    ran.history = History(rows)
    restored.history = History(rows[-1:], stored=StoredRows(max(count - 1, 0), lambda: History(rows)))
    given = Result(
        trial_id="c", config={}, history=rows, status=PublicStatus.RUNNING, path="", load_checkpoint=print
    )
    for result in (*grid(ran, restored), given, pickle.loads(pickle.dumps(given))):
        assert type(result.history) is History
        assert result.history == rows
        assert len(result.metrics_dataframe) == count


def test_the_repr_of_many_trials_is_short():
    results = grid(*(trial(f"t{i}", float(i), config={"x": "y" * 999}) for i in range(100)))
    lines = repr(results).splitlines()
    assert len(lines) == 7
    assert max(map(len, lines)) < 140


def test_an_unranked_grid_shows_its_first_trials():
    text = repr(grid(trial("a", 0.5), trial("b"), metric=None, mode=None))
    assert "a         TERMINATED  1" in text
    assert "b         TERMINATED" in text


def test_an_empty_grid_shows_no_table():
    assert repr(grid()) == "ResultGrid of 0 trials, in s3://bucket/exp/"
    assert grid()._repr_html_() == "<div><p>ResultGrid of 0 trials, in s3://bucket/exp/</p></div>"


def test_html_lets_nothing_through():
    evil = "<script>alert(1)</script>"
    source = trial(evil, config={evil: evil}, errors=[])
    source.history.append({evil: 1.0})
    page = ResultGrid.from_trials([source], evil, evil, "min", load)._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<tr>") == 2


def test_a_config_that_cannot_be_shown_is_shown_somehow():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert "x=<Broken instance at" in repr(grid(trial("a", 0.5, config={"x": Broken()})))


def test_a_result_can_be_made_by_hand():
    result = Result(
        trial_id="a",
        config={},
        history=[],
        status=PublicStatus.PENDING,
        path="",
        load_checkpoint=load,
    )
    assert ResultGrid([result], "exp").get_best_result() is result
