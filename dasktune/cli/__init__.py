"""The command ``dasktune``: show, run, resume and stop experiments, and check clusters.

Each subcommand is a module of ``dasktune.cli.commands``; this folder holds what they share.
"""

from dasktune.cli.command_line import main

__all__ = ["main"]
