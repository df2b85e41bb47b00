"""Who may command an experiment over HTTP: whoever has the token, and no page of somebody else.

A browser sends what any page wants to any address that it can reach, such as to servers on its own
machine. So a token alone stands between a page and an experiment, and it must not be one that the
browser adds by itself. A page that has made its own name point here (DNS rebinding) is told by the
name that the browser has called.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

__all__ = ["LOCAL_NAMES", "Guard", "new_token"]

#: What this machine calls itself.
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

#: Bytes of a token.
_STRENGTH: Final = 24

#: Characters of a token that is compared at most, lest somebody sends megabytes.
_LONGEST: Final = 200


def new_token() -> str:
    """Return a token that nobody can guess, of letters, digits, ``-`` and ``_``."""
    return secrets.token_urlsafe(_STRENGTH)


class Guard:
    """Tells whether a request may be heeded.

    Parameters
    ----------
    token : str
        What whoever commands has to know.
    names : collection of str, default=LOCAL_NAMES
        Names and addresses by which this server may be called, without ports.

    Examples
    --------
    >>> guard = Guard("secret")
    >>> guard.knows("secret"), guard.knows("guess"), guard.knows(None)
    (True, False, False)
    >>> guard.is_called("localhost:8788"), guard.is_called("evil.example:8788")
    (True, False)
    """

    def __init__(self, token: str, names: Collection[str] = LOCAL_NAMES) -> None:
        self._token = token.encode()
        self._names = frozenset(name.lower() for name in names)

    def knows(self, given: str | None) -> bool:
        """Whether `given` is the token; takes equally long for all wrong ones of a length."""
        if given is None or len(given) > _LONGEST:
            return False
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    def is_bearer(self, header: str | None) -> bool:
        """Whether an ``Authorization`` header has the token."""
        scheme, _, token = (header or "").partition(" ")
        return scheme.lower() == "bearer" and self.knows(token.strip())

    def is_called(self, host: str | None) -> bool:
        """Whether a ``Host`` header calls this server by one of its names, at whatever port.

        The port may be another one where somebody forwards it.
        """
        try:
            name = urlsplit(f"//{host or ''}").hostname
        except ValueError:
            return False
        return name is not None and name.lower() in self._names

    def is_own(self, origin: str | None, host: str | None) -> bool:
        """Whether a request comes from a page of this server, or from no page.

        Parameters
        ----------
        origin : str or None
            The ``Origin`` header.
        host : str or None
            The ``Host`` header.
        """
        if origin is None:
            return True
        return origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
