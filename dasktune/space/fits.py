"""Whether a configuration that a person has written is one of a search space."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from dasktune.errors import check
from dasktune.space.ranges import Float, Integer

__all__ = ["check_fits"]


def check_fits(space: Mapping[str, Any], config: Mapping[str, Any], where: str = "config") -> None:
    """Refuse a configuration that lacks what a search space has, or has no numbers where it must.

    Values beyond the range of a domain are taken, and names that the space does not have.

    Parameters
    ----------
    space : mapping
        The search space as the user wrote it.
    config : mapping
        The configuration.
    where : str, default="config"
        What the configuration is called in an error.

    Raises
    ------
    ConfigError
        If it does not fit.

    Examples
    --------
    >>> from dasktune.space import uniform
    >>> check_fits({"lr": uniform(0, 1)}, {"lr": "fast"})
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: config['lr'] must be a finite number, got 'fast'
    """
    missing = [name for name in space if name not in config]
    hint = f"Missing: {missing}."
    check(not missing, where, "a whole configuration of the search space", dict(config), hint)
    for name, wanted in space.items():
        given, place = config[name], f"{where}[{name!r}]"
        if isinstance(wanted, Float | Integer):
            whole = isinstance(given, int) and not isinstance(given, bool)
            if isinstance(wanted, Integer):
                check(whole, place, "an int", given)
            else:
                fits = whole or isinstance(given, float)
                check(fits and isfinite(given), place, "a finite number", given)
        elif isinstance(wanted, Mapping) and "grid_search" not in wanted:
            check(isinstance(given, Mapping), place, "a mapping", given)
            check_fits(wanted, given, place)
