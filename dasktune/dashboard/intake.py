"""What each record of the journal means for the chronicle of an experiment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import nan
from typing import TYPE_CHECKING, Any, Final

from dasktune.dashboard.trial_log import Exploit, TrialLog
from dasktune.trial.metrics import flatten, lookup, number

if TYPE_CHECKING:
    from dasktune.dashboard.chronicle import Chronicle

__all__ = ["take"]

Told = Mapping[str, Any]

#: Characters that are kept of a traceback, whose end tells most, and of other texts.
_MOST_TRACEBACK: Final = 10_000
_MOST_TEXT: Final = 500

#: What ASHA says of the trials that it stops; a test holds it to that.
_CUTOFF: Final = re.compile(r" cutoff (\S+) at rung ")

#: How a stay on a worker ends.
_OUTCOMES: Final = {
    "TrialEnded": "ended",
    "TrialStopped": "stopped",
    "TrialPaused": "paused",
    "TrialFailed": "failed",
    "TrialLost": "lost",
}

#: What becomes of a trial at a rung.
_DECISIONS: Final = {
    "ContinueTraining": "went on",
    "SaveTrial": "went on",
    "PauseTrial": "waits",
    "ResizeTrial": "went on",
    "StopTrial": "stopped",
    "FailTrial": "stopped",
    "ExploitTrial": "cloned",
}


def take(chronicle: Chronicle, record: Told) -> None:
    """Let a chronicle take in a record; it costs O(1).

    Parameters
    ----------
    chronicle : Chronicle
        What was told before.
    record : mapping
        As the journal has it.

    Raises
    ------
    Exception
        Nearly any of Python's own, if the record makes no sense.
    """
    event, time = record["event"], float(record["time"])
    heard = chronicle.now
    chronicle.see_time(time)
    log = chronicle.find(record.get("trial_id"))
    at_rung = False
    if event == "ResultReported":
        if log is None:
            return
        at_rung = _take_result(chronicle, log, record, time)
    elif event == "Suggested":
        log = chronicle.add_trial(
            record["trial_id"], record["config"], time, record.get("dirname", "")
        )
    elif event == "TrialAddRequested":
        log = chronicle.add_trial(record["trial_id"], record["config"], time)
        chronicle.total = None if chronicle.total is None else chronicle.total + 1
    elif event in ("HoldRequested", "ReleaseRequested"):
        chronicle.on_hold = event == "HoldRequested"
    elif event == "SessionBegan":
        chronicle.begin_session(heard, time)
    elif event == "CapacityChanged":
        chronicle.see_capacity({"": record["capacity"]}, time)
    elif event == "ClusterChanged":
        chronicle.see_capacity(record["workers"], time)
    elif event == "StopRequested":
        chronicle.stop_reason = _short(record["reason"])
    elif log is not None:
        _take_event(chronicle, log, record, time)
    if log is not None and record.get("resources") is not None:
        log.request = chronicle.request(record["resources"])
    for action in record.get("actions", ()):
        _take_action(chronicle, action, time, log if at_rung else None)
    if log is not None:
        chronicle.set_status(log, record.get("status", log.status))
        chronicle.touch(log)


def _take_result(chronicle: Chronicle, log: TrialLog, record: Told, time: float) -> bool:
    """Take in a result, and return whether the trial's scheduler decides about it."""
    metrics = record["metrics"]
    if not chronicle.metrics:
        chronicle.choose_metric(metrics)
    iteration = int(metrics["training_iteration"])
    chronicle.count_result(log, iteration)
    log.metrics = metrics
    for goal, name in enumerate(chronicle.metrics):
        value = metrics.get(name)
        if type(value) is not float:
            value = _number(metrics, name)
        if log.take_value(goal, value, iteration, time, chronicle.better[goal]):
            chronicle.see_best(log, value, iteration, time, goal)
    if record.get("checkpoint") is not None:
        log.keep_checkpoint(record["checkpoint"])
    if not record.get("awaits") or not log.milestones:
        return False
    before = len(log.rungs)
    log.reach(lambda name: _number(metrics, name), time)
    return len(log.rungs) != before


def _number(metrics: Told, name: str) -> float:
    value = number(lookup(metrics, name))
    return nan if value is None else value


def _take_event(chronicle: Chronicle, log: TrialLog, record: Told, time: float) -> None:
    event = record["event"]
    if event == "TrialStarted":
        chronicle.begin_stay(log, str(record["worker"]), time)
    elif event == "CheckpointCommitted":
        log.keep_checkpoint(record["checkpoint"])
    elif event == "CheckpointLost":
        log.stored.pop(record["path"], None)
    elif event in _OUTCOMES:
        log.end_attempt(_OUTCOMES[event], time)
    if event == "TrialPaused":
        log.pauses += 1
    elif event == "TrialLost":
        log.losses += 1
        log.reason = _short(record["reason"])
    elif event == "TrialFailed":
        log.failures += 1
        log.failed_at = time
        log.error = _short(record["error"]["message"])
        log.traceback = str(record["error"]["traceback"])[-_MOST_TRACEBACK:]


def _take_action(chronicle: Chronicle, action: Told, time: float, judged: TrialLog | None) -> None:
    """Take in what was decided; `judged` is whom it was decided about at a rung, if so."""
    what = action["do"]
    if what == "EndExperiment":
        chronicle.stop_reason = _short(action["reason"])
    log = chronicle.find(action.get("trial_id"))
    handle = _ACTIONS.get(what)
    if log is None or handle is None:
        return
    if action.get("resources") is not None:
        log.request = chronicle.request(action["resources"])
    if action.get("milestones"):
        milestones = [(str(one[0]), float(one[1])) for one in action["milestones"]]
        log.wait_at(milestones)
        chronicle.see_milestones(milestones)
    # A clone is paused, too, to go on from its donor's checkpoint.
    if log is judged and what in _DECISIONS and log.rungs[-1].outcome != "cloned":
        log.rungs[-1].outcome = _DECISIONS[what]
        found = _CUTOFF.search(str(action.get("reason", "")))
        log.rungs[-1].cutoff = float(found[1]) if found else None
    handle(chronicle, log, action, time)
    chronicle.touch(log)


def _begin(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    log.leave_rung("went on")
    log.reason = ""


def _restore(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    _begin(chronicle, log, action, time)
    log.restores += 1
    log.restore_point = int(action["checkpoint"]["iteration"])


def _unpause(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    _begin(chronicle, log, action, time)
    if not log.rests:
        chronicle.set_status(log, "PENDING")


def _rest(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    log.rests = action["do"] != "ResumeTrial"
    log.reason = _short(action.get("reason", ""))


def _go_on(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    """Nothing but what is the same for all actions."""


def _tell_why(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    log.reason = _short(action["reason"])


def _stop(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    _tell_why(chronicle, log, action, time)
    chronicle.cut_early(log)


def _finish(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    _stop(chronicle, log, action, time)
    log.leave_rung("stopped")
    chronicle.set_status(log, "TERMINATED")


def _give_up(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    _tell_why(chronicle, log, action, time)
    chronicle.set_status(log, "ERROR")


def _delete_checkpoint(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    log.stored.pop(action["checkpoint"]["path"], None)


def _reopen(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    chronicle.uncut(log)
    log.reason = log.error = log.traceback = ""
    log.failed_at = nan
    log.rests = False
    if action["fresh"]:
        chronicle.rewind(log, 0)
        log.metrics, log.rungs, log.parent = {}, [], -1
    chronicle.set_status(log, "PENDING")


def _exploit(chronicle: Chronicle, log: TrialLog, action: Told, time: float) -> None:
    donor, checkpoint = chronicle.find(action["donor"]), action["checkpoint"]
    reached = resumed = log.iteration
    log.config = flatten(action["config"])
    log.leave_rung("cloned")
    _tell_why(chronicle, log, action, time)
    if checkpoint is not None:
        resumed = int(checkpoint["iteration"])
        chronicle.rewind(log, resumed)
        log.jump(resumed)
    if donor is None:
        return
    log.parent = log.parent if donor is log else donor.index
    chronicle.exploits.append(
        Exploit(
            clone=log.index,
            donor=donor.index,
            time=time,
            reached=reached,
            resumed=resumed,
            reason=log.reason,
        )
    )


_ACTIONS: Final[dict[str, Callable[[Chronicle, TrialLog, Told, float], None]]] = {
    "StartTrial": _begin,
    "RestoreTrial": _restore,
    "ContinueTraining": _go_on,
    "SaveTrial": _go_on,
    "PauseTrial": _tell_why,
    "ResizeTrial": _tell_why,
    "RecallTrial": _rest,
    "SuspendTrial": _rest,
    "ResumeTrial": _rest,
    "UnpauseTrial": _unpause,
    "StopTrial": _stop,
    "FailTrial": _tell_why,
    "FinishTrial": _finish,
    "GiveUp": _give_up,
    "ReopenTrial": _reopen,
    "DeleteCheckpoint": _delete_checkpoint,
    "ExploitTrial": _exploit,
}


def _short(text: object) -> str:
    return str(text)[:_MOST_TEXT]
