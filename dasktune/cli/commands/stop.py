"""``dasktune stop``: stop a running experiment, in another process or submitted to a cluster.

The experiment may end between reading its lease and sending the command. The control server is gone
then, and the command reports that it is unreachable. A new driver at the same port rejects the old
token.
"""

from __future__ import annotations

import argparse
import getpass
import re
import sys
from typing import Final, NoReturn

from dasktune.cli.arguments import add_address, add_storage_options, storage_of
from dasktune.cli.experiment_overview import read_experiment
from dasktune.cli.output import write
from dasktune.errors import ConfigError, ControlError, check
from dasktune.storage.leader.leader_lease import LeaderLease, machine_id
from dasktune.text.formatting import one_line

__all__ = ["add_arguments", "run"]

#: What a driver shows of its control server.
_CALL: Final = re.compile(r"(?:Control: )?TuneClient\('[^']*', token='([^']*)'\)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        nargs="?",
        help=(
            "the name of a submitted experiment, with --address; otherwise its directory, its URL, "
            "or its name as 'dasktune ls' lists it"
        ),
    )
    add_address(parser, default="none: a driver on this machine runs the experiment")
    parser.add_argument(
        "--url",
        metavar="URL",
        help=(
            "the control server of the driver, such as http://127.0.0.1:4321, in place of EXPERIMENT "
            "(default: as the experiment's directory has it)"
        ),
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help=(
            "the token that the driver printed; other users can see command lines (default: prompt "
            "for it, or read it from standard input)"
        ),
    )
    parser.add_argument(
        "--interrupt",
        action="store_true",
        help="leave trials unfinished, as Ctrl-C does, so that 'dasktune resume' can continue them",
    )
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Send the driver the command to end."""
    name, address, url = arguments.experiment, arguments.address, arguments.url
    rule = "the only argument that names the experiment"
    given = [flag for flag in (address, url) if flag is not None]
    check(len(given) < 2, "--address", rule, address, "Leave out --address or --url.")
    if url is not None:
        check(name is None, "EXPERIMENT", rule, name, "Leave it out with --url.")
        _command(url, arguments)
        return 0
    hint = "Give its directory, its name and --address, or --url."
    check(name is not None, "EXPERIMENT", "given", name, hint)
    if address is not None:
        return _stop_submitted(arguments)
    return _stop_stored(arguments)


def _stop_submitted(arguments: argparse.Namespace) -> int:
    from dasktune.tuner.submitted import attach

    with attach(arguments.experiment, client=arguments.address) as experiment:
        status = experiment.status
        if status != "running":
            write(f"{one_line(arguments.experiment)} has {status} already")
            return 0
        if arguments.interrupt:
            experiment.interrupt()
        else:
            experiment.stop()
    _confirm(arguments.experiment, arguments)
    return 0


def _stop_stored(arguments: argparse.Namespace) -> int:
    """Stop the driver of the experiment in a directory."""
    from dasktune.control import address_file

    storage = storage_of(arguments)
    overview = read_experiment(storage)
    leader = overview.leader
    if leader is None:
        write(f"{one_line(overview.name)} is not running: it is {overview.state}")
        return 0
    url = address_file.read(storage, leader)
    if url is None:
        _refuse(leader)
    where = f"its driver accepts commands at {url} of {leader.host}"
    hint = "Run the command there, or forward the port and use --url."
    if leader.machine != machine_id():
        raise ConfigError(f"EXPERIMENT must be one that runs on this machine: {where}. {hint}")
    _command(url, arguments)
    return 0


def _refuse(leader: LeaderLease) -> NoReturn:
    raise ConfigError(
        f"the experiment's driver (pid {leader.pid} on {one_line(leader.host)}) accepts no "
        f"commands. Press Ctrl-C where it runs, or run `kill -INT {leader.pid}` on that machine; "
        "`dasktune resume` resumes the unfinished trials. Stop a submitted experiment by its name "
        "and --address, and one with RunConfig(server_port=True) by its directory."
    )


def _command(url: str, arguments: argparse.Namespace) -> None:
    """Send the command to the driver's control server."""
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
        hint = "Check that the driver is alive and runs on this machine."
        raise ControlError(f"{error.message}. {hint}", error.kind) from None
    _confirm(url, arguments)


def _asked_token(url: str) -> str:
    """Read the token from the terminal or standard input: other users can see command lines."""
    if sys.stdin.isatty():
        return getpass.getpass(f"Token that the driver at {one_line(url)} printed: ")
    given = sys.stdin.readline().strip()
    # The file that the driver writes has a call of TuneClient.
    found = _CALL.fullmatch(given)
    return found[1] if found else given


def _confirm(what: str, arguments: argparse.Namespace) -> None:
    word = "interrupted" if arguments.interrupt else "stopped"
    write(f"{one_line(what)} is being {word}")
