"""The commands of users in a journal, with who issued them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from dasktune.text.formatting import one_line
from dasktune.trial.metrics import number

#: Commands that are kept; older ones are in the journal only.
_MOST: Final = 20
#: The commands by the event that the journal has of each.
_NAMES: Final = {
    "StopRequested": "stop the experiment",
    "InterruptRequested": "end the run",
    "TrialStopRequested": "stop",
    "TrialPauseRequested": "pause",
    "TrialUnpauseRequested": "unpause",
    "TrialCheckpointRequested": "checkpoint",
    "TrialAddRequested": "add",
    "HoldRequested": "hold",
    "ReleaseRequested": "release",
    "ShareRequested": "set share",
}


class CommandLog:
    """Collects the last commands of which the journal says who issued them.

    Examples
    --------
    >>> log = CommandLog()
    >>> log.apply({"event": "TrialStopRequested", "trial_id": "a", "time": 0.0, "by": "ann@node7"})
    >>> log.rows[0]["command"], log.rows[0]["by"]
    ('stop a', 'ann@node7')
    """

    def __init__(self) -> None:
        self._rows: deque[dict[str, str]] = deque(maxlen=_MOST)
        #: Number of all such commands.
        self.total = 0

    @property
    def rows(self) -> list[dict[str, str]]:
        """The last commands with their time, oldest first."""
        return list(self._rows)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply the next record of the journal."""
        name, by = _NAMES.get(str(record.get("event"))), record.get("by")
        if name is None or not isinstance(by, str) or not by:
            return
        self.total += 1
        # The values of a share and the ID of a trial; any program may have written the journal.
        values = [
            f"{key} {value:g}"
            for key in ("weight", "priority", "yields_after")
            if (value := number(record.get(key))) is not None
        ]
        words = [name, str(record.get("trial_id") or ""), " ".join(values)]
        command = one_line(" ".join(word for word in words if word))
        self._rows.append({"time": _time(record), "command": command, "by": one_line(by)})


def _time(record: Mapping[str, Any]) -> str:
    with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(record["time"]).astimezone().isoformat(timespec="seconds")
    return ""
