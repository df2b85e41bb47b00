"""Judges the findings of the checks of a cluster: how severe each is, and what to do about it.

These functions do not call the cluster. ``doctor`` collects their arguments from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import first_few

#: Difference of clocks in seconds from which on times in results are confusing.
_DRIFT: Final = 2.0

#: The key of Dask's scheduler in mappings whose other keys are addresses of workers.
SCHEDULER: Final = "the scheduler"

#: Largest number of workers that a finding names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check.

    Parameters
    ----------
    level : {"ok", "warn", "fail"}
        Whether the check passed, passed with a warning, or failed.
    subject : str
        What was checked.
    finding : str
        The finding.
    advice : str, default=""
        What to do about it.

    Examples
    --------
    >>> Diagnosis("ok", "python", "3.11 everywhere").level
    'ok'
    """

    level: Literal["ok", "warn", "fail"]
    subject: str
    finding: str
    advice: str = ""


def diagnose_connection(where: str, *, is_direct: bool | None) -> Diagnosis:
    """Judge the way from this process to the workers.

    Parameters
    ----------
    where : str
        The scheduler.
    is_direct : bool or None
        Whether the workers are reached directly; None if no worker answers at all, which is not the
        fault of the way.
    """
    if is_direct is None:
        return Diagnosis("ok", "connection", where)
    if is_direct:
        return Diagnosis("ok", "connection", f"{where}; workers are reached directly")
    return Diagnosis(
        "warn",
        "connection",
        f"{where}; no worker was reached directly",
        "All calls go through the scheduler, which is slower. Run the driver inside the "
        "cluster's network, or submit() it.",
    )


def diagnose_workers(workers: Sequence[WorkerCapacity], silent: set[str]) -> Iterator[Diagnosis]:
    """Judge the workers of a cluster.

    Parameters
    ----------
    workers : sequence of WorkerCapacity
        All workers of the cluster.
    silent : set of str
        Addresses of the workers that do not answer.
    """
    if not workers:
        yield Diagnosis(
            "warn",
            "workers",
            "there are none",
            "An experiment waits for them: start some, or let the cluster scale up.",
        )
        return
    hosts = Counter(one.host for one in workers)
    if silent:
        yield Diagnosis(
            "fail",
            "workers",
            f"{len(silent)} of {len(workers)} do not answer: {name_some(silent)}",
            "They hang, or have lost their scheduler: restart them.",
        )
    else:
        finding = f"{len(workers)} on {len(hosts)} {'host' if len(hosts) == 1 else 'hosts'}"
        yield Diagnosis("ok", "workers", finding)
    paused = [one.address for one in workers if one.status == "paused"]
    if paused:
        yield Diagnosis(
            "warn",
            "workers",
            f"paused for lack of memory: {name_some(paused)}",
            "Give them more, or run fewer tasks there.",
        )
    alone = [one.address for one in workers if not one.nanny]
    if alone:
        yield Diagnosis(
            "warn",
            "workers",
            f"{len(alone)} without a nanny: {name_some(alone)}",
            "A trial that kills its worker leaves one fewer: start them with --nanny.",
        )


def diagnose_clocks(drifts: Mapping[str, float]) -> Iterator[Diagnosis]:
    """Judge the clocks of the cluster's processes.

    Parameters
    ----------
    drifts : mapping
        Seconds by which each process is ahead of this one.
    """
    late = {where: drift for where, drift in drifts.items() if abs(drift) > _DRIFT}
    if late:
        worst = max(late, key=lambda where: abs(late[where]))
        yield Diagnosis(
            "warn",
            "clock",
            f"{len(late)} differ from ours, {worst} by {late[worst]:.1f} s",
            "Nothing relies on them, but times in results will confuse you: run NTP there.",
        )
    elif drifts:
        yield Diagnosis("ok", "clock", f"within {_DRIFT:g} s of ours")


def diagnose_python(
    ours: str, foreign: Mapping[str, str], answers: Mapping[str, Mapping[str, Any]]
) -> Diagnosis:
    """Judge the versions of Python.

    Parameters
    ----------
    ours : str
        The version in this process.
    foreign : mapping
        The version of each worker whose minor version differs, by address.
    answers : mapping
        The answer of each process, by address; its ``"python"`` is the version.
    """
    if foreign:
        address, theirs = next(iter(foreign.items()))
        return Diagnosis(
            "fail",
            "python",
            f"{ours} here, but {theirs} on {len(foreign)} workers, {address} for one",
            "Functions do not cross minor versions: start them with the same Python.",
        )
    others = sorted({one["python"] for one in answers.values()} - {ours})
    also = f" (and {', '.join(others)}, which fits)" if others else ""
    return Diagnosis("ok", "python", f"{ours}{also}")


def diagnose_packages(
    ours: Mapping[str, str], answers: Mapping[str, Mapping[str, Any]]
) -> Iterator[Diagnosis]:
    """Judge the versions of packages.

    Parameters
    ----------
    ours : mapping of str to str
        The version of each package in this process, by name.
    answers : mapping
        The answer of each process, by address, with its versions; None where a package is missing.
    """
    for name, version in ours.items():
        found = diagnose_package(name, version, {where: one[name] for where, one in answers.items()})
        # Each release of distributed requires the same one of Dask, so both differ for one reason.
        is_said = name == "dask" and all(one["dask"] == one["distributed"] for one in answers.values())
        if found.level == "ok" or not is_said:
            yield found


def diagnose_package(name: str, ours: str, theirs: Mapping[str, str | None]) -> Diagnosis:
    """Judge the versions of a package.

    Parameters
    ----------
    name : str
        The package.
    ours : str
        The version in this process.
    theirs : mapping
        The version in each process; None where it is missing.
    """
    # The scheduler needs neither: it gets only functions that are pickled by value and use nothing
    # but Dask's requirements.
    spared = (SCHEDULER,) if name in ("dasktune", "numpy") else ()
    needed = {where: one for where, one in theirs.items() if where not in spared}
    missing = [where for where, one in needed.items() if one is None]
    others = {where: one for where, one in needed.items() if one not in (None, ours)}
    if not missing and not others:
        return Diagnosis("ok", name, f"{ours} everywhere")
    is_vital = name == "dasktune"
    if missing:
        finding = f"{ours} here, missing on {len(missing)}: {name_some(missing)}"
    else:
        where, one = next(iter(others.items()))
        finding = f"{ours} here, other versions on {len(others)}: {one} on {where} for one"
    return Diagnosis(
        "fail" if is_vital else "warn",
        name,
        finding,
        f"Install dasktune {ours} there, from the same checkout or wheel as here."
        if is_vital
        else f"Objects may not unpickle across versions: pip install {name}=={ours}",
    )


def diagnose_resources(workers: Sequence[WorkerCapacity]) -> Iterator[Diagnosis]:
    """Judge the resources of the workers; there must be at least one.

    Parameters
    ----------
    workers : sequence of WorkerCapacity
        All workers of the cluster.
    """
    kinds = dict.fromkeys(kind for one in workers for kind in one.resource_names)
    totals = ", ".join(f"{kind} {_amount(kind, sum(one.total(kind) for one in workers))}" for kind in kinds)
    yield Diagnosis("ok", "resources", totals)
    undeclared = [one.address for one in workers if "CPU" not in one.resources]
    if undeclared:
        yield Diagnosis(
            "ok",
            "resources",
            f"{len(undeclared)} of {len(workers)} workers declare no CPU; "
            "an experiment makes them declare one for each thread",
        )
    # A paused worker is named among the workers, for the same reason.
    others = [one for one in workers if one.memory_limit and one.status != "paused"]
    crowded = [one.address for one in others if one.memory > 0.7 * one.memory_limit]
    if crowded:
        yield Diagnosis(
            "warn",
            "resources",
            f"more than 70 % of the memory is in use on {name_some(crowded)}",
            "Trials there may be killed: free it, or restart the workers.",
        )


def diagnose_shared_storage(storage: Storage, found: Mapping[str, str | bool]) -> Iterator[Diagnosis]:
    """Judge whether the hosts share a storage.

    Parameters
    ----------
    storage : Storage
        The storage.
    found : mapping
        By host, whether the host shares the storage, or the error as text.
    """
    for host, answer in found.items():
        if isinstance(answer, str):
            yield Diagnosis("fail", "storage", f"{host}: {answer}")
    blind = [host for host, answer in found.items() if answer is False]
    if blind:
        yield Diagnosis(
            "warn",
            "storage",
            f"{storage} is another directory on {name_some(blind)}",
            "Checkpoints go through the driver, and submit() needs it shared: use a disk "
            "that all hosts mount at this path, or an object store such as s3://.",
        )
    seeing = [host for host, answer in found.items() if answer is True]
    if seeing:
        word = "host reads and writes" if len(seeing) == 1 else "hosts read and write"
        yield Diagnosis("ok", "storage", f"{len(seeing)} {word} the same")


def name_some(addresses: Iterable[str]) -> str:
    """Return the first few addresses as text, and how many more there are."""
    return first_few(sorted(addresses), _NAMED)


def _amount(kind: str, amount: float) -> str:
    if kind != "memory":
        return f"{amount:g}"
    return "unlimited" if amount == float("inf") else f"{amount / 2**30:.1f} GiB"
