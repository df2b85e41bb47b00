"""Which trials get a process of their own, and what its environment is."""

from __future__ import annotations

from dasktune.trainable.spec import TrialSpec

__all__ = ["environment_of", "needs_process"]

#: How many threads numerical libraries start. They read it when they are imported.
_THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def needs_process(spec: TrialSpec) -> bool:
    """Say whether a trial is to run in a process of its own.

    Parameters
    ----------
    spec : TrialSpec
        The trial. ``"auto"`` isolates one whose code has a GPU or more than one CPU to itself.

    Examples
    --------
    >>> from dasktune.storage.location import Storage
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
    """Return the variables that a trial's process needs to be started with.

    The thread counts follow the trial's CPUs whatever the worker's own environment says: Dask's
    nanny sets them to 1 for all its workers. The devices are those that were assigned; without an
    assignment the process sees what its worker sees.
    """
    threads = str(max(1, int(spec.resources.head_cpus)))
    environment = dict.fromkeys(_THREAD_COUNTS, threads)
    if spec.devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(spec.devices)
    return environment
