"""What each experiment on a shared cluster holds, has a right to and waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dasktune.text.formatting import one_line, plural

#: Number of other experiments that a message names.
_MOST_NAMED: Final = 3

#: Width of a name that another user has chosen.
_NAME_WIDTH: Final = 40

#: Names of resources that have a plural.
_COUNTED: Final = ("CPU", "GPU")

_MIB: Final = 2**20


def amounts_text(amounts: Mapping[str, float], totals: Mapping[str, float]) -> str:
    """Return amounts of resources, and how much there is of each, as text.

    Parameters
    ----------
    amounts, totals : mapping
        Amounts by resource; memory in bytes. Memory is in no total if some worker has no limit.

    Examples
    --------
    >>> amounts_text({"CPU": 6, "memory": 3 << 30}, {"CPU": 8, "memory": 8 << 30})
    '6 of 8 CPUs and 3072 of 8192 MiB of memory'
    """
    parts = []
    for kind, amount in amounts.items():
        total = totals.get(kind, 0.0)
        if kind == "memory":
            of = f" of {round(total / _MIB)}" if total else ""
            parts.append(f"{round(amount / _MIB)}{of} MiB of memory")
            continue
        noun = plural(kind, total) if kind in _COUNTED else one_line(kind, _NAME_WIDTH)
        parts.append(f"{round(amount, 2):g} of {round(total, 2):g} {noun}")
    return " and ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentShare:
    """The share of one experiment.

    Parameters
    ----------
    name : str
        The name that users know. Two experiments may have the same.
    weight, priority : float
        See :class:`~dasktune.RunConfig`.
    held : tuple of (str, float)
        The amounts that its trials hold, by resource.
    share : float
        The fraction of the cluster that this is, by the resource of which it is the largest one.
    due : float or None
        The fraction that is due to it; None while every experiment has all that it requests.
    waiting : int
        Number of trials that would start now if they had room.
    waiting_s : float or None
        For how many seconds some have waited; None if none waits.
    is_own : bool, default=False
        Whether it is the experiment that reads this.
    """

    name: str
    weight: float
    priority: float
    held: tuple[tuple[str, float], ...]
    share: float
    due: float | None
    waiting: int
    waiting_s: float | None
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShares:
    """The shares of the experiments on a cluster.

    Parameters
    ----------
    totals : tuple of (str, float)
        The resources of the cluster that no other program uses.
    experiments : tuple of ExperimentShare
        The experiments, those with the largest share first.
    """

    totals: tuple[tuple[str, float], ...]
    experiments: tuple[ExperimentShare, ...]

    @classmethod
    def from_plain(
        cls, totals: Mapping[str, float], experiments: Sequence[Mapping[str, Any]]
    ) -> ClusterShares:
        """Return the shares that the plugin on the scheduler has sent as plain values."""
        shares = (
            ExperimentShare(**{**one, "held": tuple(sorted(one["held"].items()))}) for one in experiments
        )
        return cls(totals=tuple(sorted(totals.items())), experiments=tuple(shares))

    def held_text(self, one: ExperimentShare) -> str:
        """Return what an experiment holds, as text.

        Examples
        --------
        >>> facts = {"weight": 1, "priority": 0, "due": None, "waiting": 0, "waiting_s": None}
        >>> plain = [{"name": "a", "held": {"CPU": 6}, "share": 0.75, **facts}]
        >>> shares = ClusterShares.from_plain({"CPU": 8}, plain)
        >>> shares.held_text(shares.experiments[0])
        '6 of 8 CPUs'
        """
        return amounts_text(dict(one.held), dict(self.totals))

    @property
    def waiting_text(self) -> str:
        """Why the trials of the reader wait; empty if they do not wait for other experiments.

        Examples
        --------
        >>> facts = {"weight": 1, "priority": 0, "due": 0.5, "waiting": 2, "waiting_s": 3.0}
        >>> own = {"name": "a", "held": {"CPU": 2}, "share": 0.25, **facts, "is_own": True}
        >>> other = {"name": "b", "held": {"CPU": 6}, "share": 0.75, **facts}
        >>> ClusterShares.from_plain({"CPU": 8}, [other, own]).waiting_text
        'waits for its share: experiment b holds 6 of 8 CPUs'
        """
        own = next((one for one in self.experiments if one.is_own), None)
        others = [one for one in self.experiments if not one.is_own and one.held]
        if own is None or not own.waiting or own.due is None or not others:
            return ""
        # Shares of whole trials alternate. The experiment that has too much by a part of a trial
        # waits for its next turn.
        what = "waits for its share" if own.share < own.due else "has its share"
        named = [
            f"experiment {one_line(one.name, _NAME_WIDTH)} holds {self.held_text(one)}"
            for one in others[:_MOST_NAMED]
        ]
        more = len(others) - len(named)
        if more:
            named.append(f"{more} {plural('other', more)} hold more" if more > 1 else "1 other holds more")
        return f"{what}: {', '.join(named)}"
