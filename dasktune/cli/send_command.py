"""Send a command to the driver of a running experiment, for subcommands that control experiments.

The experiment may end between reading its lease and sending the command. The control server is gone
then, and the command reports that it is unreachable. A new driver at the same port rejects the old
token.
"""

from __future__ import annotations

import argparse
import getpass
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dasktune.cli.arguments import add_address, add_storage_options, storage_of
from dasktune.cli.experiment_overview import read_experiment
from dasktune.cli.output import write
from dasktune.errors import ConfigError, ControlError, check
from dasktune.storage.leader.leader_lease import machine_id
from dasktune.text.formatting import one_line

if TYPE_CHECKING:
    from dasktune.control import TuneClient
    from dasktune.tuner.submitted import DetachedExperiment

#: What a driver shows of its control server.
_CALL: Final = re.compile(r"(?:Control: )?TuneClient\('[^']*', token='([^']*)'\)")


@dataclass(frozen=True, kw_only=True)
class DriverCommand:
    """A command for the driver of an experiment.

    Parameters
    ----------
    to_submitted : callable
        Sends the command to the driver of a submitted experiment.
    to_server : callable
        Sends the command to the control server of a driver.
    done : str
        What the experiment's name is followed by in the confirmation.
    remedy : str
        What the user can do about a driver that accepts no commands; ``{pid}`` is its process.
    """

    to_submitted: Callable[[DetachedExperiment], Any]
    to_server: Callable[[TuneClient], Any]
    done: str
    remedy: str


def add_driver_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name an experiment and say how to reach its driver."""
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
    add_storage_options(parser)


def send_command(command: DriverCommand, arguments: argparse.Namespace) -> int:
    """Send a command to the driver that the arguments name, and return the exit code.

    Parameters
    ----------
    command : DriverCommand
        The command.
    arguments : argparse.Namespace
        The values of the arguments that :func:`add_driver_arguments` adds.

    Raises
    ------
    ConfigError
        If the arguments contradict each other, or the driver accepts no commands here.
    ControlError
        If the driver does not answer, or refuses the command.
    """
    name, address, url = arguments.experiment, arguments.address, arguments.url
    rule = "the only argument that names the experiment"
    given = [flag for flag in (address, url) if flag is not None]
    check(len(given) < 2, "--address", rule, address, "Leave out --address or --url.")
    if url is not None:
        check(name is None, "EXPERIMENT", rule, name, "Leave it out with --url.")
        _send_to_server(command, url, arguments)
        return 0
    hint = "Give its directory, its name and --address, or --url."
    check(name is not None, "EXPERIMENT", "given", name, hint)
    if address is not None:
        _send_to_submitted(command, arguments)
    else:
        _send_to_stored(command, arguments)
    return 0


def _send_to_submitted(command: DriverCommand, arguments: argparse.Namespace) -> None:
    from dasktune.tuner.submitted import attach

    with attach(arguments.experiment, client=arguments.address) as experiment:
        status = experiment.status
        if status != "running":
            write(f"{one_line(arguments.experiment)} has {status} already")
            return
        command.to_submitted(experiment)
    write(f"{one_line(arguments.experiment)} {command.done}")


def _send_to_stored(command: DriverCommand, arguments: argparse.Namespace) -> None:
    """Send the command to the driver of the experiment in a directory."""
    from dasktune.control import address_file

    storage = storage_of(arguments)
    overview = read_experiment(storage)
    leader = overview.leader
    if leader is None:
        write(f"{one_line(overview.name)} is not running: it is {overview.state}")
        return
    url = address_file.read(storage, leader)
    if url is None:
        raise ConfigError(
            f"the experiment's driver (pid {leader.pid} on {one_line(leader.host)}) accepts no "
            f"commands. {command.remedy.format(pid=leader.pid)}"
        )
    where = f"its driver accepts commands at {url} of {leader.host}"
    hint = "Run the command there, or forward the port and use --url."
    if leader.machine != machine_id():
        raise ConfigError(f"EXPERIMENT must be one that runs on this machine: {where}. {hint}")
    _send_to_server(command, url, arguments)


def _send_to_server(command: DriverCommand, url: str, arguments: argparse.Namespace) -> None:
    """Send the command to the driver's control server."""
    from dasktune.control import TuneClient

    client = TuneClient(url, arguments.token or _asked_token(url))
    try:
        command.to_server(client)
    except ControlError as error:
        if error.kind != "unreachable":
            raise
        hint = "Check that the driver is alive and runs on this machine."
        raise ControlError(f"{error.message}. {hint}", error.kind) from None
    write(f"{one_line(url)} {command.done}")


def _asked_token(url: str) -> str:
    """Read the token from the terminal or standard input: other users can see command lines."""
    if sys.stdin.isatty():
        return getpass.getpass(f"Token that the driver at {one_line(url)} printed: ")
    given = sys.stdin.readline().strip()
    # The file that the driver writes has a call of TuneClient.
    found = _CALL.fullmatch(given)
    return found[1] if found else given
