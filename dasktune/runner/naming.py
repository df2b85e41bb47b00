"""What trials and their directories are called, if the user says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.callback import TrialPlaces, TrialView
from dasktune.config import TuneConfig
from dasktune.errors import ConfigError, check
from dasktune.rules import LONGEST_NAME, is_safe_name
from dasktune.trial.trial import Trial

__all__ = ["Naming"]


class Naming:
    """Asks the user's functions for names, once for each trial.

    Parameters
    ----------
    config : TuneConfig
        Has the functions.
    places : TrialPlaces
        Where trials keep things.
    trials : mapping of str to Trial
        All that there are; grows.
    """

    def __init__(
        self, config: TuneConfig, places: TrialPlaces, trials: Mapping[str, Trial]
    ) -> None:
        self._name, self._dirname = config.trial_name_creator, config.trial_dirname_creator
        self._places = places
        self._trials = trials
        #: Names of directories; on some disks those that differ in case only are one.
        self._taken: set[str] | None = None

    def name(self, trial: Trial) -> None:
        """Give a trial that does not exist yet its name and its directory's.

        Parameters
        ----------
        trial : Trial
            Its configuration, tag and resources; changed.

        Raises
        ------
        ConfigError
            If a function raises, or returns what is no name.
        """
        # The directory's may be made of the other one.
        trial.name = self._asked("trial_name_creator", self._name, trial)
        if self._taken is None:
            # Not before: an experiment may still be brought to where it ended.
            self._taken = {one.folder.lower() for one in self._trials.values()}
        dirname = self._asked("trial_dirname_creator", self._dirname, trial)
        trial.dirname = _unique(dirname, self._taken)
        self._taken.add(trial.folder.lower())

    def _asked(self, what: str, function: Callable[[Any], str] | None, trial: Trial) -> str:
        if function is None:
            return ""
        try:
            name: object = function(TrialView(trial, self._places))
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(
                f"{what} must return a name for every trial, got {error!r} for "
                f"{trial.trial_id} with {trial.config!r}."
            ) from error
        if what == "trial_name_creator":
            check(isinstance(name, str) and name.isprintable() and name != "", what, _LINE, name)
        else:
            check(is_safe_name(name), what, _SAFE, name, "It need not be unique.")
        return str(name)


def _unique(dirname: str, taken: set[str]) -> str:
    if dirname.lower() not in taken:
        return dirname
    number, unique = 1, f"{dirname}_1"
    while unique.lower() in taken:
        number += 1
        unique = f"{dirname}_{number}"
    return unique


_LINE = "a function that returns a line of text"
_SAFE = (
    f"a function that returns a safe file name of at most {LONGEST_NAME} bytes (no separators, "
    "no '..')"
)
