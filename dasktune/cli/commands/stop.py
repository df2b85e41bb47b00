"""``dasktune stop``: end an experiment that runs, by itself on a cluster or in a program."""

from __future__ import annotations

import argparse
import getpass
import sys
from typing import NoReturn

from dasktune.cli.arguments import add_address, add_storage_options, storage_of
from dasktune.cli.experiments import read_experiment
from dasktune.cli.output import one_line, write
from dasktune.errors import ConfigError, ControlError, check
from dasktune.storage.lease import Lease, machine_id

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        nargs="?",
        help="the name under which it was submitted, with --address; else its directory or URL",
    )
    add_address(parser, "of an experiment that was submitted")
    parser.add_argument("--url", metavar="URL", help="where its driver takes commands")
    parser.add_argument(
        "--token", metavar="TOKEN", help="what its driver printed beside that; asked for by default"
    )
    parser.add_argument(
        "--interrupt",
        action="store_true",
        help="leave trials unfinished, so that it can be resumed, as Ctrl-C would",
    )
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Tell its driver to end."""
    name, address, url = arguments.experiment, arguments.address, arguments.url
    rule = "the one way in which the experiment is named"
    given = [flag for flag in (address, url) if flag is not None]
    check(len(given) < 2, "--address", rule, address, "Leave out --address or --url.")
    if url is not None:
        check(name is None, "EXPERIMENT", rule, name, "Leave it out beside --url.")
        _command(url, arguments)
        return 0
    hint = "Give its directory, its name and --address, or --url."
    check(name is not None, "EXPERIMENT", "given", name, hint)
    if address is not None:
        return _stop_submitted(arguments)
    return _stop_stored(arguments)


def _stop_submitted(arguments: argparse.Namespace) -> int:
    from dasktune.detached import attach

    with attach(arguments.experiment, client=arguments.address) as experiment:
        status = experiment.status
        if status != "running":
            write(f"{one_line(arguments.experiment)} has {status} already")
            return 0
        if arguments.interrupt:
            experiment.interrupt()
        else:
            experiment.stop()
    _tell(arguments.experiment, arguments)
    return 0


def _stop_stored(arguments: argparse.Namespace) -> int:
    """Find the driver by the experiment's directory."""
    from dasktune.control import whereabouts

    storage = storage_of(arguments)
    overview = read_experiment(storage)
    leader = overview.leader
    if leader is None:
        write(f"{one_line(overview.name)} does not run: it is {overview.state}")
        return 0
    url = whereabouts.read(storage, leader)
    if url is None:
        _refuse(leader)
    where = f"its driver takes commands at {url} of {leader.host}"
    hint = "Do it there, or forward the port and use --url."
    if leader.machine != machine_id():
        raise ConfigError(f"EXPERIMENT must be one that runs on this machine: {where}. {hint}")
    _command(url, arguments)
    return 0


def _refuse(leader: Lease) -> NoReturn:
    raise ConfigError(
        f"the experiment's driver (pid {leader.pid} on {one_line(leader.host)}) takes no commands. "
        f"Press Ctrl-C where it runs, or `kill -INT {leader.pid}` on that machine: trials stay "
        "unfinished, and `dasktune resume` goes on with them. One that was submitted is stopped by "
        "its name and --address; one with RunConfig(server_port=True) from its directory."
    )


def _command(url: str, arguments: argparse.Namespace) -> None:
    """Stop it through the server of its driver."""
    from dasktune.control import TuneClient

    client = TuneClient(url, arguments.token or _asked_token(url))
    try:
        if arguments.interrupt:
            client.cancel_experiment()
        else:
            client.stop_experiment()
    except ControlError as error:
        if error.kind != "unreachable":
            raise
        hint = "Is its driver alive, and is this its machine?"
        raise ControlError(f"{error.message}. {hint}", error.kind) from None
    _tell(url, arguments)


def _asked_token(url: str) -> str:
    """Ask for what others would see on a command line."""
    if sys.stdin.isatty():
        return getpass.getpass(f"Token that the driver at {one_line(url)} has printed: ")
    return sys.stdin.readline().strip()


def _tell(what: str, arguments: argparse.Namespace) -> None:
    word = "interrupted" if arguments.interrupt else "stopped"
    write(f"{one_line(what)} is being {word}")
