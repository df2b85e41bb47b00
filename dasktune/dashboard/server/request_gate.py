"""The gate of the dashboard: each request and WebSocket passes it before Bokeh sees it.

A browser lets any web page send requests to servers on the user's machine. The gate refuses
requests that a page of another origin has caused, and those with an unknown host name (DNS
rebinding). A page of another origin may only link to the dashboard.

A server that takes commands, or that other machines can reach, has a token and a random path. The
link for the user contains both. The first request exchanges the token for a cookie that no script
can read and no other site can send. Browsers send a cookie to every port of a machine, so it is
valid for the random path only, which no other server knows.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import logging
import socket
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from bokeh.resources import Resources
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import create_hosts_allowlist, match_host
from bokeh.util.token import get_session_id, get_token_payload
from tornado.httputil import HTTPServerRequest
from tornado.web import OutputTransform, RequestHandler

from dasktune.control.http_guard import LOCAL_NAMES, RequestGuard, new_token

logger = logging.getLogger(__name__)

#: Scripts and data come only from this server, and no other page may frame this one. Bokeh's
#: callbacks need `unsafe-eval`, and its page contains an inline script.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)

#: The scripts of Bokeh that the pages need. By default each page would also load MathJax, which is
#: as large as these together, and WebGL.
_SCRIPTS: Final = ("bokeh", "bokeh-widgets", "bokeh-tables")

#: The only path that needs no token: Bokeh's icon, for each browser tab.
_ICON: Final = "/favicon.ico"

#: Bokeh compresses the content of a session's token and gives it this name. The content of this
#: server's tokens has less than 1 kB.
_PACKED: Final = "__bk__zlib_"
_LARGEST_PAYLOAD: Final = 16 << 10

#: Addresses that stand for all interfaces.
_EVERYWHERE: Final = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class _GateAnswer:
    """The gate's own answer to a request that does not reach Bokeh."""

    status: int
    reason: str
    cookie: tuple[str, str, str] | None = None
    location: str = ""


class RequestGate:
    """Decides which requests reach the pages of a dashboard.

    Parameters
    ----------
    address : str
        The interface of the server; ``""`` for all.
    origins : sequence of str
        Other names of this server that browsers may use, as ``host:port``.
    guarded : bool
        Whether requests need a token.

    Raises
    ------
    ValueError
        If an origin is malformed.

    Attributes
    ----------
    token : str
        The token in the link; empty without one.
    prefix : str
        The path of the pages, such as ``"/x7q"``; empty for the root.
    """

    def __init__(self, address: str, origins: Sequence[str], *, guarded: bool) -> None:
        self._guard = RequestGuard("", {*LOCAL_NAMES, address.lower()} - {""})
        self._anywhere = address in _EVERYWHERE
        self._machine = socket.gethostname().lower()
        self._origins = create_hosts_allowlist(list(origins), None) if origins else []
        self.token = new_token() if guarded else ""
        self.prefix = f"/{new_token()}" if guarded else ""
        self._tokens = RequestGuard(self.token)
        self._prefixes = RequestGuard(self.prefix)
        # A secret besides the token: the cookie outlives the link in the browser.
        self._secret = new_token()
        self._cookies = RequestGuard(self._secret)
        self._cookie_name = f"dasktune-{new_token()[:8]}"

    def answer(self, request: HTTPServerRequest) -> _GateAnswer | None:
        """Return the answer to a request that must not reach Bokeh; None if it may.

        Parameters
        ----------
        request : HTTPServerRequest
            The request. Its body has not been read.
        """
        refusal = self._refusal(request)
        # Browsers request the icon of a page without its path, and so without the cookie.
        if refusal is None and self.token and request.path != _ICON:
            refusal = self._authenticate(request)
        if refusal is not None:
            return refusal
        if request.path.endswith("/autoload.js"):
            return _GateAnswer(status=404, reason="Other pages cannot embed this one")
        if request.path.endswith("/ws") and not _opens_session(request):
            return _GateAnswer(status=403, reason="No session of this server")
        return None

    def _refusal(self, request: HTTPServerRequest) -> _GateAnswer | None:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if not self._is_own_name(host):
            return _GateAnswer(status=403, reason="Host header not allowed")
        if not self._guard.same_origin(origin, host) and not self._is_known_origin(origin or ""):
            return _GateAnswer(status=403, reason="Origin header not allowed")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if site not in ("none", "same-origin") and not _is_link(request):
            return _GateAnswer(status=403, reason="Requests of other sites are refused")
        return None

    def _is_own_name(self, host: str | None) -> bool:
        if self._guard.host_allowed(host):
            return True
        try:
            name = urlsplit(f"//{host or ''}").hostname or ""
        except ValueError:
            return False
        if any(match_host(name, pattern.rpartition(":")[0] or pattern) for pattern in self._origins):
            return True
        # An attacker's domain name can resolve to this machine, an address cannot.
        return self._anywhere and (name == self._machine or _is_address(name))

    def _is_known_origin(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin.lower())
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
        except ValueError:
            return False
        # Without a port, `origins` means port 80, or the usual port of an encrypted page.
        ports = {port, 80} if parts.scheme == "https" and parts.port is None else {port}
        places = [f"{parts.hostname}:{one}" for one in ports]
        return any(match_host(place, pattern) for place in places for pattern in self._origins)

    def _authenticate(self, request: HTTPServerRequest) -> _GateAnswer | None:
        head = "/" + request.path.removeprefix("/").partition("/")[0]
        given = request.query_arguments.get("token", [])
        cookie = request.cookies.get(self._cookie_name)
        if self._prefixes.check_token(head):
            if given and self._tokens.check_token(given[-1].decode("utf-8", "replace")):
                # The redirect removes the token from the history and from the address bar.
                place = f"{self.prefix}/"
                target = place if request.path.rstrip("/") == self.prefix else request.path
                stands_for_token = (self._cookie_name, self._secret, place)
                return _GateAnswer(status=302, reason="Found", cookie=stands_for_token, location=target)
            if cookie is not None and self._cookies.check_token(cookie.value):
                return None
        return _GateAnswer(status=403, reason="Use the link with the token")


def _is_link(request: HTTPServerRequest) -> bool:
    """Whether the user has followed a link of another site, and sees the page in a tab of its own.

    Images, scripts, frames and prefetched pages of other sites would only cost the driver time.
    """
    headers = request.headers
    mode, shown_in = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    is_early = "Sec-Purpose" in headers or "Purpose" in headers
    return request.method == "GET" and (mode, shown_in) == ("navigate", "document") and not is_early


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _opens_session(request: HTTPServerRequest) -> bool:
    """Whether a WebSocket names a session as Bokeh's pages do; Bokeh logs others as errors."""
    protocols = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
    if len(protocols) != 2 or protocols[0].strip() != "bokeh":
        return False
    try:
        token = protocols[1].strip()
        _check_size(token)
        expiry = get_token_payload(token)["session_expiry"]
        return bool(get_session_id(token)) and time.time() < expiry
    except Exception:  # the token is malformed: decoding, decompression or parsing fails
        return False


def _check_size(token: str) -> None:
    """Raise a ValueError if Bokeh, which sets no limit, would decompress the token to a large text.

    A token fits into the headers of a request, but 20 kB can become 20 MB.
    """
    packed = json.loads(_decoded(token.split(".")[0])).get(_PACKED)
    if packed is not None:
        stream = zlib.decompressobj()
        stream.decompress(_decoded(packed), _LARGEST_PAYLOAD)
        if not stream.eof:
            raise ValueError("too large")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class _Headers(OutputTransform):
    """Adds security headers to each response, and keeps tokens and the random path out of logs."""

    def __init__(self, request: HTTPServerRequest, *, prefix: str) -> None:
        # Tornado logs the URI. The arguments have been parsed from it already.
        request.uri = request.path.removeprefix(prefix) or "/"

    def transform_first_chunk(
        self, status_code: int, headers: Any, chunk: bytes, finishing: bool
    ) -> tuple[int, Any, bytes]:
        headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "same-origin"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        # Bokeh lets pages of any origin read some of its responses.
        headers.pop("Access-Control-Allow-Origin", None)
        return status_code, headers, chunk


class _AnswerHandler(RequestHandler):
    """Sends an answer of the gate, whatever the method."""

    def initialize(self, answer: _GateAnswer) -> None:
        self._answer = answer

    def prepare(self) -> None:
        """Send the answer; then tornado calls no other method."""
        answer = self._answer
        self.set_status(answer.status, answer.reason)
        if answer.cookie is not None:
            name, value, path = answer.cookie
            self.set_cookie(name, value, httponly=True, samesite="Strict", path=path)
        if answer.location:
            self.set_header("Location", answer.location)
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{answer.status}: {answer.reason}\n")


def _log_request(handler: RequestHandler) -> None:
    """Log a response. Refused requests are no warnings: any page could fill the log with them."""
    status, request = handler.get_status(), handler.request
    level = logging.WARNING if status >= 500 else logging.DEBUG
    logger.log(level, "%d %s %s", status, request.method, request.uri)


class GuardedApplication(BokehTornado):  # type: ignore[misc]
    """The web application of Bokeh, behind a gate.

    Parameters
    ----------
    applications : mapping
        As for Bokeh.
    gate : RequestGate
        The gate.
    accept : callable
        Called with each request that proves that it may use the server: with the cookie, or, on a
        server without a token, with a WebSocket.
    **options
        As for Bokeh.
    """

    def __init__(
        self,
        applications: Any,
        *,
        gate: RequestGate,
        accept: Callable[[HTTPServerRequest], None],
        **options: Any,
    ) -> None:
        self._gate, self._accept = gate, accept
        super().__init__(
            applications,
            prefix=gate.prefix,
            transforms=[partial(_Headers, prefix=gate.prefix)],
            log_function=_log_request,
            # The gate has checked the origin. Bokeh must not refuse forwarded ports after that.
            extra_websocket_origins=["*"],
            # Bokeh writes the headers and cookies of a request into its page.
            include_headers=[],
            include_cookies=[],
            **options,
        )

    def resources(self, absolute_url: str | bool | None = None) -> Resources:
        """Return where a page loads Bokeh's scripts from, and which ones."""
        return super().resources(absolute_url).clone(components=list(_SCRIPTS))

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Return the handler of a request; tornado calls this for each request."""
        answer = self._gate.answer(request)
        if answer is not None:
            return self.get_handler_delegate(request, _AnswerHandler, {"answer": answer})
        if (self._gate.token and request.path != _ICON) or request.path.endswith("/ws"):
            self._accept(request)
        return super().find_handler(request, **kwargs)
