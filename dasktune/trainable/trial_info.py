"""A trial in a few words, which may travel."""

from __future__ import annotations

from dataclasses import dataclass

from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["TrialInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialInfo:
    """Which trial this is: a value, for your own processes, threads and loggers.

    Of a trial's own code :func:`~dasktune.get_context` and :class:`~dasktune.Trainable` give it as
    ``trial_info``; elsewhere it says the same, as it needs no trial around it.

    Parameters
    ----------
    experiment_name : str
        The experiment's name.
    trial_id : str
        The trial's id, unique within the experiment.
    trial_name : str
        What it is called for people.
    trial_resources : PlacementGroupFactory
        What it holds while it runs.

    Examples
    --------
    >>> TrialInfo(
    ...     experiment_name="run", trial_id="a1b2c_00000", trial_name="deep",
    ...     trial_resources=PlacementGroupFactory([{"CPU": 1}]),
    ... ).trial_name
    'deep'
    """

    experiment_name: str
    trial_id: str
    trial_name: str
    trial_resources: PlacementGroupFactory
