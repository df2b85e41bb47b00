"""``dasktune dashboard``: a live dashboard of experiments."""

from __future__ import annotations

import argparse
import atexit
import gc
import signal
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from dasktune.cli.arguments import add_storage_options, named_directory, storage_options
from dasktune.cli.output import write
from dasktune.control.secret_notice import secret_notice
from dasktune.text.formatting import one_line
from dasktune.tuner.signals import keep_interrupts

if TYPE_CHECKING:
    from dasktune.dashboard.server.web import WebServer


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
    """Serve until Ctrl-C.

    Ctrl-C may come at any moment: during the imports, which swallow a KeyboardInterrupt; while the
    server starts, which then ends by itself; while it runs; and while it ends, which takes 3 s at
    most. A second one ends the process at once.
    """
    _obey_interrupts()
    # The process ends after the server. The journals and the models of all pages need no search for
    # cycles then: on a busy machine it takes seconds.
    atexit.register(gc.freeze)
    # `serve` itself expands a path that begins with the home directory.
    named = None if arguments.path.startswith("~") else named_directory(arguments.path)
    server: WebServer | None = None
    try:
        with keep_interrupts():
            # Importing Bokeh is slow.
            from dasktune.dashboard.server.serve import serve

            server = serve(
                named or arguments.path,
                port=arguments.port,
                address=arguments.host,
                origins=arguments.origin,
                storage_options=storage_options(arguments),
            )
        with _shown(server):
            server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        if server is not None:
            server.close()
    return 0


def _obey_interrupts() -> None:
    """Let SIGINT end this process even if it was started with the signal ignored.

    A shell without job control lets its background processes ignore SIGINT. A user who sends it to
    such a process by hand wants it to end.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _shown(server: WebServer) -> AbstractContextManager[None]:
    """Show the address while the block runs; where it has a token, to the user only."""
    if server.link != server.url:
        return secret_notice(sys.stdout, "Dashboard", server.link)
    write(one_line(server.url))
    sys.stdout.flush()
    return nullcontext()
