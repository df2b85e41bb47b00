"""``dasktune dashboard``: a live dashboard of experiments."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from dasktune.cli.arguments import add_storage_options, named_directory, storage_options
from dasktune.cli.output import write
from dasktune.control.secret_notice import secret_notice
from dasktune.text.formatting import one_line

if TYPE_CHECKING:
    from dasktune.dashboard.server.web import WebServer

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help=(
            "the directory, URL or name of an experiment, or a directory with several experiments below it"
        ),
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8788,
        metavar="PORT",
        help="the TCP port; a free one is chosen for 0, or if it is in use (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        default="localhost",
        metavar="HOST",
        help=(
            "the network interface; with 0.0.0.0 other machines can connect, if they use the "
            "printed link and its token (default: %(default)s, this machine only)"
        ),
    )
    parser.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help=(
            "another address by which browsers reach the server, such as a proxy's; may be "
            "repeated (default: none)"
        ),
    )
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    # Importing Bokeh is slow.
    from dasktune.dashboard.server.serve import serve

    # `serve` itself expands a path that begins with the home directory.
    named = None if arguments.path.startswith("~") else named_directory(arguments.path)
    server = serve(
        named or arguments.path,
        port=arguments.port,
        address=arguments.host,
        origins=arguments.origin,
        storage_options=storage_options(arguments),
    )
    try:
        with _shown(server):
            server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.close()
    return 0


def _shown(server: WebServer) -> AbstractContextManager[None]:
    """Show the address while the block runs; where it has a token, to the user only."""
    if server.link != server.url:
        return secret_notice(sys.stdout, "Dashboard", server.link)
    write(one_line(server.url))
    sys.stdout.flush()
    return nullcontext()
