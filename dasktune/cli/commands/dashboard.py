"""``dasktune dashboard``: a live dashboard of experiments."""

from __future__ import annotations

import argparse

from dasktune.cli.arguments import add_storage_options, storage_options
from dasktune.cli.output import write
from dasktune.text.formatting import one_line

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("path", metavar="PATH", help="the directory or URL of an experiment, or of several")
    add_storage_options(parser)
    parser.add_argument("--port", type=int, default=8788, help="the port (8788); 0 is a free one")
    parser.add_argument("--host", default="localhost", help="the interface (localhost)")
    parser.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="another address that browsers use, such as a proxy's",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    # Importing Bokeh is slow.
    from dasktune.dashboard.server.serve import serve

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
