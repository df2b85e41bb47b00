from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from dasktune.callback import Callback, TrialStorage, TrialView, TrialViews, stall
from dasktune.callback.stall import StallWatch
from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo


def test_a_callback_that_holds_up_the_driver_is_logged_meanwhile():
    watch = StallWatch(limit_s=0.001)
    watch.what = "callback Slow in on_trial_result"
    told = threading.Event()

    class Ear(logging.Handler):
        def emit(self, record: Any) -> None:
            told.set()

    ear = Ear()
    logging.getLogger("dasktune").addHandler(ear)
    try:
        with watch:
            # It hangs until somebody has noticed.
            assert told.wait(60)
    finally:
        logging.getLogger("dasktune").removeHandler(ear)
    watch.close()


def test_a_stall_is_logged_once(caplog: Any):
    watch = StallWatch(limit_s=3600.0)
    watch.what = "callback Slow in setup"
    watch.check()
    with watch:
        for _ in range(4):
            watch.check()
    watch.check()
    watch.close()
    (record,) = caplog.records
    assert "callback Slow in setup has taken more than 3600 s" in record.message
    # Where it stands: in the check itself, which this thread runs here.
    assert f"blocks the driver in _place_of ({stall.__file__}, line " in record.message


@pytest.fixture
def trials(tmp_path: Any) -> dict[str, Trial]:
    resources = PlacementGroupFactory([{"CPU": 1}])
    names = ("a_00000", "a_00001")
    return {name: Trial(trial_id=name, config={"lr": 1}, resources=resources, tag="lr=1") for name in names}


def trial_storage(storage: Storage | None) -> TrialStorage:
    return TrialStorage(
        trainable_name="train",
        storage=storage,
        checkpoint=lambda record: Checkpoint(f"memory://{record.path}"),
    )


def test_a_trial_is_seen_by_the_names_of_ray_tune(trials: Any, tmp_path: Any):
    trial = trials["a_00001"]
    views = TrialViews(trials, trial_storage(Storage(str(tmp_path))))
    view = views[1]
    assert (view.trial_id, str(view), view.trainable_name) == ("a_00001", "train_a_00001", "train")
    assert (view.config, view.experiment_tag, view.status) == ({"lr": 1}, "lr=1", "PENDING")
    assert (view.last_result, view.checkpoint, view.error_file) == ({}, None, None)
    assert (view.num_failures, view.error_message, view.start_time) == (0, None, None)
    assert view.placement_group_factory == trial.resources
    assert not view.is_finished()
    trial.status, trial.failures, trial.started_at = TrialStatus.ERROR, 1, 5.0
    trial.history.append({"loss": 1})
    trial.errors.append(ErrorInfo(message="ValueError: bad"))
    path = "trials/a_00001/checkpoint_000000_i01"
    trial.checkpoints.append(CheckpointRecord(path=path, index=0, iteration=1))
    assert (view.status, view.is_finished(), view.last_result) == ("ERROR", True, {"loss": 1})
    assert (view.num_failures, view.error_message) == (1, "ValueError: bad")
    assert view.start_time == 5.0
    assert view.path == view.local_path == str(tmp_path / "trials" / "a_00001")
    assert view.error_file == f"{view.path}/error.txt"
    assert view.checkpoint is not None
    assert view.checkpoint.path.endswith(path)
    assert repr(view) == "TrialView('a_00001', ERROR)"


def test_and_by_its_older_ones(trials: Any, tmp_path: Any):
    trial = trials["a_00001"]
    view = TrialViews(trials, trial_storage(Storage(str(tmp_path))))[1]
    assert view.evaluated_params == {"lr": 1}
    assert view.resources == view.placement_group_factory
    assert view.logdir == view.path
    assert view.relative_logdir == "a_00001"
    assert view.local_dir == view.local_experiment_path == str(tmp_path)
    assert view.experiment_dir_name == tmp_path.name
    assert (view.custom_trial_name, view.custom_dirname) == (None, None)
    assert (view.node_ip, view.has_reported_at_least_once, view.get_error()) == (None, False, None)
    trial.name, trial.dirname = "deep", "net"
    assert (view.custom_trial_name, view.custom_dirname, view.logdir[-4:]) == (
        "deep",
        "net",
        "/net",
    )
    trial.history.append({"hostname": "node", "node_ip": "10.0.0.1", "pid": 1})
    trial.errors.append(ErrorInfo(message="ValueError: bad", traceback="line 1"))
    assert (view.node_ip, view.has_reported_at_least_once) == ("10.0.0.1", True)
    error = view.get_error()
    assert error is not None
    assert (error.trial_id, error.message) == ("a_00001", "ValueError: bad")
    simulated = TrialViews(trials, trial_storage(None))[1]
    assert (simulated.local_dir, simulated.experiment_dir_name) == (None, "")


def test_what_a_callback_does_to_a_view_does_not_reach_the_trial(trials: Any):
    view = TrialViews(trials, trial_storage(None))[0]
    view.config["lr"] = 2
    with pytest.raises(AttributeError):
        view.status = "ERROR"  # type: ignore[misc,assignment]
    assert trials["a_00000"].config == {"lr": 1}


def test_trials_are_a_sequence_and_keys(trials: Any):
    views = TrialViews(trials, trial_storage(None))
    assert [view.trial_id for view in views] == ["a_00000", "a_00001"]
    assert [view.trial_id for view in views[1:]] == ["a_00001"]
    assert views[-1] == views.named("a_00001")
    assert views[0] != views[1]
    assert {views[0]: 1}[views[0]] == 1
    assert views[0] in views
    with pytest.raises(IndexError):
        views[2]


def test_a_simulated_trial_has_no_directory(trials: Any):
    with pytest.raises(StorageError, match="simulated"):
        _ = TrialView(trials["a_00000"], trial_storage(None)).path


def test_a_callback_that_overrides_nothing_can_get_everything(trials: Any):
    nothing = Callback()
    nothing.setup(stop=None, num_samples=1, total_num_samples=1)
    for name in [name for name in vars(Callback) if name.startswith("on_")]:
        told = {"trials": [], "iteration": 1, "trial": None, "result": {}, "checkpoint": None}
        getattr(nothing, name)(**told)
    assert nothing.get_state() is None
    nothing.set_state({})
