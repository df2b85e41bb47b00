"""Trials in real child processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import process_run_kit
import psutil
import pytest
from process_run_kit import PATIENCE, Slot

import dasktune as tune
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.data.shared_objects import dump, dumps_without
from dasktune.trainable.reporting.trial_messages import (
    Committed,
    Ended,
    Failed,
    PauseAnswer,
    Paused,
    Started,
    StopAnswer,
    Stopped,
)
from dasktune.trial.milestone import EVERY_RESULT
from dasktune.trial.resources import PlacementGroupFactory


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    """A slot whose child is warm, mostly."""
    slot = Slot(tmp_path_factory.mktemp("runs"))
    yield slot
    slot.warm.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; an orphan may remain a zombie that no process reaps."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def tell_pid(config: dict[str, Any]) -> None:
    tune.report({"pid": os.getpid()})


def pid_after(slot: Slot, **options: Any) -> int:
    """Run a trial, and return the process that it was in."""
    [pid] = slot.run(tell_pid, **options).values("pid")
    return int(pid)


def hold_interpreter(config: dict[str, Any]) -> None:
    """Hold the lock of the interpreter for good, and create the file `held` while doing so."""
    tune.report({"pid": os.getpid()})
    # A call by PyDLL keeps the lock of the interpreter: nothing else runs in the process. An
    # interrupt that comes between the report and this call would end the trial like any other, so
    # the call itself says that it has begun.
    ctypes.PyDLL(None).system(f"touch '{config['held']}'; exec sleep 1000".encode())


# Results.


def train(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(start + 1, start + 4):
        tune.report({"step": step, "pid": os.getpid()}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def test_a_trial_reports_and_saves_from_a_process_of_its_own(slot: Slot) -> None:
    trial = slot.run(train)
    assert isinstance(trial.messages[0], Started)
    assert isinstance(trial.messages[-1], Ended)
    assert trial.values("step") == trial.values("training_iteration") == [1, 2, 3]
    assert os.getpid() not in trial.values("pid")
    again = slot.run(train, checkpoint=trial.results[-1].checkpoint, next_checkpoint=3)
    assert again.values("step") == [4, 5, 6]
    assert again.values("pid") == trial.values("pid")


class Counter(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"count": self.count, "done": self.count % 3 == 0}

    def save_checkpoint(self, directory: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = checkpoint["count"]


def test_the_class_api_saves_and_restores_across_processes(tmp_path: Path) -> None:
    slot = Slot(tmp_path, Counter)
    first = slot.run(checkpoint_frequency=3)
    slot.warm.close()
    slot.warm = process_run_kit.WarmProcess()
    second = slot.run(checkpoint=first.results[-1].checkpoint, next_checkpoint=1)
    slot.warm.close()
    assert first.values("count") == [1, 2, 3]
    assert second.values("count") == [4, 5, 6]


def test_a_process_leaves_its_checkpoint_in_the_memory_of_its_worker(tmp_path: Path) -> None:
    slot, kept = Slot(tmp_path, Counter), dict[str, bytes]()
    first = slot.start(keep=kept.__setitem__, milestones=EVERY_RESULT)
    first.result("count")
    first.run.answer(PauseAnswer(in_memory=10_000))
    assert isinstance(first.end(), Paused)
    [told] = [message for message in first.messages if isinstance(message, Committed)]
    second = slot.run(checkpoint=told.checkpoint, packed=kept[told.checkpoint.path], next_checkpoint=1)
    slot.warm.close()
    assert second.values("count") == [2, 3]


class Kept(tune.Trainable):
    """Counts its trials, and notes when it is cleaned up."""

    trials = 0

    def step(self) -> dict[str, Any]:
        return {"trials": self.trials, "done": True}

    def reset_config(self, config: dict[str, Any]) -> bool:
        self.trials += 1
        return True

    def cleanup(self) -> None:
        Path(self.config["place"], "cleaned").touch()


def test_a_trainable_that_can_be_reset_is_kept_in_its_process(tmp_path: Path) -> None:
    slot, config = Slot(tmp_path, Kept), {"place": str(tmp_path)}

    def trials() -> list[int]:
        return slot.run(None, config, reuse=True).values("trials")

    assert [trials(), trials(), trials()] == [[0], [1], [2]]
    assert not (tmp_path / "cleaned").exists()
    # Its resources are wanted elsewhere.
    slot.warm.release_idle()
    for child in slot.warm.exiting:
        assert child.join(PATIENCE)
    assert (tmp_path / "cleaned").exists()
    assert not slot.warm.exiting
    assert trials() == [0]
    slot.warm.close()


def test_a_milestone_waits_for_the_answer(slot: Slot) -> None:
    trial = slot.start(train, milestones=EVERY_RESULT)
    for step in (1, 2):
        assert trial.result_number(step).awaits
        trial.answer(step)
    assert trial.result_number(3).awaits
    trial.run.answer(PauseAnswer())
    assert isinstance(trial.end(), Paused)


def test_an_order_that_is_older_than_the_process_is_obeyed(slot: Slot) -> None:
    # It waits at its first result, however late the order comes there.
    trial = slot.start(train, milestones=EVERY_RESULT)
    trial.run.stop("early")
    assert isinstance(trial.end(), Stopped)
    assert trial.values("step") == [1]


def test_a_trial_that_reports_too_fast_waits_for_acknowledgements(slot: Slot) -> None:
    def chatter(config: dict[str, Any]) -> None:
        for step in range(5000):
            tune.report({"step": step})

    trial = slot.start(chatter)
    until(lambda: len(trial.run.collect(0, 0)) >= 4096)
    assert len(trial.run.collect(0, 0)) == 4096
    assert not trial.run.finished
    assert isinstance(trial.end(), Ended)
    assert trial.values("step") == list(range(5000))


def test_a_result_of_a_forked_process_does_not_mix_with_the_others(slot: Slot) -> None:
    def fork(config: dict[str, Any]) -> None:
        fork = multiprocessing.get_context("fork")
        other = fork.Process(target=tune.report, args=({"step": 0},))
        other.start()
        other.join()
        tune.report({"step": 1})

    trial = slot.run(fork)
    assert isinstance(trial.messages[-1], Ended)
    assert trial.values("step") == [1]


# Failures.


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this")


def test_an_exception_comes_with_its_own_traceback(slot: Slot) -> None:
    def fail(config: dict[str, Any]) -> None:
        raise Unpicklable("so it is")

    failed = slot.run(fail).messages[-1]
    assert isinstance(failed, Failed)
    assert failed.error.message == "Unpicklable: so it is"
    assert 'raise Unpicklable("so it is")' in failed.error.traceback
    assert isinstance(slot.run(train).messages[-1], Ended)


def test_a_result_that_cannot_be_pickled_fails_its_trial(slot: Slot) -> None:
    failed = slot.run(lambda config: tune.report({"lock": threading.Lock()})).messages[-1]
    assert isinstance(failed, Failed)
    assert "lock" in failed.error.message


def missing_module() -> Any:
    raise ModuleNotFoundError("No module named 'only_here'")


class Opened:
    def __reduce__(self) -> Any:
        return missing_module, ()


def test_code_that_cannot_be_opened_fails_each_trial_that_needs_it(tmp_path: Path) -> None:
    slot = Slot(tmp_path, Opened())
    for _ in range(2):
        failed = slot.run().messages[-1]
        assert isinstance(failed, Failed)
        assert "No module named 'only_here'" in failed.error.message
    slot.warm.close()


def segfault(config: dict[str, Any]) -> None:
    tune.report({"pid": os.getpid()})
    ctypes.string_at(0)


def leave(config: dict[str, Any]) -> None:
    tune.report({"pid": os.getpid()})
    os._exit(3)


def be_killed(config: dict[str, Any]) -> None:
    tune.report({"pid": os.getpid()})
    os.kill(os.getpid(), signal.SIGKILL)


def leave_in_a_thread(config: dict[str, Any]) -> None:
    tune.report({"pid": os.getpid()})
    threading.Thread(target=os._exit, args=(0,)).start()
    threading.Event().wait()


DEATHS = {
    segfault: "the trial's process died of signal 11 (SIGSEGV)",
    leave: "the trial's process exited with code 3 in the middle of the trial",
    leave_in_a_thread: "the trial's process exited with code 0 in the middle of the trial",
    be_killed: "the trial's process died of signal 9 (SIGKILL): was the memory of its machine or "
    "container used up?",
}


@pytest.mark.parametrize("deed", DEATHS, ids=lambda deed: deed.__name__)
def test_the_death_of_its_process_costs_a_trial_and_nothing_that_it_reported(slot: Slot, deed: Any) -> None:
    trial = slot.run(deed)
    failed = trial.messages[-1]
    assert isinstance(failed, Failed)
    assert failed.error.message == DEATHS[deed]
    [dead] = trial.values("pid")
    until(lambda: is_gone(dead))
    assert pid_after(slot) != dead


def test_a_crash_shows_where_it_happened(slot: Slot) -> None:
    failed = slot.run(segfault).messages[-1]
    assert isinstance(failed, Failed)
    assert "Segmentation fault" in failed.error.traceback
    assert "in segfault" in failed.error.traceback


def test_a_process_that_died_between_two_trials_costs_nothing(slot: Slot) -> None:
    pid = pid_after(slot)
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid))
    assert pid_after(slot) != pid


def test_a_process_that_cannot_be_started_fails_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    failed = Slot(tmp_path).run(train).messages[-1]
    assert isinstance(failed, Failed)
    assert "no-python" in failed.error.message


# Ends by order.


@pytest.mark.parametrize(("order", "end"), [(StopAnswer(), Stopped), (PauseAnswer(), Paused)])
def test_code_that_never_listens_is_killed_and_ends_as_ordered(
    slot: Slot, tmp_path: Path, order: Any, end: type
) -> None:
    held = tmp_path / "held"
    trial = slot.start(hold_interpreter, {"held": held}, chance=0.05)
    pid = trial.result("pid")
    until(held.exists)
    trial.run.answer(order)
    trial.run.interrupt()
    trial.run.interrupt()
    assert isinstance(trial.end(), end)
    until(lambda: is_gone(pid))


def test_an_interrupt_without_an_order_stops(slot: Slot, tmp_path: Path) -> None:
    held = tmp_path / "held"
    trial = slot.start(hold_interpreter, {"held": held}, chance=0.0)
    until(held.exists)
    trial.run.interrupt()
    assert isinstance(trial.end(), Stopped)


@pytest.mark.parametrize(("order", "end"), [(None, Stopped), (PauseAnswer(), Paused)])
def test_code_that_listens_may_clean_up_and_keeps_its_process(
    slot: Slot, tmp_path: Path, order: Any, end: type
) -> None:
    def listen(config: dict[str, Any]) -> None:
        try:
            # Inside: the interrupt may come as soon as this has been heard of.
            tune.report({"pid": os.getpid()})
            while True:
                time.sleep(0.001)
        finally:
            (tmp_path / "cleaned").touch()

    trial = slot.start(listen, chance=PATIENCE)
    trial.result("pid")
    trial.run.interrupt(order)
    assert isinstance(trial.end(), end)
    assert (tmp_path / "cleaned").exists()
    assert pid_after(slot) == trial.values("pid")[0]


def test_what_a_killed_trial_has_started_dies_with_it(slot: Slot) -> None:
    def start(config: dict[str, Any]) -> None:
        # It holds the child's end of the link open, as what was forked would.
        other = subprocess.Popen(["sleep", "1000"], close_fds=False)
        tune.report({"other": other.pid})
        os.kill(os.getpid(), signal.SIGKILL)

    trial = slot.run(start)
    [other] = trial.values("other")
    until(lambda: is_gone(other))


def test_a_trial_that_is_killed_before_its_code_began_never_begins(tmp_path: Path) -> None:
    slot, opened, bell = Slot(tmp_path), threading.Event(), threading.Semaphore(0)

    def opener() -> ChildPayload:
        assert opened.wait(PATIENCE)
        return ChildPayload(code=b"", config=b"")

    run = process_run_kit.ProcessRun(
        process_run_kit.make_spec(tmp_path),
        opener,
        slot.warm,
        lambda urgency: bell.release(),
        kill_delay=0.0,
    )
    run.start()
    before = set(threading.enumerate())
    run.interrupt()
    # The kill comes from a timer.
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert run.is_alive
    opened.set()
    trial = process_run_kit.Trial(run, bell)
    assert isinstance(trial.end(), Stopped)


# Checkpoints are committed by leave of the worker.


def test_a_checkpoint_needs_the_consent_of_the_worker(slot: Slot) -> None:
    asked: list[int] = []
    trial = slot.run(train, fence=lambda: asked.append(os.getpid()))
    assert asked == [os.getpid()] * 6  # before and after each of the three is written
    assert all(result.checkpoint for result in trial.results)


def test_a_checkpoint_that_is_refused_does_not_exist(slot: Slot) -> None:
    started = threading.Event()

    def fence() -> None:
        assert started.wait(60)
        trial.run.answer(StopAnswer())
        raise TrialInterrupted("the driver is silent")

    trial = slot.start(train, fence=fence)
    started.set()
    assert isinstance(trial.end(), Stopped)
    assert not trial.results
    assert not list(slot.place.glob(f"trials/{trial.run.spec.trial_id}/*"))


# One process for one trial after the other.


def change_directory(config: dict[str, Any]) -> None:
    os.chdir("/")


def change_environment(config: dict[str, Any]) -> None:
    os.environ["HOME"] = "/nowhere"


def leave_a_thread(config: dict[str, Any]) -> None:
    threading.Thread(target=threading.Event().wait, name="left").start()


def leave_a_process(config: dict[str, Any]) -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()


@pytest.mark.parametrize("deed", [change_directory, change_environment, leave_a_thread, leave_a_process])
def test_a_process_that_a_trial_has_changed_is_replaced(slot: Slot, deed: Any) -> None:
    pid = pid_after(slot)
    assert isinstance(slot.run(deed).messages[-1], Ended)
    # Before its end was told.
    assert is_gone(pid)
    assert pid_after(slot) != pid


class Fails(tune.Trainable):
    """Fails in the method that its configuration names."""

    def setup(self, config: dict[str, Any]) -> None:
        self.call("setup")

    def call(self, method: str) -> None:
        if self.config["fails"] == method:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def step(self) -> dict[str, Any]:
        self.call("step")
        return {"pid": os.getpid(), "done": True}

    def cleanup(self) -> None:
        self.call("cleanup")


def test_a_trial_that_fails_leaves_no_process_to_the_next_one(tmp_path: Path) -> None:
    slot, pids = Slot(tmp_path, Fails), list[int]()
    for method in ("setup", "step", "cleanup"):
        # The other trial of each pair does not fail.
        pids += slot.run(None, {"fails": ""}).values("pid")
        failed = slot.run(None, {"fails": method}).messages[-1]
        assert isinstance(failed, Failed)
        assert is_gone(pids[-1])
    slot.warm.close()
    assert len(set(pids)) == 3


def test_a_trial_sees_its_share_of_the_machine_before_anything_is_imported(slot: Slot) -> None:
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES"]

    def look(config: dict[str, Any]) -> None:
        tune.report({"seen": [os.environ.get(name) for name in names], "pid": os.getpid()})

    resources = PlacementGroupFactory([{"CPU": 3.5, "GPU": 2}])
    trial = slot.run(look, resources=resources, devices=("4", "GPU-7f"))
    assert trial.values("seen") == [["3", "3", "3", "4,GPU-7f"]]
    [pid] = trial.values("pid")
    assert pid_after(slot, resources=resources, devices=("4", "GPU-7f")) == pid
    assert pid_after(slot, resources=resources, devices=("5", "GPU-7f")) != pid


def test_the_process_has_the_path_and_the_directory_of_its_worker(
    slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_on_the_path.py").write_text("HERE = True")
    (tmp_path / "pickle.py").write_text("raise ImportError('shadows the standard library')")
    monkeypatch.syspath_prepend(tmp_path / "nowhere")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)

    def look(config: dict[str, Any]) -> None:
        import only_on_the_path

        tune.report({"here": only_on_the_path.HERE, "directory": os.getcwd()})

    fresh = Slot(slot.place)
    trial = fresh.run(look)
    fresh.warm.close()
    assert trial.values("here") == [True]
    assert trial.values("directory") == [str(tmp_path)]


def test_large_objects_are_mapped_from_the_worker_s_files(tmp_path: Path) -> None:
    def look(config: dict[str, Any], data: Any) -> None:
        tune.report({"sum": int(data.sum()), "writeable": bool(data.flags.writeable)})

    data = np.arange(1000)
    dump(data, tmp_path / "data")
    trainable = tune.with_parameters(look, data=data)
    fresh = Slot(tmp_path)
    trial = fresh.run(
        payload={
            "code": dumps_without({"trainable": trainable}, {"data": data}),
            "shared": {"data": str(tmp_path / "data")},
        }
    )
    fresh.warm.close()
    assert trial.values("sum") == [499500]
    assert trial.values("writeable") == [False]


def test_user_code_gets_the_client_that_its_worker_sent(slot: Slot) -> None:
    def look(config: dict[str, Any]) -> None:
        tune.report({"client": tune.get_client()})

    class Source:
        def get(self) -> str:
            return "the client"

    trial = slot.run(look, payload={"client": cloudpickle.dumps(Source())})
    assert trial.values("client") == ["the client"]
    assert isinstance(slot.run(look).end(), Failed)


def test_a_slot_that_is_closed_keeps_no_process(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    pid = pid_after(slot)
    slot.warm.close()
    until(lambda: is_gone(pid))
    # A trial that was on its way all the same leaves none behind either.
    assert is_gone(pid_after(slot))


#: Runs an endless trial, and says where.
WORKER = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(process_run_kit.__file__).parent)!r}]
import test_process_run
place = Path(sys.argv[1])
held = place / "held"
trial = test_process_run.Slot(place).start(test_process_run.hold_interpreter, {{"held": held}})
pid = trial.result("pid")
test_process_run.until(held.exists)
print(pid, flush=True)
trial.end()
"""


def test_the_death_of_the_worker_takes_the_process_along(tmp_path: Path) -> None:
    script = [sys.executable, "-c", WORKER, str(tmp_path)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert not is_gone(pid)
        worker.kill()
    until(lambda: is_gone(pid))
