"""``dasktune run``: run an experiment from the command line."""

from __future__ import annotations

import argparse
from typing import Any, Final

from dasktune.cli.arguments import add_address, add_storage_options, pairs, storage_options
from dasktune.cli.fitting import fit
from dasktune.cli.loading import load_object, load_space
from dasktune.config import DEFAULT_STORAGE_PATH, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import check
from dasktune.schedulers.create import SCHEDULERS, create_scheduler
from dasktune.search.create import SEARCHERS, create_searcher
from dasktune.trainable.api.binding import with_resources
from dasktune.tuner.tuner import Tuner

_EPILOG: Final = """\
In a space, a list that begins with the name of a domain is that domain, and any
other value is a constant:

  {"lr": ["loguniform", 1e-4, 1e-1], "opt": ["choice", ["sgd", "adam"]]}

Example: find the learning rate with 50 trials, and stop bad ones early

  dasktune run train.py:train --space '{"lr": ["loguniform", 1e-4, 1e-1]}' \\
      --metric loss --mode min --num-samples 50 \\
      --scheduler asha --scheduler-arg max_t=100

Exit code: 0 if no trial failed, 1 if some failed, 2 after an error, 130 after
Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "trainable",
        metavar="TRAINABLE",
        help="the function or Trainable to tune: script.py:name or package.module:name",
    )
    _add_objective(parser)
    _add_policies(parser)
    _add_limits(parser)
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help=(
            "the seed of all random numbers, an integer of at least 0; the same seed gives the same "
            "configurations (default: another one for each experiment)"
        ),
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the experiment's name (default: the trainable's name and the date)"
    )
    parser.add_argument(
        "--storage-path",
        metavar="PATH",
        help=f"the directory or URL to store experiments in (default: {DEFAULT_STORAGE_PATH})",
    )
    add_address(parser, default="one that dasktune starts on this machine and closes at the end")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no results")
    add_storage_options(parser)


def _add_objective(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--space",
        metavar="SPACE",
        help=(
            "the search space: JSON, a .json or .yaml file, or a dict as script.py:name or "
            "package.module:name (default: no parameters)"
        ),
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help=(
            "the metric to optimise, as the trainable reports it (default: none, or with --mode "
            "the number that a function returns)"
        ),
    )
    parser.add_argument(
        "--mode",
        choices=("min", "max"),
        help="whether to minimise or maximise the metric; needed with --metric (default: none)",
    )
    parser.add_argument(
        "--learn-from",
        action="append",
        metavar="PATH",
        help=(
            "a directory or URL with earlier experiments of the same trainable and metric, from whose "
            "trials this one learns; may be repeated; not with --searcher (default: none)"
        ),
    )
    parser.add_argument(
        "--num-samples",
        type=int,
        default=1,
        metavar="N",
        help=(
            "the number of samples of the search space; each is combined with all points of its "
            "grids; -1 is no limit (default: %(default)s)"
        ),
    )


def _add_policies(parser: argparse.ArgumentParser) -> None:
    # A command line cannot give the scheduler "function" its function.
    schedulers = ", ".join(name for name in SCHEDULERS if name != "function")
    for flag, task, names, default, example in (
        ("scheduler", "stops and pauses trials", schedulers, "fifo, which stops none", "max_t=100"),
        ("searcher", "chooses configurations", ", ".join(SEARCHERS), "random", "max_concurrent=4"),
    ):
        parser.add_argument(
            f"--{flag}",
            metavar="NAME",
            help=f"what {task}: {names}, or one of another package (default: {default})",
        )
        parser.add_argument(
            f"--{flag}-arg",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help=f"an argument of the {flag}, such as {example}; may be repeated (default: none)",
        )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=(
            "stop a trial when it reports a KEY of at least VALUE, such as training_iteration=10; "
            "may be repeated (default: none)"
        ),
    )
    parser.add_argument(
        "--max-concurrent",
        type=int,
        metavar="N",
        help="the most trials that run at the same time (default: as many as the cluster can run)",
    )
    parser.add_argument(
        "--time-budget",
        type=float,
        metavar="SECONDS",
        help="end the experiment after so many seconds (default: no limit)",
    )
    parser.add_argument(
        "--resources",
        metavar="cpu=2,gpu=1",
        help="the CPUs, GPUs and other resources of each trial (default: the trainable's, or one CPU)",
    )
    parser.add_argument(
        "--max-failures",
        type=int,
        default=0,
        metavar="N",
        help=(
            "how many times a trial that fails is retried from its last checkpoint; -1 is no limit "
            "(default: %(default)s)"
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment."""
    return fit(_tuner(arguments), quiet=arguments.quiet)


def _tuner(arguments: argparse.Namespace) -> Tuner:
    trainable = load_object(arguments.trainable, "TRAINABLE")
    if arguments.resources is not None:
        request = pairs("--resources", arguments.resources.split(","))
        trainable = with_resources(trainable, request)
    rule = "left out with --learn-from, which chooses WarmStart"
    check(not (arguments.learn_from and arguments.searcher), "--searcher", rule, arguments.searcher)
    tune_config = TuneConfig(
        metric=arguments.metric,
        mode=arguments.mode,
        num_samples=arguments.num_samples,
        scheduler=_policy("scheduler", create_scheduler, arguments),
        search_alg=_policy("searcher", create_searcher, arguments),
        learn_from=arguments.learn_from,
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
        trainable, param_space=space, tune_config=tune_config, run_config=run_config, client=arguments.address
    )


def _policy(flag: str, create: Any, arguments: argparse.Namespace) -> Any:
    name, given = getattr(arguments, flag), getattr(arguments, f"{flag}_arg")
    check(name is not None or not given, f"--{flag}", f"given with --{flag}-arg", None)
    return None if name is None else create(name, **pairs(f"--{flag}-arg", given))
