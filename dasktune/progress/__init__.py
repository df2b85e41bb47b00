"""Telling the user how far an experiment is."""

from dasktune.progress.line import ProgressLine
from dasktune.progress.observer import ProgressObserver
from dasktune.progress.progress import Progress, render

__all__ = ["Progress", "ProgressLine", "ProgressObserver", "render"]
