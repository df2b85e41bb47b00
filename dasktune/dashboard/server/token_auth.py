"""Token authentication of a server that takes commands or that other machines can reach.

The link for the user contains the token. The first request exchanges it for a cookie that no script
can read and no other site can send.
"""

from __future__ import annotations

from typing import Any

from bokeh.server.auth_provider import AuthProvider
from tornado.web import HTTPError

from dasktune.control.http_guard import RequestGuard, new_token

__all__ = ["TokenAuth"]


class TokenAuth(AuthProvider):  # type: ignore[misc]
    """Accepts requests with the token or its cookie, and refuses all others.

    Attributes
    ----------
    token : str
        The token in the link.
    """

    def __init__(self) -> None:
        self.token = new_token()
        self._guard = RequestGuard(self.token)
        # A secret besides the token, because a browser sends cookies to all ports of a machine.
        self._secret = new_token()
        self._cookies = RequestGuard(self._secret)
        self._name = f"dasktune-{new_token()[:8]}"
        super().__init__()

    @property
    def get_user(self) -> None:
        """None: `get_user_async` is used instead."""
        return

    @property
    def get_user_async(self) -> Any:
        """The function that authenticates each request."""
        return self._let_in

    async def _let_in(self, handler: Any) -> str:
        given = handler.get_query_argument("token", None)
        if given is not None and self._guard.check_token(given):
            handler.set_cookie(self._name, self._secret, httponly=True, samesite="Strict", path="/")
            # The redirect removes the token from the history and from the address bar.
            handler.redirect(handler.request.path)
            return "user"
        if self._cookies.check_token(handler.get_cookie(self._name)):
            return "user"
        raise HTTPError(403, reason="Use the link with the token")

    @property
    def login_url(self) -> None:
        """None: there is no login page."""
        return

    @property
    def get_login_url(self) -> Any:
        """The function that refuses requests without a user; there is no login page."""
        return self._refuse

    def _refuse(self, handler: Any) -> str:
        raise HTTPError(403)

    @property
    def login_handler(self) -> None:
        """None: there is no login page."""
        return

    @property
    def logout_url(self) -> None:
        """None: there is no logout page."""
        return

    @property
    def logout_handler(self) -> None:
        """None: there is no logout page."""
        return
