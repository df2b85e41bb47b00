"""``dasktune show``: an overview of one experiment, or of one of its trials."""

from __future__ import annotations

import argparse
import shlex
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from dasktune.cli.arguments import add_experiment, add_format, add_storage_options, storage_of
from dasktune.cli.experiment_overview import Overview, find_trial, read_experiment
from dasktune.cli.output import terminal_width, write, write_json
from dasktune.config import RunConfig, TuneConfig
from dasktune.dashboard.model.rank_places import RANK_COLUMNS
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import StorageError, without_passwords
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.text.formatting import (
    format_cell,
    format_counts,
    format_duration,
    format_value,
    one_line,
)
from dasktune.text.text_table import fields_text, table_text
from dasktune.trial.metrics import number

#: Largest number of failures that are shown.
_MOST_ERRORS: Final = 5

_SHOWN_ELSEWHERE: Final = frozenset({"param_space", "tune_config.metric", "tune_config.mode"})

#: Commands that are kept; older ones are in the journal only.
_MOST_COMMANDS: Final = 20
#: The commands by the event that the journal has of each.
_COMMANDS: Final = {
    "StopRequested": "stop the experiment",
    "InterruptRequested": "end the run",
    "TrialStopRequested": "stop",
    "TrialPauseRequested": "pause",
    "TrialUnpauseRequested": "unpause",
    "TrialCheckpointRequested": "checkpoint",
    "TrialAddRequested": "add",
    "HoldRequested": "hold",
    "ReleaseRequested": "release",
    "ShareRequested": "set share",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_experiment(parser)
    parser.add_argument(
        "trial",
        nargs="?",
        metavar="TRIAL",
        help="the ID of a trial: show its state, its last result and its ranks (default: the experiment)",
    )
    add_format(parser, "text", "json")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the experiment or the trial."""
    log = CommandLog()
    overview = read_experiment(storage_of(arguments), watch=log.apply)
    if arguments.trial is not None:
        trial = find_trial(overview.projection, arguments.trial)
        if arguments.format == "json":
            write_json(trial_facts(trial, overview))
        else:
            write(trial_text(trial, overview, terminal_width()))
    elif arguments.format == "json":
        write_json({**_facts(overview), "commands": log.rows})
    else:
        write("\n\n".join(_parts(overview, log)))
    return 0


def _parts(overview: Overview, log: CommandLog) -> Iterator[str]:
    projection = overview.projection
    yield fields_text(_header(overview))
    settings = {"scheduler": "FIFOScheduler, the default", **_settings(overview)}
    yield f"Settings\n{_indented(fields_text(settings))}"
    best = projection.best
    if best is not None:
        iteration, value = best.best[0]
        value_line = f"{one_line(projection.metric)} = {format_value(value)} at iteration {iteration}"
        now = {"trial": best.trial_id, "best value": value_line, "last value": best.last_value()}
        config = {f"config/{name}": value for name, value in best.config.items()}
        yield f"Best trial\n{_indented(fields_text({**now, 'status': best.status, **config}))}"
    failed = [trial for trial in projection.trials if trial.status == "ERROR"]
    if failed:
        lines = {trial.trial_id: trial.error or trial.reason for trial in failed[:_MOST_ERRORS]}
        more = f", the first {_MOST_ERRORS} of {len(failed)}" if len(failed) > len(lines) else ""
        yield f"Errors{more} (tracebacks: dasktune errors)\n{_indented(fields_text(lines))}"
    if log.total:
        more = f", the last {len(log.rows)} of {log.total}" if log.total > len(log.rows) else ""
        rows = [list(row.values()) for row in log.rows]
        yield f"Commands{more}\n{_indented(table_text(('time', 'command', 'by'), rows, terminal_width()))}"
    yield _what_next(overview)


def _header(overview: Overview) -> dict[str, object]:
    spec, projection, started = overview.spec, overview.projection, overview.started
    goals = [
        f"{metric} ({mode})" if mode else metric
        for metric, mode in zip(projection.metrics, projection.modes, strict=True)
    ]
    counts = format_counts(projection.counts)
    parameters = dict.fromkeys(name for trial in projection.trials for name in trial.config)
    total = "" if projection.total is None else f" of {projection.total}"
    left = projection.remaining if overview.leader is not None else None
    leader = overview.leader
    return {
        "experiment": overview.name,
        "path": str(overview.storage),
        "state": overview.state + (f" (pid {leader.pid} on {leader.host})" if leader is not None else ""),
        "ended because": projection.stop_reason or None,
        "trainable": spec.get("trainable"),
        "goal": ", ".join(goals) or None,
        "parameters": ", ".join(parameters) or None,
        "trials": f"{len(projection.trials)}{total}: {counts}" if counts else f"0{total}",
        "stopped early": projection.num_stopped_early or None,
        "results": projection.num_results,
        "workers": len(projection.workers),
        "started": None if started is None else f"{started:%Y-%m-%d %H:%M:%S %z}",
        "duration": format_duration(projection.elapsed),
        "left": None if left is None else f"about {format_duration(left)}",
        "dasktune": spec.get("dasktune"),
        "malformed": f"{projection.malformed} malformed records" if projection.malformed else None,
    }


def _settings(overview: Overview) -> dict[str, Any]:
    """Return the settings that differ from their defaults, with texts or classes for objects."""
    try:
        entries = TunerFile.read(overview.storage).entries
    except StorageError:  # the driver died before it wrote the file, or the file is unreadable
        return {"num_samples": overview.spec.get("num_samples")}
    return {
        name.partition(".")[2]: _setting(entry)
        for name, entry in entries.items()
        if name not in _SHOWN_ELSEWHERE and not _is_default(name, entry)
    }


def _is_default(name: str, entry: Mapping[str, Any]) -> bool:
    """Whether a setting has its default. A list of callbacks is stored as the number of them."""
    if "value" not in entry or name == "tune_config.num_samples":
        return False
    root, *path = name.split(".")
    default: Any = {"tune_config": TuneConfig(), "run_config": RunConfig()}.get(root)
    for part in path:
        default = getattr(default, part, None)
    return bool(entry["value"] == default or (default is None and entry["value"] == 0))


def _setting(entry: Mapping[str, Any]) -> Any:
    if "value" in entry:
        value = entry["value"]
        return without_passwords(value) if isinstance(value, str) else value
    lost = " (could not be stored)" if "lost" in entry else ""
    if isinstance(entry.get("text"), str):
        return without_passwords(entry["text"]) + lost
    return f"<{entry.get('type', 'object')}>{lost}"


def _what_next(overview: Overview) -> str:
    path = one_line(overview.storage)
    if overview.state == "live":
        return "The experiment is running. Ctrl-C in its process ends it and keeps its results."
    failed = overview.projection.counts["ERROR"]
    if overview.state == "finished" and not failed:
        return "The experiment is finished."
    again = overview.state == "finished"
    code = overview.spec.get("code")
    where, _, name = one_line(code).rpartition(":") if isinstance(code, str) else ("", "", "")
    if not where:
        # A notebook has defined it, or it is bound to parameters: only its program can name it.
        name = one_line(overview.spec.get("trainable") or "")
        name = name if name.isidentifier() and name != "lambda" else "trainable"
    flag = ", restart_errored=True" if again else ""
    call = f"dasktune.Tuner.restore({path!r}, {name}{flag}).fit()"
    if not where:
        return f"Resume  {call}\n        in the program or notebook that defines {name}"
    command = " ".join(map(shlex.quote, ("dasktune", "resume", path, f"{where}:{name}")))
    command += " --errored restart" if again else ""
    # Without an address both start workers on this machine, wherever the experiment ran before.
    elsewhere = "        (on a cluster: --address ADDRESS, or client=ADDRESS)"
    return f"Resume  {command}\nor      {call} in {where}\n{elsewhere}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _facts(overview: Overview) -> dict[str, Any]:
    projection, best, started = overview.projection, overview.projection.best, overview.started
    return {
        "name": overview.name,
        "path": str(overview.storage),
        "state": overview.state,
        "trainable": overview.spec.get("trainable"),
        "code": overview.spec.get("code"),
        "dasktune": overview.spec.get("dasktune"),
        "metric": projection.metrics,
        "mode": projection.modes,
        "trials": len(projection.trials),
        "total_trials": projection.total,
        "counts": projection.counts,
        "stopped_early": projection.num_stopped_early,
        "results": projection.num_results,
        "started": None if started is None else started.isoformat(timespec="seconds"),
        "duration_s": round(projection.elapsed, 3),
        "stop_reason": projection.stop_reason or None,
        "settings": _settings(overview),
        "best": None
        if best is None
        else {
            "trial_id": best.trial_id,
            "value": best.best_value(),
            "iteration": best.best[0][0],
            "config": best.config,
        },
        "errors": {
            trial.trial_id: format_cell(trial.error or trial.reason)
            for trial in projection.trials
            if trial.status == "ERROR"
        },
    }


class CommandLog:
    """Collects the last commands of which the journal says who issued them.

    Examples
    --------
    >>> log = CommandLog()
    >>> log.apply({"event": "TrialStopRequested", "trial_id": "a", "time": 0.0, "by": "ann@node7"})
    >>> log.rows[0]["command"], log.rows[0]["by"]
    ('stop a', 'ann@node7')
    """

    def __init__(self) -> None:
        self._rows: deque[dict[str, str]] = deque(maxlen=_MOST_COMMANDS)
        #: Number of all such commands.
        self.total = 0

    @property
    def rows(self) -> list[dict[str, str]]:
        """The last commands with their time, oldest first."""
        return list(self._rows)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply the next record of the journal."""
        name, by = _COMMANDS.get(str(record.get("event"))), record.get("by")
        if name is None or not isinstance(by, str) or not by:
            return
        self.total += 1
        # The values of a share and the ID of a trial; any program may have written the journal.
        values = [
            f"{key} {value:g}"
            for key in ("weight", "priority", "yields_after")
            if (value := number(record.get(key))) is not None
        ]
        words = [name, str(record.get("trial_id") or ""), " ".join(values)]
        command = one_line(" ".join(word for word in words if word))
        self._rows.append({"time": _time_of(record), "command": command, "by": one_line(by)})


def _time_of(record: Mapping[str, Any]) -> str:
    with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(record["time"]).astimezone().isoformat(timespec="seconds")
    return ""


def trial_text(trial: TrialProjection, overview: Overview, width: int | None) -> str:
    """Return a trial's state, configuration, last result and ranks as text.

    Parameters
    ----------
    trial : TrialProjection
        The trial.
    overview : Overview
        Its experiment.
    width : int, optional
        Columns of the terminal; None for no limit.
    """
    return "\n\n".join(_trial_parts(trial, overview, width))


def trial_facts(trial: TrialProjection, overview: Overview) -> dict[str, Any]:
    """Return the same as plain values.

    Parameters
    ----------
    trial : TrialProjection
        The trial.
    overview : Overview
        Its experiment.
    """
    ranks = [] if trial.ranks is None else list(trial.ranks.rows())
    return {
        **_trial_state(trial, overview),
        "config": trial.config,
        "metrics": trial.metrics,
        "max_ranks": trial.max_ranks or None,
        "ranks": [dict(zip(RANK_COLUMNS, row, strict=True)) for row in ranks],
    }


def _trial_parts(trial: TrialProjection, overview: Overview, width: int | None) -> Iterator[str]:
    state = _trial_state(trial, overview)
    yield fields_text({**state, "runtime_s": format_duration(trial.runtime(overview.projection.elapsed))})
    yield _section("Configuration", trial.config)
    if trial.metrics:
        yield _section("Last result", trial.metrics)
    if trial.ranks is not None:
        rows = [[one_line(cell) for cell in row] for row in trial.ranks.rows()]
        yield f"Ranks: {trial.ranks.number}\n{_indented(table_text(RANK_COLUMNS, rows, width))}"


def _trial_state(trial: TrialProjection, overview: Overview) -> dict[str, Any]:
    return {
        "trial": trial.trial_id,
        "status": trial.outcome,
        "iteration": trial.iteration,
        "worker": trial.worker or None,
        "starts": trial.starts,
        "failures": trial.failures or None,
        "lost with a worker": trial.losses or None,
        "checkpoint": trial.checkpoint or None,
        "directory": f"{overview.storage}/trials/{trial.folder}" if trial.folder else None,
        "reason": trial.error or trial.reason or None,
    }


def _section(title: str, values: Mapping[str, Any]) -> str:
    shown = {one_line(name): format_value(value) for name, value in values.items()}
    return f"{title}\n{_indented(fields_text(shown) or '(empty)')}"
