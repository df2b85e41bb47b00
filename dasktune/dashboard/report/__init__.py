"""An experiment as one HTML file that needs nothing else."""

from dasktune.dashboard.report.report import to_html

__all__ = ["to_html"]
