"""The command ``dasktune``: looking at experiments, running them, and checking clusters."""

from dasktune.cli.dispatch import main

__all__ = ["main"]
