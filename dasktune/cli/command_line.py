"""Parse the command line, run the subcommand, and turn its errors into exit codes.

A short subclass of the standard library's `argparse` suffices, so that dasktune need not depend on
a package such as click.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import dasktune
from dasktune.errors import TuneError
from dasktune.text.formatting import one_line

#: The subcommands and their help texts. Each subcommand is a module of `dasktune.cli.commands` with
#: ``add_arguments(parser)`` and ``run(arguments)``, which returns the exit code. Only the module of
#: the given subcommand is imported, so that ``dasktune ls`` need not import Dask or Bokeh.
COMMANDS: Final = {
    "run": "tune a function or a Trainable of a script or a module",
    "resume": "resume an interrupted experiment (unpickles its objects)",
    "stop": "stop a running experiment, here or on a cluster",
    "share": "change a running experiment's share of a cluster",
    "queue": "list, run or cancel experiments that wait in a queue",
    "notice": "tell workers that they end soon, so that trials save and leave",
    "ls": "list experiments: state, trials by status, best value",
    "show": "show one experiment or trial: settings, progress, errors, ranks",
    "trials": "list the trials of an experiment: filter, sort, export",
    "best": "show the best trial of an experiment",
    "errors": "show why trials failed, with tracebacks",
    "logs": "show what a trial or one of its ranks has printed",
    "whatif": "show what an experiment would have cost under other schedulers",
    "report": "write an experiment as one HTML page",
    "dashboard": "serve a live dashboard of experiments until Ctrl-C",
    "doctor": "check whether a cluster can run experiments",
    "repair": "restore an experiment whose journal is damaged",
}

#: One line for each subcommand, of at most 80 columns.
_DESCRIPTION: Final = "\n".join(
    (
        "Hyperparameter tuning on Dask.",
        "",
        "commands:",
        *(f"  {name:<10}  {summary}" for name, summary in COMMANDS.items()),
    )
)

_EPILOG: Final = """\
Example: run 20 trials of train() in train.py, then show the best one

  dasktune run train.py:train --space '{"lr": ["loguniform", 1e-4, 1e-1]}' \\
      --metric loss --mode min --num-samples 20 --name first
  dasktune best first

'dasktune COMMAND --help' lists the arguments of a command.
"""

#: The exit codes that shells use after Ctrl-C, and after a write to a closed pipe.
_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141


class _UsageError(Exception):
    """The command line is invalid."""


class _ArgumentParser(argparse.ArgumentParser):
    """An `argparse` parser that raises an error instead of printing the usage and exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message} (see: {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand of a command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default the arguments of the process.

    Returns
    -------
    int
        0 for success, 1 if trials or checks failed, 2 for an error, which is printed as one line to
        standard error, and 130 after Ctrl-C.

    Examples
    --------
    >>> main(["ls", "memory://doctest-nothing-here"])
    no experiments in memory://doctest-nothing-here
    0
    """
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run_subcommand(given)
        sys.stdout.flush()
    except SystemExit as exit:  # argparse has printed the help or the version
        return exit.code if isinstance(exit.code, int) else 0
    except _UsageError as error:
        return _print_error(str(error))
    except BrokenPipeError:
        # Python flushes standard output again when it exits, which must not raise a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (TuneError, OSError) as error:
        return _print_error(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _run_subcommand(given: list[str]) -> int:
    parser = _ArgumentParser(
        prog="dasktune",
        usage="dasktune [-h] [--version] COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"dasktune {dasktune.__version__}"
    parser.add_argument("--version", action="version", version=version, help="show the version and exit")
    # The description lists the commands, because argparse breaks the line after a long name.
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, prog="dasktune", help=argparse.SUPPRESS
    )
    modules = {}
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if given[:1] == [name]:
            modules[name] = import_module(f"dasktune.cli.commands.{name}")
            modules[name].add_arguments(subparser)
    arguments = parser.parse_args(given)
    code: int = modules[arguments.command].run(arguments)
    return code


def _print_error(message: str) -> int:
    sys.stderr.write(f"dasktune: {one_line(message)}\n")
    return 2
