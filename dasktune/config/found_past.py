"""`FoundPast`, what was found in the places of ``TuneConfig(learn_from=...)``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from dasktune.errors import without_passwords


@dataclass(frozen=True, slots=True)
class FoundPast:
    """The value of ``learn_from`` when the experiments have been read.

    A `Tuner` replaces the places by it, and stores it. So a later driver does not look again: the
    data are in the stored searcher.

    Parameters
    ----------
    places : tuple of str
        The places, without passwords.
    text : str
        One line that says what was found.

    Examples
    --------
    >>> FoundPast(("s3://bucket/tuning",), "learns from 1 experiment with 20 trials: a (20)").places
    ('s3://bucket/tuning',)
    """

    places: tuple[str, ...]
    text: str


def places_of(learn_from: object) -> tuple[str, ...]:
    """Return the places of any value of ``learn_from``, without passwords; none for None.

    Parameters
    ----------
    learn_from : str, path, sequence of them, FoundPast or None
        The value.

    Examples
    --------
    >>> places_of("ftp://me:hunter2@host/x"), places_of(["a", "b"]), places_of(None)
    (('ftp://***@host/x',), ('a', 'b'), ())
    """
    if learn_from is None:
        return ()
    if isinstance(learn_from, FoundPast):
        return learn_from.places
    given: Any = learn_from if isinstance(learn_from, list | tuple) else [learn_from]
    return tuple(without_passwords(os.fspath(one)) for one in given)


def is_unread(learn_from: object) -> bool:
    """Whether a value of ``learn_from`` names places that have not been read yet."""
    return learn_from is not None and not isinstance(learn_from, FoundPast)


def notes_of(learn_from: object) -> list[str]:
    """Return the lines that a display of progress shows first: what was found, if there is any."""
    return [learn_from.text] if isinstance(learn_from, FoundPast) else []
