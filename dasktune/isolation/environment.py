"""Decides which trials get a child process, its environment variables and working directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dasktune.trainable.spec import TrialSpec

#: Variables for the number of threads of numerical libraries, which read them at their import.
_THREAD_COUNTS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: The variable with the working directory before the change; Ray Tune sets it, too.
_BEFORE: Final = "TUNE_ORIG_WORKING_DIR"


def needs_process(spec: TrialSpec) -> bool:
    """Whether a trial runs in a child process.

    Parameters
    ----------
    spec : TrialSpec
        The trial. ``"auto"`` isolates a trial with a GPU or more than one CPU.

    Examples
    --------
    >>> from dasktune.storage.fs.storage import Storage
    >>> from dasktune.trial.resources import PlacementGroupFactory
    >>> spec = TrialSpec(
    ...     trial_id="a", incarnation=1, resources=PlacementGroupFactory([{"GPU": 0.5}]),
    ...     storage=Storage("/tmp/runs"), trial_dir="a", experiment_name="e", trial_name="a",
    ...     isolation="auto",
    ... )
    >>> needs_process(spec)
    True
    """
    if spec.isolation != "auto":
        return spec.isolation == "process"
    head = spec.resources.head_resources
    return head.get("GPU", 0) > 0 or spec.resources.head_cpus > 1


def environment_of(spec: TrialSpec) -> dict[str, str]:
    """Return the environment variables for the start of a trial's child process.

    The thread counts follow the trial's CPUs and not the worker's environment, in which Dask's
    nanny sets them to 1. The devices are those assigned to the trial; without an assignment the
    process sees the devices of its worker.
    """
    environment = thread_counts(spec.resources.head_cpus)
    if spec.devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(spec.devices)
    return environment


def thread_counts(cpus: float) -> dict[str, str]:
    """Return the variables with which numerical libraries use so many threads, at least one.

    Examples
    --------
    >>> thread_counts(2.5)["OMP_NUM_THREADS"]
    '2'
    """
    return dict.fromkeys(_THREAD_COUNTS, str(max(1, int(cpus))))


@contextmanager
def in_trial_directory(spec: TrialSpec) -> Iterator[None]:
    """Change to the trial's directory inside the ``with`` block, if the trial requests it.

    Parameters
    ----------
    spec : TrialSpec
        The trial. If it requests the change, its storage is on a disk.
    """
    if not spec.chdir:
        yield
        return
    place = spec.storage.child("trials", spec.trial_dir).inside()
    os.makedirs(place, exist_ok=True)
    before = os.getcwd()
    os.environ[_BEFORE] = before
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop(_BEFORE, None)
