"""Protection of the control server: token, Host header and Origin header.

A browser lets any web page send requests to servers on the user's machine. The token must therefore
not be a cookie: the browser would add it to the requests of foreign pages, too. A page whose domain
name resolves to this machine (DNS rebinding) is recognised by the Host header of its requests.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

#: Host names of this machine.
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

#: Number of random bytes in a token.
_TOKEN_BYTES: Final = 24

#: A longer token is rejected without a comparison, so that a token of megabytes costs no time.
_MAX_TOKEN_CHARACTERS: Final = 200


def new_token() -> str:
    """Return a random token of 48 hexadecimal digits (192 random bits).

    It may be a word of a command line, so it must not begin with a hyphen.
    """
    return secrets.token_hex(_TOKEN_BYTES)


class RequestGuard:
    """Checks token, host and origin of a request.

    Parameters
    ----------
    token : str
        The token that each request must have.
    names : collection of str, default=LOCAL_NAMES
        Allowed names and addresses of this server, without ports.

    Examples
    --------
    >>> guard = RequestGuard("secret")
    >>> guard.check_token("secret"), guard.check_token("guess"), guard.check_token(None)
    (True, False, False)
    >>> guard.host_allowed("localhost:8788"), guard.host_allowed("evil.example:8788")
    (True, False)
    """

    def __init__(self, token: str, names: Collection[str] = LOCAL_NAMES) -> None:
        self._token = token.encode()
        self._names = frozenset(name.lower() for name in names)

    def check_token(self, given: str | None) -> bool:
        """Whether `given` is the token. The comparison takes constant time."""
        if given is None or len(given) > _MAX_TOKEN_CHARACTERS:
            return False
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    def without_token(self, text: str) -> str:
        """Return a text with ``***`` in place of the token."""
        return text.replace(self._token.decode(), "***")

    def is_bearer(self, header: str | None) -> bool:
        """Whether an ``Authorization`` header is ``Bearer`` and the token."""
        scheme, _, token = (header or "").partition(" ")
        return scheme.lower() == "bearer" and self.check_token(token.strip())

    def host_allowed(self, host: str | None) -> bool:
        """Whether a ``Host`` header has an allowed name. The port may differ (port forwarding)."""
        try:
            name = urlsplit(f"//{host or ''}").hostname
        except ValueError:
            return False
        return name is not None and name.lower() in self._names

    def same_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a request comes from a page of this server, or from no page at all.

        A program sends no ``Origin`` header; a page of another server sends that server's address.

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
