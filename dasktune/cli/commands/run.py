"""``dasktune run``: run an experiment from the command line."""

from __future__ import annotations

import argparse
from typing import Any, Final

from dasktune.cli.arguments import add_address, add_storage_options, pairs, storage_options
from dasktune.cli.fitting import fit
from dasktune.cli.loading import load_object, load_space
from dasktune.config import DEFAULT_STORAGE_PATH, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import check
from dasktune.schedulers import create_scheduler
from dasktune.search import create_searcher
from dasktune.trainable.api.binding import with_resources
from dasktune.tuner.tuner import Tuner

__all__ = ["add_arguments", "run"]

_EPILOG: Final = """\
In a space, a list that begins with the name of a domain is that domain; other values are constants:
  {"lr": ["loguniform", 1e-4, 1e-1], "opt": ["choice", ["sgd", "adam"]], "epochs": 20}

  dasktune run train.py:train --space '{"lr": ["loguniform", 1e-4, 1e-1]}' \\
      --metric loss --mode min --num-samples 50 --scheduler asha --scheduler-arg max_t=100

Exit code: 0 if no trial failed, 1 if some failed, 2 after an error, 130 after Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = _EPILOG
    parser.add_argument("trainable", metavar="TRAINABLE", help="script.py:name or package.module:name")
    _add_search(parser)
    parser.add_argument("--name", help="the experiment's name; by default the trainable's and the date")
    parser.add_argument(
        "--storage-path",
        metavar="PATH",
        help=f"a directory or URL; by default {DEFAULT_STORAGE_PATH}",
    )
    add_storage_options(parser)
    add_address(parser, "by default a cluster on this machine, which is closed at the end")
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="stop a trial when the metric KEY reaches VALUE",
    )
    parser.add_argument(
        "--resources", metavar="cpu=2,gpu=1", help="the resources of each trial; one CPU by default"
    )
    parser.add_argument(
        "--max-failures",
        type=int,
        default=0,
        metavar="N",
        help="the number of retries of a failed trial",
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress and no results")


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--space", metavar="SPACE", help="JSON, a .json or .yaml file, or a name like TRAINABLE"
    )
    parser.add_argument("--metric", help="the metric to optimise, as the trainable reports it")
    parser.add_argument("--mode", choices=("min", "max"), help="whether to minimise or maximise")
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="samples; -1 is no limit")
    for flag, what in (("scheduler", "asha, pbt, hyperband"), ("searcher", "random, optuna, bohb")):
        parser.add_argument(f"--{flag}", metavar="NAME", help=f"{what}, ...")
        parser.add_argument(
            f"--{flag}-arg",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help=f"an argument of the {flag}, as JSON or text",
        )
    parser.add_argument("--max-concurrent", type=int, metavar="N", help="the most trials at a time")
    parser.add_argument(
        "--time-budget", type=float, metavar="SECONDS", help="end the experiment after this time"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of all random numbers")


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment."""
    return fit(_tuner(arguments), quiet=arguments.quiet)


def _tuner(arguments: argparse.Namespace) -> Tuner:
    trainable = load_object(arguments.trainable, "TRAINABLE")
    if arguments.resources is not None:
        request = pairs("--resources", arguments.resources.split(","))
        trainable = with_resources(trainable, request)
    tune_config = TuneConfig(
        metric=arguments.metric,
        mode=arguments.mode,
        num_samples=arguments.num_samples,
        scheduler=_policy("scheduler", create_scheduler, arguments),
        search_alg=_policy("searcher", create_searcher, arguments),
        max_concurrent_trials=arguments.max_concurrent,
        time_budget_s=arguments.time_budget,
        seed=arguments.seed,
    )
    run_config = RunConfig(
        name=arguments.name,
        storage_path=arguments.storage_path,
        storage_options=storage_options(arguments) or None,
        stop=pairs("--stop", arguments.stop) or None,
        failure_config=FailureConfig(max_failures=arguments.max_failures),
        verbose=0 if arguments.quiet else 1,
    )
    space = load_space(arguments.space)
    return Tuner(
        trainable,
        param_space=space,
        tune_config=tune_config,
        run_config=run_config,
        client=arguments.address,
    )


def _policy(flag: str, create: Any, arguments: argparse.Namespace) -> Any:
    name, given = getattr(arguments, flag), getattr(arguments, f"{flag}_arg")
    check(name is not None or not given, f"--{flag}", f"given with --{flag}-arg", None)
    return None if name is None else create(name, **pairs(f"--{flag}-arg", given))
