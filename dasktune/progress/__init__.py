"""Telling the user how far an experiment is."""

from dasktune.progress.board import Board
from dasktune.progress.display import Display
from dasktune.progress.line import PlainLines, ProgressLine
from dasktune.progress.observer import ProgressObserver
from dasktune.progress.progress import Progress, render
from dasktune.progress.reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
from dasktune.progress.watched import watched

__all__ = [
    "Board",
    "CLIReporter",
    "Display",
    "JupyterNotebookReporter",
    "PlainLines",
    "Progress",
    "ProgressLine",
    "ProgressObserver",
    "ProgressReporter",
    "render",
    "watched",
]
