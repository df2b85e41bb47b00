"""What the control server does with a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import unquote

from tornado.web import Application, RequestHandler

from dasktune.control.description import LARGEST_PAGE, PREFIX, describe
from dasktune.control.views import as_json, experiment_view, trial_view, trials_view
from dasktune.errors import ControlError, StorageError
from dasktune.guard import Guard
from dasktune.runner.commands import Commands
from dasktune.storage.strict_json import loads
from dasktune.trial.status import PublicStatus

__all__ = ["LARGEST_BODY", "make_application"]

#: Bytes of a request's body.
LARGEST_BODY: Final = 1 << 20

#: Requests that are worked on at a time; others are told to come again.
_MOST_AT_ONCE: Final = 64

#: Seconds for which a request waits for the driver.
_PATIENCE: Final = 15.0

_CODES: Final = {
    "unknown": 404,
    "over": 409,
    "conflict": 409,
    "invalid": 422,
    "busy": 503,
}


class _Refused(Exception):
    """A request that is not even looked at."""

    def __init__(self, code: int, message: str, kind: str = "refused") -> None:
        super().__init__(message)
        self.code, self.message, self.kind = code, message, kind


class _Door:
    """How many requests are inside."""

    def __init__(self) -> None:
        self.inside = 0


class _Handler(RequestHandler):
    """Checks who asks, and how, before anything else; answers in JSON whatever happens."""

    def initialize(self, commands: Commands, guard: Guard, door: _Door) -> None:
        self._commands, self._guard, self._door = commands, guard, door
        self._is_inside = False

    def set_default_headers(self) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    def prepare(self) -> None:
        headers = self.request.headers
        host, origin = headers.get("Host"), headers.get("Origin")
        if not self._guard.is_called(host):
            raise _Refused(403, "this server is not called so")
        site = headers.get("Sec-Fetch-Site", "none")
        if not self._guard.is_own(origin, host) or site not in ("none", "same-origin"):
            raise _Refused(403, "another page has no business here")
        if not self._guard.is_bearer(headers.get("Authorization")):
            raise _Refused(401, "the token is missing or wrong: Authorization: Bearer <token>")
        if self._door.inside >= _MOST_AT_ONCE:
            raise _Refused(503, "too many requests at once; try again in a while", "busy")
        self._door.inside += 1
        self._is_inside = True

    def on_finish(self) -> None:
        if self._is_inside:
            self._door.inside -= 1

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
        """Return the methods that this handler has, in the order of the alphabet."""
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
        """Return what the body says, which must be an object of strict JSON."""
        if not self.request.body:
            return {}
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _Refused(415, "the body must be application/json", "invalid")
        try:
            told = loads(self.request.body.decode("utf-8"))
        except (ValueError, RecursionError, StorageError):
            raise _Refused(400, "the body must be strict JSON", "invalid") from None
        if not isinstance(told, dict):
            raise _Refused(400, "the body must be an object", "invalid")
        return told

    def empty_body(self) -> None:
        """Refuse a body that says something."""
        if self.body():
            raise _Refused(400, "the body must be {}", "invalid")

    async def look(self, look: Callable[..., Any]) -> Any:
        """Return what is seen of the experiment."""
        future = self._commands.ask(look)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), _PATIENCE)
        except asyncio.TimeoutError:
            raise _Refused(503, "the driver does not answer in time", "busy") from None

    async def do(self, future: Future[Any]) -> None:
        """Answer what came of a command, or that it waits."""
        done = asyncio.ensure_future(asyncio.wrap_future(future))
        await asyncio.wait({done}, timeout=_PATIENCE)
        if done.done():
            outcome = done.result()
            self.finish(json.dumps(asdict(outcome)))
        elif future.cancel():
            raise _Refused(503, "the driver does not answer in time; nothing was done", "busy")
        else:
            # It was begun, and waits for a trial to leave its worker.
            done.add_done_callback(lambda one: one.cancelled() or one.exception())
            self.set_status(202)
            self.finish(json.dumps({"message": "it waits", "trial_id": "", "status": ""}))


class _Missing(_Handler):
    def prepare(self) -> None:
        super().prepare()
        raise _Refused(404, "there is nothing of this name", "unknown")


class _Description(_Handler):
    def get(self) -> None:
        self.finish(json.dumps(describe()))


class _Experiment(_Handler):
    async def get(self) -> None:
        self.finish(json.dumps(as_json(await self.look(experiment_view()))))


class _ExperimentCommand(_Handler):
    async def post(self, what: str) -> None:
        self.empty_body()
        calls = {
            "hold": self._commands.hold,
            "release": self._commands.release,
            "stop": self._commands.stop,
            "cancel": self._commands.cancel,
        }
        await self.do(calls[what]())


class _Trials(_Handler):
    async def get(self) -> None:
        known = {"status", "limit", "offset"}
        if strange := self.request.query_arguments.keys() - known:
            raise _Refused(400, f"there is no {min(strange)[:100]!r} to ask by", "invalid")
        status = self.get_query_argument("status", None)
        if status is not None and status not in {one.value for one in PublicStatus}:
            raise _Refused(400, "status must be one of the five words", "invalid")
        limit = self._number("limit", 100, least=1, most=LARGEST_PAGE)
        offset = self._number("offset", 0, least=0, most=10**9)
        self.finish(json.dumps(as_json(await self.look(trials_view(status, limit, offset)))))

    async def post(self) -> None:
        told = self.body()
        if told.keys() != {"config"} or not isinstance(told["config"], dict):
            raise _Refused(400, 'the body must be {"config": {...}}', "invalid")
        await self.do(self._commands.add_trial(told["config"]))

    def _number(self, name: str, default: int, *, least: int, most: int) -> int:
        text = self.get_query_argument(name, str(default))
        plain = text.isascii() and text.isdigit() and len(text) <= 10
        if not (plain and least <= int(text) <= most):
            raise _Refused(400, f"{name} must be an integer from {least} to {most}", "invalid")
        return int(text)


class _Trial(_Handler):
    async def get(self, name: str) -> None:
        trial_id = _decoded(name)
        told = await self.look(trial_view(trial_id))
        if told is None:
            raise ControlError(f"there is no trial {trial_id!r:.100}", "unknown")
        self.finish(json.dumps(as_json(told)))


class _TrialCommand(_Handler):
    async def post(self, name: str, what: str) -> None:
        self.empty_body()
        calls: dict[str, Callable[[str], Future[Any]]] = {
            "stop": self._commands.stop_trial,
            "pause": self._commands.pause_trial,
            "unpause": self._commands.unpause_trial,
        }
        await self.do(calls[what](_decoded(name)))


def _decoded(name: str) -> str:
    return unquote(name, errors="replace")


def make_application(commands: Commands, guard: Guard) -> Application:
    """Return what answers the requests.

    Parameters
    ----------
    commands : Commands
        By which the experiment is told.
    guard : Guard
        Tells which requests may be heeded.
    """
    parts = {"commands": commands, "guard": guard, "door": _Door()}
    routes: list[tuple[str, type[_Handler]]] = [
        ("/openapi.json", _Description),
        ("/experiment", _Experiment),
        ("/experiment/(hold|release|stop|cancel)", _ExperimentCommand),
        ("/trials", _Trials),
        ("/trials/([^/]+)", _Trial),
        ("/trials/([^/]+)/(stop|pause|unpause)", _TrialCommand),
    ]
    return Application(
        [(PREFIX + path, handler, parts) for path, handler in routes],
        default_handler_class=_Missing,
        default_handler_args=parts,
        log_function=lambda handler: None,
        compress_response=False,
    )
