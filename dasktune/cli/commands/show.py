"""``dasktune show``: one experiment at a glance."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dasktune.cli.arguments import add_experiment, add_format, storage_of
from dasktune.cli.experiments import Overview, read_experiment
from dasktune.cli.output import cell, fields_text, one_line, write, write_json
from dasktune.config import RunConfig, TuneConfig
from dasktune.dashboard.text import duration, value_text
from dasktune.errors import StorageError, without_passwords
from dasktune.storage.setup_file import SetupFile

__all__ = ["add_arguments", "run"]

#: Failures that are told of.
_MOST_ERRORS: Final = 5

_SHOWN_ELSEWHERE: Final = frozenset({"param_space", "tune_config.metric", "tune_config.mode"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    add_experiment(parser)
    add_format(parser, "text", "json")


def run(arguments: argparse.Namespace) -> int:
    """Show the experiment."""
    overview = read_experiment(storage_of(arguments))
    if arguments.format == "json":
        write_json(_facts(overview))
    else:
        write("\n\n".join(_parts(overview)))
    return 0


def _parts(overview: Overview) -> Iterator[str]:
    told = overview.chronicle
    yield fields_text(_header(overview))
    yield f"Settings\n{_indented(fields_text(_settings(overview)))}"
    best = told.best
    if best is not None:
        iteration, value = best.best[0]
        value_line = f"{one_line(told.metric)} = {value_text(value)} at iteration {iteration}"
        now = {"trial": best.trial_id, "best value": value_line, "last value": best.last_value()}
        config = {f"config/{name}": value for name, value in best.config.items()}
        yield f"Best trial\n{_indented(fields_text({**now, 'status': best.status, **config}))}"
    failed = [log for log in told.trials if log.status == "ERROR"]
    if failed:
        lines = {log.trial_id: log.error or log.reason for log in failed[:_MOST_ERRORS]}
        more = f", the first {_MOST_ERRORS} of {len(failed)}" if len(failed) > len(lines) else ""
        yield f"Errors{more} (tracebacks: dasktune errors)\n{_indented(fields_text(lines))}"
    yield _what_next(overview)


def _header(overview: Overview) -> dict[str, object]:
    spec, told, started = overview.spec, overview.chronicle, overview.started
    goals = [
        f"{metric} ({mode})" if mode else metric
        for metric, mode in zip(told.metrics, told.modes, strict=True)
    ]
    counts = ", ".join(f"{count} {word}" for word, count in told.counts.items() if count)
    parameters = dict.fromkeys(name for log in told.trials for name in log.config)
    total = "" if told.total is None else f" of {told.total}"
    left = told.remaining if overview.leader is not None else None
    leader = overview.leader
    return {
        "experiment": overview.name,
        "path": str(overview.storage),
        "state": overview.state
        + (f" (pid {leader.pid} on {leader.host})" if leader is not None else ""),
        "ended because": told.stop_reason or None,
        "trainable": spec.get("trainable"),
        "goal": ", ".join(goals) or None,
        "parameters": ", ".join(parameters) or None,
        "trials": f"{len(told.trials)}{total}: {counts}" if counts else f"0{total}",
        "stopped early": told.num_cut or None,
        "results": told.num_results,
        "workers": len(told.workers),
        "started": None if started is None else f"{started:%Y-%m-%d %H:%M:%S %z}",
        "duration": duration(told.elapsed),
        "left": None if left is None else f"about {duration(left)}",
        "dasktune": spec.get("dasktune"),
        "malformed": f"{told.malformed} records make no sense" if told.malformed else None,
    }


def _settings(overview: Overview) -> dict[str, Any]:
    """Return what was set to something unusual, objects as the names of their classes."""
    try:
        entries = SetupFile.read(overview.storage).entries
    except StorageError:  # of an experiment that died young, or is not ours to read
        return {"num_samples": overview.spec.get("num_samples")}
    return {
        name.partition(".")[2]: _setting(entry)
        for name, entry in entries.items()
        if name not in _SHOWN_ELSEWHERE and not _is_usual(name, entry)
    }


def _is_usual(name: str, entry: Mapping[str, Any]) -> bool:
    """Whether it is as it is if nobody sets it; the number of callbacks stands for a list."""
    if "value" not in entry or name == "tune_config.num_samples":
        return False
    root, *path = name.split(".")
    usual: Any = {"tune_config": TuneConfig(), "run_config": RunConfig()}.get(root)
    for part in path:
        usual = getattr(usual, part, None)
    return bool(entry["value"] == usual or (usual is None and entry["value"] == 0))


def _setting(entry: Mapping[str, Any]) -> Any:
    if "value" in entry:
        value = entry["value"]
        return without_passwords(value) if isinstance(value, str) else value
    lost = " (could not be stored)" if "lost" in entry else ""
    return f"<{entry.get('type', 'object')}>{lost}"


def _what_next(overview: Overview) -> str:
    trainable = one_line(overview.spec.get("trainable") or "trainable")
    path, code = one_line(overview.storage), f"SCRIPT_OR_MODULE:{trainable}"
    if overview.state == "live":
        return "It runs. Ctrl-C in its process ends it and keeps what was recorded."
    failed = overview.chronicle.counts["ERROR"]
    if overview.state == "finished" and not failed:
        return "It has come to its end."
    again = " --errored restart" if overview.state == "finished" else ""
    flag = ", restart_errored=True" if again else ""
    return (
        f"Resume  dasktune resume {shlex.quote(path)} {shlex.quote(code)}{again}\n"
        f"or      Tuner.restore({path!r}, {trainable}{flag}).fit()"
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _facts(overview: Overview) -> dict[str, Any]:
    told, best, started = overview.chronicle, overview.chronicle.best, overview.started
    return {
        "name": overview.name,
        "path": str(overview.storage),
        "state": overview.state,
        "trainable": overview.spec.get("trainable"),
        "dasktune": overview.spec.get("dasktune"),
        "metric": told.metrics,
        "mode": told.modes,
        "trials": len(told.trials),
        "total_trials": told.total,
        "counts": told.counts,
        "stopped_early": told.num_cut,
        "results": told.num_results,
        "started": None if started is None else started.isoformat(timespec="seconds"),
        "duration_s": round(told.elapsed, 3),
        "stop_reason": told.stop_reason or None,
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
            log.trial_id: cell(log.error or log.reason)
            for log in told.trials
            if log.status == "ERROR"
        },
    }
