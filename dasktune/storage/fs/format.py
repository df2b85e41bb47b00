"""The format of everything that dasktune stores: one number, in each kind of file.

The number changes only if a program for the old format would misunderstand a file in the new one.
Fields and events that are only new need no other number: an older version ignores them. What moves
in the code that pickles name has a table of its own, in ``dasktune.storage.fs.unpickling``.
"""

from __future__ import annotations

from typing import Final

from dasktune.errors import StorageError

FORMAT: Final = 1


def check_format(what: str, number: object) -> None:
    """Raise StorageError if the number in a file is not that of this version.

    Examples
    --------
    >>> check_format("the journal", 1)
    """
    if type(number) is not int or number != FORMAT:
        raise StorageError(
            f"{what} has format {number!r:.40}, and this dasktune reads format {FORMAT}. Use the "
            "version of dasktune that wrote it."
        )
