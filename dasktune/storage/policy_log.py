"""``pbt_global.txt`` and ``pbt_policy_<trial>.txt``: who was cloned from whom, as Ray Tune has it.

Each line is a JSON list: the clone, the donor, what ``training_iteration`` each had come to, the
donor's configuration, and the one that was made of it for the clone. The first file has all of
them, and a trial's own those that have led to what it is now. An object store cannot append, so
the files are written whole: and so nothing is lost or stands there twice, whoever dies when.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dasktune.storage.json_lines import plain

__all__ = ["PolicyLog"]


class PolicyLog:
    r"""Makes the files, each row into text only once.

    Examples
    --------
    >>> log = PolicyLog()
    >>> rows = [["t_1", "t_0", 4, 5, {"lr": 0.1}, {"lr": 0.12}]]
    >>> dict(log.files("t_1", rows, [0]))["pbt_policy_t_1.txt"]
    b'["t_1", "t_0", 4, 5, {"lr": 0.1}, {"lr": 0.12}]\n'
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def files(
        self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]
    ) -> list[tuple[str, bytes]]:
        """Return names and contents.

        Parameters
        ----------
        trial_dir : str
            Name of a trial's directory.
        rows : sequence
            All there are; those of the last call and perhaps more.
        ancestry : sequence of int
            Which of them have led to the trial.
        """
        for row in rows[len(self._lines) :]:
            self._lines.append(json.dumps(plain(row), allow_nan=False).encode("ascii") + b"\n")
        own = b"".join(self._lines[number] for number in ancestry)
        return [
            ("pbt_global.txt", b"".join(self._lines)),
            (f"pbt_policy_{trial_dir}.txt", own),
        ]
