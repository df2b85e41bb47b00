"""The report of an experiment as one HTML file, with its tables and texts.

The figures are in ``dasktune.dashboard.figures``; the web server shows the same tables.
"""

from dasktune.dashboard.report.html_report import to_html

__all__ = ["to_html"]
