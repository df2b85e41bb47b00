"""Who may see the pages of a server that can do harm, or that others can reach.

The token stands in the link that the user is given. It is taken from there once, and a cookie that
no script can read, and no other site can send, stands for it from then on.
"""

from __future__ import annotations

from typing import Any

from bokeh.server.auth_provider import AuthProvider
from tornado.web import HTTPError

from dasktune.guard import Guard, new_token

__all__ = ["TokenEntrance"]


class TokenEntrance(AuthProvider):  # type: ignore[misc]
    """Lets in who has the token, and sends nobody anywhere else.

    Attributes
    ----------
    token : str
        What stands in the link.
    """

    def __init__(self) -> None:
        self.token = new_token()
        self._guard = Guard(self.token)
        # Not the token itself: a cookie is sent to all ports of a machine.
        self._secret = new_token()
        self._cookies = Guard(self._secret)
        self._name = f"dasktune-{new_token()[:8]}"
        super().__init__()

    @property
    def get_user(self) -> None:
        """Nothing: `get_user_async` can answer for itself."""
        return

    @property
    def get_user_async(self) -> Any:
        """What tells who somebody is, for each request."""
        return self._let_in

    async def _let_in(self, handler: Any) -> str:
        given = handler.get_query_argument("token", None)
        if given is not None and self._guard.knows(given):
            handler.set_cookie(self._name, self._secret, httponly=True, samesite="Strict", path="/")
            # Lest the token stands in the history, and in what is copied from the address bar.
            handler.redirect(handler.request.path)
            return "user"
        if self._cookies.knows(handler.get_cookie(self._name)):
            return "user"
        raise HTTPError(403, reason="Use the link with the token")

    @property
    def login_url(self) -> None:
        """Nowhere."""
        return

    @property
    def get_login_url(self) -> Any:
        """What is asked where to send somebody: nowhere."""
        return self._refuse

    def _refuse(self, handler: Any) -> str:
        raise HTTPError(403)

    @property
    def login_handler(self) -> None:
        """Nobody."""
        return

    @property
    def logout_url(self) -> None:
        """Nowhere."""
        return

    @property
    def logout_handler(self) -> None:
        """Nobody."""
        return
