"""A plugin of Dask's scheduler that adds a page of all experiments to the scheduler's dashboard.

The plugin is pickled by value, so it uses only the standard library and Dask's own requirements:
the scheduler may lack dasktune and Bokeh. It only relays: drivers send complete pages as opaque
bytes, and browsers fetch them. It computes nothing, and unpickles no object of a user.

It answers calls (``scheduler.handlers``) and has no handler for stream messages: after a stream
message that is unknown or raises, the client would lose all its futures and actors.

Calls and browsers' requests run on the scheduler's event loop, and only the wait for a viewer has
an ``await``. Another driver may take over the experiment during that wait. The answer to the first
driver then has ``yours`` set to False, and the first driver stops publishing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import zlib
from collections import OrderedDict
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from distributed import SchedulerPlugin
from jinja2 import Environment
from tornado import web

logger = logging.getLogger("distributed.dasktune")

#: Version of the calls between drivers and the plugin. Other versions have separate pages.
PROTOCOL = 1

#: Seconds without a call after which a driver is shown as silent; it calls every 5 s.
_SILENT = 15.0
#: Seconds for which a browser counts as a viewer after its last request for updates.
_VIEWER_SECONDS = 6.0
#: Longest time in seconds that a driver waits for a viewer.
_LONGEST_WAIT = 30.0
#: Largest number of experiments whose driver has ended or is lost, and of all experiments.
_MOST_OVER = 10
_MOST_SECTIONS = 200
#: Largest size in bytes of a page, and of the changes that are kept for its viewers.
_LARGEST = 2_000_000
#: Largest number of changes that are kept.
_MOST_CHANGES = 120
#: Largest number of Bokeh versions whose scripts are kept, and largest size of a version's scripts
#: in bytes.
_MOST_SCRIPTS = 3
_LARGEST_SCRIPTS = 4_000_000

_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)

#: Maximum size in bytes of content that is decompressed; two megabytes can become two gigabytes.
_LARGEST_DECOMPRESSED = 50_000_000


def _decompressed(content: bytes) -> bytes:
    """Decompress gzip; a browser that cannot do it gets an error if the content is too large."""
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(content, _LARGEST_DECOMPRESSED)
    except zlib.error:
        raise web.HTTPError(406) from None
    if not stream.eof:
        raise web.HTTPError(406)
    return plain


class _Section:
    """An experiment: its driver's state, and its page with the latest changes."""

    def __init__(self, name: str, driver: str, client: str, hint: str) -> None:
        self.name, self.driver, self.client, self.hint = name, driver, client, hint
        #: "alive", "lost" or "ended", and whether the page shows the experiment's end.
        self.state, self.complete = "alive", False
        self.heard_at = time.monotonic()
        #: When a browser last requested updates.
        self.viewed_at = -_VIEWER_SECONDS
        self.wanted = asyncio.Event()
        #: The number of the last change, and the last full page with its number.
        self.number = 0
        self.whole: tuple[int, bytes] | None = None
        self.changes: OrderedDict[int, bytes] = OrderedDict()
        #: The version of Bokeh that made the page.
        self.bokeh = ""

    @property
    def is_wanted(self) -> bool:
        return time.monotonic() - self.viewed_at < _VIEWER_SECONDS

    def note_viewer(self) -> None:
        """Note that a browser views the experiment."""
        self.viewed_at = time.monotonic()
        self.wanted.set()

    def update(self, number: int, whole: bytes | None, change: bytes | None, bokeh: str) -> None:
        """Store the next state of the page: as a full page, as a change, or both."""
        self.number = number
        if change is not None:
            self.changes[number] = change
        if whole is not None:
            self.whole, self.bokeh = (number, whole), bokeh
        first = self.whole[0] if self.whole else 0
        kept = sum(map(len, self.changes.values()))
        # A browser that loads the full page needs the changes after it; older changes may be
        # dropped.
        while self.changes and (kept > _LARGEST or len(self.changes) > _MOST_CHANGES):
            oldest = next(iter(self.changes))
            if oldest > first:
                break
            kept -= len(self.changes.pop(oldest))

    def summary(self) -> dict[str, Any]:
        """Return the experiment's state for browsers."""
        age = time.monotonic() - self.heard_at
        silent = self.state == "alive" and age > _SILENT
        return {
            "name": self.name,
            "state": "silent" if silent else self.state,
            "age": round(age, 1),
            "hint": self.hint,
            "complete": self.complete,
            "driver": self.driver,
            "bokeh": self.bokeh,
            "whole": self.whole[0] if self.whole else 0,
            "changes": list(self.changes),
        }


class DashboardPagePlugin(SchedulerPlugin):  # type: ignore[misc]
    """Serves the page of all experiments, and relays the drivers' pages to browsers.

    Parameters
    ----------
    page : str
        The page as HTML. ``{head}`` and ``{pages}`` stand for Dask's styles and links, and
        ``{script}`` for the address of the script.
    script : bytes
        The script that updates the page.
    """

    idempotent = True

    def __init__(self, page: str, script: bytes) -> None:
        self.name = f"dasktune-board-{PROTOCOL}"
        self.page, self.script = page, script
        #: The experiments by key, in the order in which their drivers began.
        self.sections: OrderedDict[str, _Section] = OrderedDict()
        #: Compressed scripts by name, by Bokeh's version.
        self.scripts: OrderedDict[str, dict[str, bytes]] = OrderedDict()
        #: The path of the page on the web server; empty if it could not be added.
        self.path = ""
        self.port, self.scheme = 0, "http"
        #: The prefix of the paths of Dask's pages, which Dask's usual dashboard link lacks.
        self.prefix = ""
        #: The names of the pages in Dask's navigation bar; empty if Dask has no pages.
        self.pages: list[str] = []

    async def start(self, scheduler: Any) -> None:
        """Add the handler for drivers' calls, and add the page to the web server if possible."""
        scheduler.handlers[f"dasktune_board_{PROTOCOL}"] = self.answer
        try:
            self._mount(scheduler)
        except Exception:
            # No experiment depends on the page.
            logger.warning("dasktune's page could not be added to this dashboard", exc_info=True)
            self.path = ""

    # Calls of drivers

    async def answer(self, do: str, key: str, driver: str, **fields: Any) -> dict[str, Any]:
        """Answer a call of a driver. An exception is raised in the driver."""
        if do == "begin":
            self._begin(key, driver, **fields)
        section = self.sections.get(key)
        if section is None or section.driver != driver:
            return {"known": section is not None, "yours": False}
        section.heard_at = time.monotonic()
        if section.state != "ended":
            section.state = "alive"
        if do == "beat":
            await self._wait(section, float(fields["wait"]))
            section.heard_at = time.monotonic()
        elif do == "push":
            self._push(section, **fields)
        elif do == "script":
            self._keep_scripts(**fields)
        elif do == "end":
            section.state, section.hint = "ended", str(fields["hint"])
            section.complete = bool(fields["complete"])
            self._forget_some()
        return {
            "known": True,
            "yours": self.sections.get(key) is section,
            "wanted": section.is_wanted,
            "scripts": list(self.scripts),
            **self._where(),
        }

    def _where(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "prefix": self.prefix,
            "port": self.port,
            "scheme": self.scheme,
            "has_neighbours": bool(self.pages),
        }

    def find(self, name: str) -> dict[str, Any] | None:
        """Return where the page of the newest experiment of a name is; None if there is none."""
        for key, section in reversed(self.sections.items()):
            if section.name == name:
                return {"key": key, **self._where()}
        return None

    def _begin(self, key: str, driver: str, name: str, client: str, hint: str) -> None:
        before = self.sections.pop(key, None)
        section = self.sections[key] = _Section(name, driver, client, hint)
        if before is not None:
            # The viewers stay. The driver that was replaced is woken, so that it stops publishing.
            section.viewed_at = before.viewed_at
            before.wanted.set()
        self._forget_some()

    async def _wait(self, section: _Section, wait: float) -> None:
        """Wait for a viewer."""
        if wait > 0 and not section.is_wanted:
            section.wanted.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(section.wanted.wait(), min(wait, _LONGEST_WAIT))

    def _push(
        self,
        section: _Section,
        number: int,
        whole: bytes | None = None,
        change: bytes | None = None,
        bokeh: str = "",
    ) -> None:
        size = max(len(whole or b""), len(change or b""))
        if size > _LARGEST:
            raise ValueError(f"a page must have at most {_LARGEST} bytes, got {size}")
        section.update(int(number), whole, change, bokeh)

    def _keep_scripts(self, bokeh: str, files: dict[str, bytes]) -> None:
        size = sum(map(len, files.values()))
        if size > _LARGEST_SCRIPTS:
            raise ValueError(f"scripts must have at most {_LARGEST_SCRIPTS} bytes, got {size}")
        self.scripts[bokeh] = dict(files)
        while len(self.scripts) > _MOST_SCRIPTS:
            self.scripts.popitem(last=False)

    def _forget_some(self) -> None:
        """Forget the oldest experiments if too many, or too many without a driver, are kept."""
        over = [key for key, one in self.sections.items() if one.state != "alive"]
        for key in over[: max(0, len(over) - _MOST_OVER)]:
            del self.sections[key]
        while len(self.sections) > _MOST_SECTIONS:
            self.sections.popitem(last=False)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Show at once that the driver of a lost client is gone."""
        for section in self.sections.values():
            if section.client == client and section.state == "alive":
                section.state = "lost"
        self._forget_some()

    # Requests of browsers

    def news(self, key: str) -> dict[str, Any]:
        """Return the list of experiments, and the state of one of them."""
        section = self.sections.get(key)
        if section is not None:
            section.note_viewer()
        listed = [
            {"key": key, **{name: one.summary()[name] for name in ("name", "state")}}
            for key, one in reversed(self.sections.items())
        ]
        return {"experiments": listed, "shown": None if section is None else section.summary()}

    def part(self, key: str, number: int, *, whole: bool) -> bytes | None:
        """Return a page or a change, compressed; None if it was dropped."""
        section = self.sections.get(key)
        if section is None:
            return None
        if whole:
            return section.whole[1] if section.whole and section.whole[0] == number else None
        return section.changes.get(number)

    def _mount(self, scheduler: Any) -> None:
        root = scheduler.http_application
        self.port = scheduler.http_server.port
        if getattr(scheduler.http_server, "ssl_options", None) is not None:
            self.scheme = "https"
        self.prefix = _prefix(root)
        taken = {getattr(one, "dasktune_path", "") for one in root.applications}
        path = f"{self.prefix}/dasktune"
        self.path = path if path not in taken else f"{path}-{PROTOCOL}"
        routes = [(rf"{self.path}(?:~(\w+))?/?", _PageHandler, {"plugin": self})]
        application = web.Application(routes)
        application.dasktune_path = self.path  # type: ignore[attr-defined]
        # If a plugin of the same version was unregistered, its page is still there and would come
        # first.
        root.applications[:] = [
            one for one in root.applications if getattr(one, "dasktune_path", "") != self.path
        ]
        root.add_application(application)
        try:
            self._add_link(scheduler)
        except Exception:
            logger.debug("Dask's pages have no link to dasktune's", exc_info=True)

    def _add_link(self, scheduler: Any) -> None:
        """Add the page to Dask's navigation bar, and read the names of the pages there."""
        # Not imported here, because that takes long. If Dask has pages, it has imported the module.
        theirs = sys.modules.get("distributed.dashboard.scheduler")
        has_pages = any(hasattr(one, "app_paths") for one in scheduler.http_application.applications)
        if theirs is None or not has_pages:
            return
        pages = theirs.template_variables(scheduler)["pages"]
        name = self.path.rpartition("/")[2]
        if name not in pages:
            pages.append(name)
        self.pages = pages


def _prefix(root: Any) -> str:
    """Return the prefix of the paths of Dask's pages, found in the routes of the web server."""
    for router in (root.wildcard_router, root.default_router):
        for rule in _rules(router):
            pattern = getattr(getattr(rule.matcher, "regex", None), "pattern", "").rstrip("$")
            if pattern.endswith("/health"):
                return str(pattern[: -len("/health")])
    return ""


def _rules(router: Any) -> list[Any]:
    found = []
    for rule in router.rules:
        found.append(rule)
        if hasattr(rule.target, "rules"):
            found += _rules(rule.target)
    return found


def _name_in(url: str) -> str | None:
    """Return the host name in a URL; None if there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class _PageHandler(web.RequestHandler):
    """Answers the requests of browsers."""

    def initialize(self, plugin: Any) -> None:
        self.plugin = plugin

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        """Refuse requests that a page of another site has caused; it may only link to this one.

        They would make a driver draw pages. As on Dask's own pages, the scheduler may have any
        name: a proxy may give it one that it does not know.
        """
        headers = self.request.headers
        is_foreign = headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        shown = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
        origin = headers.get("Origin")
        if is_foreign and shown != ("navigate", "document"):
            raise web.HTTPError(403)
        # An old browser sends only this header. A proxy may change the port, so ports may differ.
        if origin is not None and _name_in(origin) != _name_in(f"//{headers.get('Host', '')}"):
            raise web.HTTPError(403)

    def get(self, what: str | None) -> None:
        if self.request.path.endswith("/"):
            # All links on the page are relative to an address without a slash at its end.
            self.redirect("../" + self.request.path.rstrip("/").rpartition("/")[2])
            return
        ask = getattr(self, f"_{what or 'page'}", None)
        if what not in (None, "script", "news", "whole", "change", "bokeh") or ask is None:
            raise web.HTTPError(404)
        ask()

    def _page(self) -> None:
        own = self.plugin.path.rpartition("/")[2]
        page = Environment(autoescape=True).from_string(self.plugin.page)
        self.finish(page.render(own=own, pages=self.plugin.pages))

    def _script(self) -> None:
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.finish(self.plugin.script)

    def _news(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(self.plugin.news(self.get_query_argument("key", ""))))

    def _whole(self) -> None:
        self._part(True)

    def _change(self) -> None:
        self._part(False)

    def _part(self, whole: bool) -> None:
        number = self.get_query_argument("number", "")
        key = self.get_query_argument("key", "")
        number = number if number.isdecimal() and len(number) < 16 else "0"
        self._send(self.plugin.part(key, int(number), whole=whole), "application/json")

    def _bokeh(self) -> None:
        files = self.plugin.scripts.get(self.get_query_argument("version", ""), {})
        content = files.get(self.get_query_argument("name", ""))
        self._send(content, "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", "private, max-age=86400")

    def _send(self, content: bytes | None, kind: str) -> None:
        """Send compressed content, or decompress it for a browser that does not accept gzip."""
        if content is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", kind)
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
        else:
            content = _decompressed(content)
        self.write(content)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        self.finish(f"{status_code}")
