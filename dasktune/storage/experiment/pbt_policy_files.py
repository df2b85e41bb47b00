"""``pbt_global.txt`` and ``pbt_policy_<trial>.txt``: the exploits of PBT in Ray Tune's format.

Each line is a JSON list: the clone, the donor, the ``training_iteration`` of each, the donor's
configuration, and the clone's new one. The first file has all exploits. A trial's file has the
exploits that have led to its current state. An object store cannot append, so the files are always
replaced as a whole. So no line is lost or repeated, even if a driver dies while writing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dasktune.storage.journal.json_lines import plain


class PbtPolicyFiles:
    r"""Builds the content of the policy files; each row is encoded only once.

    Examples
    --------
    >>> log = PbtPolicyFiles()
    >>> rows = [["t_1", "t_0", 4, 5, {"lr": 0.1}, {"lr": 0.12}]]
    >>> dict(log.files("t_1", rows, [0]))["pbt_policy_t_1.txt"]
    b'["t_1", "t_0", 4, 5, {"lr": 0.1}, {"lr": 0.12}]\n'
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def files(
        self, trial_dir: str, rows: Sequence[Sequence[Any]], ancestry: Sequence[int]
    ) -> list[tuple[str, bytes]]:
        """Return ``(name, content)`` of both policy files.

        Parameters
        ----------
        trial_dir : str
            Name of a trial's directory.
        rows : sequence
            All exploits: those of the last call, and perhaps more.
        ancestry : sequence of int
            Indices of the exploits that have led to the trial's current state.
        """
        for row in rows[len(self._lines) :]:
            self._lines.append(json.dumps(plain(row), allow_nan=False).encode("ascii") + b"\n")
        own = b"".join(self._lines[number] for number in ancestry)
        return [
            ("pbt_global.txt", b"".join(self._lines)),
            (f"pbt_policy_{trial_dir}.txt", own),
        ]
