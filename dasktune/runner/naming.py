"""The user's names for trials and their directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.callback import TrialStorage, TrialView
from dasktune.config import TuneConfig
from dasktune.config.validation import LONGEST_NAME, is_safe_name, normalised_name
from dasktune.errors import ConfigError, check
from dasktune.trial.trial import Trial


class Naming:
    """Calls the user's naming functions, once for each trial.

    Parameters
    ----------
    config : TuneConfig
        The configuration that holds the naming functions.
    trial_storage : TrialStorage
        Where trials keep their files.
    trials : mapping of str to Trial
        All trials. The experiment adds new ones to this mapping.
    """

    def __init__(self, config: TuneConfig, trial_storage: TrialStorage, trials: Mapping[str, Trial]) -> None:
        self._name, self._dirname = config.trial_name_creator, config.trial_dirname_creator
        self._trial_storage = trial_storage
        self._trials = trials
        #: Used names of directories in lower case: some disks ignore the case.
        self._used: set[str] | None = None

    def name(self, trial: Trial) -> None:
        """Set the name of a new trial and of its directory.

        Parameters
        ----------
        trial : Trial
            A trial that already has its configuration, tag and resources.

        Raises
        ------
        ConfigError
            If a function raises, or returns no valid name.
        """
        # The name comes first, because the function for the directory may use it.
        trial.name = self._call("trial_name_creator", self._name, trial)
        if self._used is None:
            # Not done in __init__, when a restored experiment may not have its trials yet.
            self._used = {one.folder.lower() for one in self._trials.values()}
        dirname = self._call("trial_dirname_creator", self._dirname, trial)
        trial.dirname = _unique(dirname, self._used)
        self._used.add(trial.folder.lower())

    def _call(self, what: str, function: Callable[[Any], str] | None, trial: Trial) -> str:
        if function is None:
            return ""
        try:
            name: object = function(TrialView(trial, self._trial_storage))
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(
                f"{what} must return a name for every trial, got {error!r} for "
                f"{trial.trial_id} with {trial.config!r}."
            ) from error
        if what == "trial_name_creator":
            check(isinstance(name, str) and name.isprintable() and name != "", what, _LINE, name)
        else:
            check(is_safe_name(name), what, _SAFE, name, "It need not be unique.")
            name = normalised_name(str(name))
        return str(name)


def _unique(dirname: str, used: set[str]) -> str:
    if dirname.lower() not in used:
        return dirname
    number, unique = 1, f"{dirname}_1"
    while unique.lower() in used:
        number += 1
        unique = f"{dirname}_{number}"
    return unique


_LINE = "a function that returns a line of text"
_SAFE = f"a function that returns a safe file name of at most {LONGEST_NAME} bytes (no separators, no '..')"
