"""``dasktune dashboard``: experiments in the browser, live."""

from __future__ import annotations

import argparse

from dasktune.cli.arguments import add_storage_options, storage_options
from dasktune.cli.output import one_line, write

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    parser.add_argument(
        "path", metavar="PATH", help="an experiment's directory or URL, or one with several"
    )
    add_storage_options(parser)
    parser.add_argument("--port", type=int, default=8788, help="where to listen (8788); 0 is any")
    parser.add_argument("--host", default="localhost", help="at which interface (localhost)")
    parser.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="by which other name browsers reach it, as that of a proxy",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    # Bokeh takes a while to import.
    from dasktune.dashboard.server import serve

    server = serve(
        arguments.path,
        port=arguments.port,
        address=arguments.host,
        origins=arguments.origin,
        storage_options=storage_options(arguments),
    )
    try:
        write(one_line(server.link))
        server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.close()
    return 0
