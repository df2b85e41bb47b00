"""From what was typed to the subcommand that does it, and from what it raises to an exit code.

It is `argparse`, of the standard library: click would be a dependency more that somebody else's
releases decide about, for what a subclass of twenty lines does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import dasktune
from dasktune.cli.output import one_line
from dasktune.errors import TuneError

__all__ = ["COMMANDS", "main"]

#: Subcommands and what they do. The module of that name in `dasktune.cli.commands` has
#: ``add_arguments(parser)``, and ``run(arguments)``, which returns the exit code. It is imported
#: only if it is asked for: to list experiments nobody waits for Dask or Bokeh. A subcommand more is
#: such a module and a line here.
COMMANDS: Final = {
    "ls": "list experiments: state, trials by status, best value",
    "show": "show one experiment: settings, progress, best trial, failures, how to resume",
    "trials": "list the trials of an experiment: filter, sort, choose columns, CSV or JSON",
    "best": "show the best trial of an experiment",
    "errors": "show why trials failed, with tracebacks",
    "report": "write an experiment as one HTML page",
    "dashboard": "show experiments in the browser, live, until Ctrl-C",
    "run": "tune a function or a Trainable of a script or a module",
    "resume": "go on with an experiment that was interrupted (unpickles what it stored)",
    "stop": "end an experiment that runs, by itself on a cluster or in a program",
    "doctor": "check whether a cluster can run experiments, and say what to do",
}

#: What a shell makes of Ctrl-C, and of a pipe that nobody reads any more.
_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141


class _UsageError(Exception):
    """What was typed cannot be understood."""


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print over several lines."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message} (see: {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what a command line says.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        0 if all is well. 1 if trials failed, or a check did. 2 if it could not be done, for which
        standard error has one line. 130 after Ctrl-C.

    Examples
    --------
    >>> main(["ls", "memory://doctest-nothing-here"])
    no experiments in memory://doctest-nothing-here
    0
    """
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _do(given)
        sys.stdout.flush()
    except SystemExit as exit:  # argparse has shown its help, or the version
        return exit.code if isinstance(exit.code, int) else 0
    except _UsageError as error:
        return _refused(str(error))
    except BrokenPipeError:
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (TuneError, OSError) as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _do(given: list[str]) -> int:
    parser = _Parser(prog="dasktune", description="Hyperparameter tuning on Dask.")
    version = f"dasktune {dasktune.__version__}"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {}
    for name, summary in COMMANDS.items():
        own = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if given[:1] == [name]:
            modules[name] = import_module(f"dasktune.cli.commands.{name}")
            modules[name].add_arguments(own)
    arguments = parser.parse_args(given)
    code: int = modules[arguments.command].run(arguments)
    return code


def _refused(message: str) -> int:
    sys.stderr.write(f"dasktune: {one_line(message)}\n")
    return 2
