"""``dasktune best``: the trial that `ResultGrid.get_best_result` would return."""

from __future__ import annotations

import argparse
from typing import Any, Final

from dasktune.cli.arguments import add_experiment, add_format, add_goal, add_storage_options, storage_of
from dasktune.cli.output import write, write_json
from dasktune.errors import ConfigError, StorageError, check
from dasktune.results.journal_trials import apply_records
from dasktune.results.ranking import rank, summarize
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.spill_file import SpillFile
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import check_journal_exists, read_journal
from dasktune.text.text_table import fields_text
from dasktune.trial.metrics import Mode, flatten
from dasktune.trial.trial import Trial

_SCOPES: Final = ("last", "all", "avg", "last-5-avg", "last-10-avg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_experiment(parser)
    add_goal(parser)
    parser.add_argument(
        "--scope",
        choices=_SCOPES,
        default="last",
        help=(
            "which of a trial's values counts: the last one, the best one (all), the mean of all "
            "(avg), or the mean of its last 5 or 10 (default: %(default)s)"
        ),
    )
    add_format(parser, "text", "json")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the best trial."""
    storage = storage_of(arguments)
    metric, mode = _goal(ExperimentStore(storage).spec(), arguments)
    best, value = _best(storage, metric, mode, arguments.scope)
    path = f"{storage}/trials/{best.folder}"
    checkpoint = None if best.checkpoint is None else f"{storage}/{best.checkpoint.path}"
    about: dict[str, Any] = {
        "trial_id": best.trial_id,
        "metric": metric,
        "mode": mode,
        "scope": arguments.scope,
        "value": value,
        "status": best.public_status.value,
        "training_iteration": best.last_iteration,
        "path": path,
        "checkpoint": checkpoint,
    }
    if arguments.format == "json":
        write_json({**about, "config": best.config, "metrics": best.last_result})
    else:
        config = {f"config/{name}": value for name, value in flatten(best.config).items()}
        write(fields_text({**about, **config}))
    return 0


def _goal(spec: Any, arguments: argparse.Namespace) -> tuple[str, Mode]:
    metric, mode = arguments.metric or spec.get("metric"), arguments.mode or spec.get("mode")
    if isinstance(metric, list):
        raise ConfigError(f"--metric must be one of the objectives {metric}, got None")
    if isinstance(mode, list):
        goals = dict(zip(spec["metric"], mode, strict=False))
        mode = goals.get(metric)
    check(isinstance(metric, str), "--metric", "given, because the experiment has none", metric)
    check(mode in ("min", "max"), "--mode", "given, because the experiment has none", mode)
    return metric, mode


def _best(storage: Storage, metric: str, mode: Mode, scope: Any) -> tuple[Trial, float]:
    check_journal_exists(storage, may_be_new=True)
    trials: dict[str, Trial] = {}
    apply_records(trials, read_journal(storage), SpillFile(), skip_malformed=True)
    compared = [
        (value, trial)
        for trial in trials.values()
        if (value := summarize(trial.history, metric, mode, scope, finite=True)) is not None
    ]
    if not compared:
        reported = sorted({name for trial in trials.values() for name in trial.last_result})
        raise StorageError(
            f"no trial of {storage} has a finite {metric!r}; reported: "
            f"{', '.join(reported[:20]) or 'nothing'}"
        )
    value, trial = max(compared, key=lambda pair: rank(pair[0], mode))
    return trial, value
