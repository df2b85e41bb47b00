"""``dasktune whatif``: what an experiment would have cost under other trial schedulers."""

from __future__ import annotations

import argparse
from typing import Final

from dasktune.cli.arguments import (
    add_experiment,
    add_format,
    add_goal,
    add_storage_options,
    pairs,
    storage_of,
)
from dasktune.cli.output import terminal_width, write, write_csv, write_json
from dasktune.forecast.contenders import Contender
from dasktune.tuner.scheduler_forecast import whatif

_EPILOG: Final = """\
The full learning curves of the experiment are replayed in random orders through
the schedulers themselves, in virtual time. Nothing is trained. At least 20
trials must have reached the last iteration.

Examples:

  dasktune whatif exp
  dasktune whatif exp --scheduler asha --scheduler asha:grace_period=9
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = _EPILOG
    add_experiment(parser)
    parser.add_argument(
        "--scheduler",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help=(
            "a scheduler and its arguments, of which max_t is --max-t by default; may be repeated "
            "(default: ASHA, stopping and promoting, at several grace periods, HyperBand, and the "
            "median stopping rule)"
        ),
    )
    parser.add_argument(
        "--orders",
        type=int,
        default=200,
        metavar="N",
        help="the number of random orders (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the seed of the orders (default: %(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="how many trials run at a time (default: as many as in the experiment)",
    )
    parser.add_argument(
        "--max-t",
        type=int,
        metavar="N",
        help="the training_iteration up to which curves are replayed (default: the highest one)",
    )
    parser.add_argument(
        "--min-kept",
        type=float,
        default=0.9,
        metavar="P",
        help="recommend only what keeps the best trial with this probability (default: %(default)s)",
    )
    add_goal(parser)
    parser.add_argument(
        "--ignore-searcher",
        action="store_true",
        help="replay the trials although their searcher has learned from results",
    )
    add_format(parser, "table", "csv", "json")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay the experiment, and show the table and the recommendation."""
    storage = storage_of(arguments)
    found = whatif(
        storage.url,
        {text: _scheduler(text) for text in arguments.scheduler} or None,
        orders=arguments.orders,
        seed=arguments.seed,
        workers=arguments.workers,
        max_t=arguments.max_t,
        min_kept=arguments.min_kept,
        metric=arguments.metric,
        mode=arguments.mode,
        ignore_searcher=arguments.ignore_searcher,
        storage_options=storage.storage_options,
    )
    records = found.to_records()
    if arguments.format == "json":
        about = {"recommended": found.recommended.scheduler, "recommendation": found.recommendation}
        write_json({**about, "censored": dict(found.censored), "notes": found.notes, "rows": records})
    elif arguments.format == "csv":
        write_csv(list(records[0]), [list(record.values()) for record in records])
    else:
        write(found.to_text(terminal_width()))
    return 0


def _scheduler(text: str) -> Contender:
    name, _, rest = text.partition(":")
    return name, pairs("--scheduler", rest.split(",") if rest else ())
