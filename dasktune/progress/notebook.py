"""Show progress as HTML in the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TextIO

from dasktune.progress.display import Display
from dasktune.progress.progress import Progress, render, split_usage
from dasktune.progress.progress_table import progress_table
from dasktune.progress.trial_counts import TrialCounts
from dasktune.text.html_template import render_html
from dasktune.text.text_table import html_table

_HTML: Final = """
<div style="font-family:monospace">
{% if end %}<progress max="{{ end }}" value="{{ finished }}" style="width:100%"></progress>{% endif %}
{% for line in summary if line %}<div>{{ line }}</div>{% endfor %}
{{ table }}
{% if lines %}<pre>{{ lines }}</pre>{% endif %}
</div>
"""


class NotebookCell:
    """HTML in the output of a cell; each update replaces the previous HTML.

    All calls must come from one thread. A saved notebook keeps the last HTML.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, html: str) -> None:
        """Show HTML.

        Parameters
        ----------
        html : str
            HTML in which all user text is escaped.
        """
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


class NotebookDisplay(Display):
    """Shows a bar, a line and the first trials in the output of a cell.

    Parameters
    ----------
    stream : text stream or None
        The stream of printed lines.
    """

    interval_s = 1.0
    shows_trials = True

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._cell = NotebookCell()

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Replace the HTML."""
        self._cell.draw(progress_html(progress, trial_counts))

    def end(self, progress: Progress, trial_counts: TrialCounts, lines: Sequence[str]) -> None:
        """Replace the HTML by the final progress, with lines below it."""
        self._cell.draw(progress_html(progress, trial_counts, lines))


def progress_html(progress: Progress, trial_counts: TrialCounts, lines: Sequence[str] = ()) -> str:
    """Return the progress as HTML.

    Parameters
    ----------
    progress : Progress
        The counts of the experiment.
    trial_counts : TrialCounts
        The trials.
    lines : sequence of str, default=()
        Lines below the table.
    """
    table = progress_table(trial_counts)
    rest, usage = split_usage(progress)
    shown = html_table(table) if len(table) > 1 else ""
    counts = {"end": progress.total, "finished": progress.finished}
    return render_html(_HTML, summary=(render(rest), usage), table=shown, lines="\n".join(lines), **counts)
