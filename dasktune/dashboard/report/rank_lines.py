"""The ranks of a distributed trial as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dasktune.dashboard.model.rank_places import RANK_COLUMNS
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.text.text_table import table_text

#: Maximum number of ranks listed: those for which the others have waited longest.
_MOST_RANKS: Final = 16


def rank_lines(trial: TrialProjection) -> Iterator[str]:
    """Yield a table of the ranks of a trial's last attempt; nothing for a trial of one process.

    Parameters
    ----------
    trial : TrialProjection
        The trial.
    """
    ranks = trial.ranks
    if ranks is None:
        return
    rows = list(ranks.rows())
    if len(rows) > _MOST_RANKS:
        yield f"ranks: {ranks.number}, the {_MOST_RANKS} slowest"
        rows = sorted(sorted(rows, key=lambda row: -row[-1])[:_MOST_RANKS])
    else:
        yield f"ranks: {ranks.number}"
    for line in table_text(RANK_COLUMNS, rows).splitlines():
        yield f"  {line}"
