"""HTTP handlers of the control server.

Handlers run in the event loop of the server's thread. The runner's thread executes commands and
queries between two events of its loop, and completes a future for each. A handler that stops
waiting tries to cancel the future. Each order of the two threads is safe:

- The runner has not begun the command: cancelling succeeds, and the runner skips the command.
- The runner has begun it: cancelling fails, and the handler answers 202. The command completes when
  the trial has left its worker.
- The runner completes it just before the cancel: cancelling fails as well. The 202 is then late but
  not wrong, and the client reads the new state with its next request.

Only the server's loop touches handlers and the request limit, so they need no lock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from math import inf
from typing import Any, Final
from urllib.parse import unquote

from tornado.httputil import HTTPServerRequest
from tornado.web import Application, RequestHandler

from dasktune.control.exposition import CONTENT_TYPE, ExpositionCache, exposition
from dasktune.control.http_guard import RequestGuard
from dasktune.control.issuer import issuer_of_request
from dasktune.control.openapi import LARGEST_PAGE, NEVER, PREFIX, openapi_document
from dasktune.control.views import as_json, experiment_view, trial_view, trials_view
from dasktune.errors import ControlError, StorageError
from dasktune.runner.commands import Commands
from dasktune.storage.journal.strict_json import loads
from dasktune.trial.status import PublicStatus

#: Maximum size of a request's body, in bytes.
LARGEST_BODY: Final = 1 << 20

#: Maximum number of requests that are handled at a time; others are answered with 503.
_MAX_REQUESTS: Final = 64

#: Seconds that a request waits for the driver.
_TIMEOUT: Final = 15.0

_CODES: Final = {
    "unknown": 404,
    "over": 409,
    "conflict": 409,
    "invalid": 422,
    "busy": 503,
}


class _Refused(Exception):
    """A request that is answered with an error status before the driver sees it."""

    def __init__(self, code: int, message: str, kind: str = "refused") -> None:
        super().__init__(message)
        self.code, self.message, self.kind = code, message, kind


class _RequestLimit:
    """Counts the requests that are being handled."""

    def __init__(self) -> None:
        self.active = 0


class _RequestHandler(RequestHandler):
    """Checks host, origin and token of each request first, and answers errors in JSON."""

    def initialize(
        self,
        commands: Commands,
        guard: RequestGuard,
        limit: _RequestLimit,
        accept: Callable[[HTTPServerRequest], None],
    ) -> None:
        self._commands, self._guard, self._limit = commands, guard, limit
        self._accept = accept
        self._is_counted = False

    def set_default_headers(self) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    def prepare(self) -> None:
        headers = self.request.headers
        host, origin = headers.get("Host"), headers.get("Origin")
        if not self._guard.host_allowed(host):
            raise _Refused(403, "Host header not allowed")
        site = headers.get("Sec-Fetch-Site", "none")
        if not self._guard.same_origin(origin, host) or site not in ("none", "same-origin"):
            raise _Refused(403, "cross-origin request refused")
        self._admit(headers.get("Authorization"))
        if self._limit.active >= _MAX_REQUESTS:
            raise _Refused(503, "too many requests at the same time; try again later", "busy")
        self._limit.active += 1
        self._is_counted = True

    def _admit(self, authorization: str | None) -> None:
        """Refuse a request without the token, and keep the connection of one that has it."""
        if not self._guard.is_bearer(authorization):
            raise _Refused(401, "token missing or wrong; send Authorization: Bearer <token>")
        self._accept(self.request)

    def on_finish(self) -> None:
        if self._is_counted:
            self._limit.active -= 1

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        message, kind = self._reason, "refused"
        if isinstance(error, _Refused | ControlError):
            message, kind = error.message, error.kind
        if status_code == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        elif status_code == 405:
            self.set_header("Allow", ", ".join(self._methods()))
        self.finish(json.dumps({"error": {"message": message, "kind": kind}}))

    def _methods(self) -> list[str]:
        """Return the HTTP methods of this handler in alphabetical order."""
        kind, names = type(self), sorted(self.SUPPORTED_METHODS)
        missing = RequestHandler._unimplemented_method
        return [name for name in names if getattr(kind, name.lower()) is not missing]

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, _Refused):
            status_code = error.code
        elif isinstance(error, ControlError):
            status_code = _CODES.get(error.kind, 500)
        super().send_error(status_code, **kwargs)

    def log_exception(self, *info: Any) -> None:
        if not isinstance(info[1], _Refused | ControlError):
            super().log_exception(*info)

    def body(self) -> dict[str, Any]:
        """Return the body, which must be an object in strict JSON."""
        if not self.request.body:
            return {}
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _Refused(415, "the body must be application/json", "invalid")
        try:
            body = loads(self.request.body.decode("utf-8"))
        except (ValueError, RecursionError, StorageError):
            raise _Refused(400, "the body must be strict JSON", "invalid") from None
        if not isinstance(body, dict):
            raise _Refused(400, "the body must be an object", "invalid")
        return body

    def empty_body(self) -> None:
        """Refuse a body that is not empty."""
        if self.body():
            raise _Refused(400, "the body must be {}", "invalid")

    @property
    def issuer(self) -> str:
        """Who has sent this request."""
        return issuer_of_request(self.request, self._guard.without_token)

    async def query(self, view: Callable[..., Any]) -> Any:
        """Return a view of the experiment, made in the runner's thread."""
        return await self.answer(self._commands.ask(view))

    async def answer(self, future: Future[Any]) -> Any:
        """Wait for the answer of the runner's thread."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), _TIMEOUT)
        except asyncio.TimeoutError:
            raise _Refused(503, "the driver did not answer in time", "busy") from None

    async def do(self, future: Future[Any]) -> None:
        """Answer with the outcome of a command, or with 202 if the command is not complete yet."""
        done = asyncio.ensure_future(asyncio.wrap_future(future))
        await asyncio.wait({done}, timeout=_TIMEOUT)
        if done.done():
            outcome = done.result()
            self.finish(json.dumps(asdict(outcome)))
        elif future.cancel():
            message = "the driver did not answer in time; the command was not executed"
            raise _Refused(503, message, "busy")
        else:
            # Retrieve a later exception, which asyncio would log as never retrieved.
            done.add_done_callback(lambda one: one.cancelled() or one.exception())
            self.set_status(202)
            message = "accepted; waiting for the trial to leave its worker"
            self.finish(json.dumps({"message": message, "trial_id": "", "status": ""}))


class _Missing(_RequestHandler):
    def prepare(self) -> None:
        super().prepare()
        raise _Refused(404, "there is no such path", "unknown")


class _Description(_RequestHandler):
    def get(self) -> None:
        self.finish(json.dumps(openapi_document()))


class _Experiment(_RequestHandler):
    async def get(self) -> None:
        self.finish(json.dumps(as_json(await self.query(experiment_view()))))


class _MetricsPage:
    """What the requests for metrics share; only the server's loop uses it."""

    def __init__(self, *, is_public: bool) -> None:
        self.is_public = is_public
        self.cache = ExpositionCache()
        self.lock = asyncio.Lock()


class _Metrics(_RequestHandler):
    """The metrics for Prometheus, with the token or, if the user wants that, without.

    A connection without the token is closed before others if there are too many. Requests without
    the token wait for one another, and the answer to one is the answer to all, so that they take
    neither the driver's time nor the places of the other requests.
    """

    def initialize(self, page: _MetricsPage, **parts: Any) -> None:  # type: ignore[override]
        super().initialize(**parts)
        self._page = page

    def _admit(self, authorization: str | None) -> None:
        if authorization is None and self._page.is_public:
            if self._page.lock.locked():
                raise _Refused(503, "the metrics are being read; try again later", "busy")
        else:
            super()._admit(authorization)

    async def get(self) -> None:
        page = self._page
        async with page.lock:
            text = page.cache.text
            if text is None:
                measurement = await self.answer(self._commands.measure())
                text = exposition(measurement)
                page.cache.store(text, seconds=measurement.seconds)
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(text)


class _ExperimentCommand(_RequestHandler):
    async def post(self, what: str) -> None:
        self.empty_body()
        calls = {
            "hold": self._commands.hold,
            "release": self._commands.release,
            "stop": self._commands.stop,
            "cancel": self._commands.cancel,
        }
        await self.do(calls[what](by=self.issuer))


class _Share(_RequestHandler):
    async def post(self) -> None:
        body = self.body()
        if not body or body.keys() - {"weight", "priority", "yields_after"}:
            what = '{"weight": ..., "priority": ..., "yields_after": ...} or some of them'
            raise _Refused(400, f"the body must be {what}", "invalid")
        if body.get("yields_after") == NEVER:
            body["yields_after"] = inf
        await self.do(self._commands.set_share(**body, by=self.issuer))


class _Trials(_RequestHandler):
    async def get(self) -> None:
        known = {"status", "limit", "offset"}
        if strange := self.request.query_arguments.keys() - known:
            raise _Refused(400, f"unknown query parameter {min(strange)[:100]!r}", "invalid")
        status = self.get_query_argument("status", None)
        if status is not None and status not in {one.value for one in PublicStatus}:
            names = ", ".join(one.value for one in PublicStatus)
            raise _Refused(400, f"status must be one of {names}", "invalid")
        limit = self._number("limit", 100, least=1, most=LARGEST_PAGE)
        offset = self._number("offset", 0, least=0, most=10**9)
        self.finish(json.dumps(as_json(await self.query(trials_view(status, limit, offset)))))

    async def post(self) -> None:
        body = self.body()
        if body.keys() != {"config"} or not isinstance(body["config"], dict):
            raise _Refused(400, 'the body must be {"config": {...}}', "invalid")
        await self.do(self._commands.add_trial(body["config"], by=self.issuer))

    def _number(self, name: str, default: int, *, least: int, most: int) -> int:
        text = self.get_query_argument(name, str(default))
        plain = text.isascii() and text.isdigit() and len(text) <= 10
        if not (plain and least <= int(text) <= most):
            raise _Refused(400, f"{name} must be an integer from {least} to {most}", "invalid")
        return int(text)


class _Trial(_RequestHandler):
    async def get(self, name: str) -> None:
        trial_id = _decoded(name)
        view = await self.query(trial_view(trial_id))
        if view is None:
            raise ControlError(f"there is no trial {trial_id!r:.100}", "unknown")
        self.finish(json.dumps(as_json(view)))


class _TrialCommand(_RequestHandler):
    async def post(self, name: str, what: str) -> None:
        self.empty_body()
        calls: dict[str, Callable[..., Future[Any]]] = {
            "stop": self._commands.stop_trial,
            "pause": self._commands.pause_trial,
            "unpause": self._commands.unpause_trial,
            "checkpoint": self._commands.checkpoint_trial,
        }
        await self.do(calls[what](_decoded(name), by=self.issuer))


def _decoded(name: str) -> str:
    return unquote(name, errors="replace")


def make_application(
    commands: Commands,
    guard: RequestGuard,
    accept: Callable[[HTTPServerRequest], None],
    *,
    public_metrics: bool = False,
) -> Application:
    """Return the application that answers the requests.

    Parameters
    ----------
    commands : Commands
        The commands of the experiment.
    guard : RequestGuard
        Checks host, origin and token of each request.
    accept : callable
        Called with each request that the guard has let pass.
    public_metrics : bool, default=False
        Whether ``/metrics`` needs no token.
    """
    parts = {"commands": commands, "guard": guard, "limit": _RequestLimit(), "accept": accept}
    routes: list[tuple[str, type[_RequestHandler]]] = [
        ("/openapi.json", _Description),
        ("/experiment", _Experiment),
        ("/experiment/(hold|release|stop|cancel)", _ExperimentCommand),
        ("/experiment/share", _Share),
        ("/trials", _Trials),
        ("/trials/([^/]+)", _Trial),
        ("/trials/([^/]+)/(stop|pause|unpause|checkpoint)", _TrialCommand),
    ]
    metrics = ("/metrics", _Metrics, {**parts, "page": _MetricsPage(is_public=public_metrics)})
    return Application(
        [metrics, *((PREFIX + path, handler, parts) for path, handler in routes)],
        default_handler_class=_Missing,
        default_handler_args=parts,
        log_function=lambda handler: None,
        compress_response=False,
    )
