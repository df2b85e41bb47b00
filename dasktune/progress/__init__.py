"""Progress of a running experiment on a terminal, in a notebook or in a log.

An observer counts the trials by the experiment's events; a display shows the counts. The web pages
are in ``dasktune.dashboard``.
"""

from dasktune.progress.display import Display
from dasktune.progress.line_display import PlainLines, ProgressLine
from dasktune.progress.observer import ProgressObserver
from dasktune.progress.observers import open_progress
from dasktune.progress.progress import Progress, render
from dasktune.progress.reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
from dasktune.progress.trial_counts import TrialCounts

__all__ = [
    "CLIReporter",
    "Display",
    "JupyterNotebookReporter",
    "PlainLines",
    "Progress",
    "ProgressLine",
    "ProgressObserver",
    "ProgressReporter",
    "TrialCounts",
    "open_progress",
    "render",
]
