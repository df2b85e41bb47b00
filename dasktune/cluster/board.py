"""The page of all experiments in the scheduler's own dashboard, as a plugin of the scheduler.

It travels by value, so it may use nothing but the standard library and what Dask itself needs: the
scheduler may lack dasktune, and Bokeh. It only relays: drivers send their pages ready-made, as
opaque bytes, and browsers fetch them. Nothing is computed here, and nothing of a user's is looked
into. It answers calls (``scheduler.handlers``) and never takes messages of a stream: one of those
that nobody understands, or that raises, would cost a client all its futures and actors.
"""

from __future__ import annotations

import asyncio
import gzip
import html
import json
import logging
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from distributed import SchedulerPlugin
from tornado import web

__all__ = ["PROTOCOL", "BoardPlugin"]

logger = logging.getLogger("distributed.dasktune")

#: What drivers and the plugin have agreed on. Those of another number have a page of their own.
PROTOCOL = 1

#: Seconds after which a driver that says nothing is told to be silent; it speaks every 5 s.
_SILENT = 15.0
#: Seconds for which somebody looks who has asked for news.
_LOOKS = 6.0
#: Most seconds for which a driver waits for somebody to look.
_LONGEST_WAIT = 30.0
#: Experiments that are kept although they have no driver any more, and experiments in all.
_MOST_OVER = 10
_MOST_SECTIONS = 200
#: Bytes of a page, and of the changes that are kept for those who have seen it.
_LARGEST = 2_000_000
#: Changes that are kept.
_MOST_CHANGES = 120
#: Versions of Bokeh whose scripts are kept, and bytes of those of a version.
_MOST_SCRIPTS = 3
_LARGEST_SCRIPTS = 4_000_000

_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)

#: What Dask's own pages begin with; it is there if these are.
_HEAD = (
    '<link rel="stylesheet" href="statics/css/base.css">'
    '<link rel="shortcut icon" href="statics/images/favicon.ico">'
)
_LOGO = (
    '<li id="dask-logo"><a href="https://dask.org/">'
    '<img src="statics/images/dask-logo.svg" alt="Dask"></a></li>'
)


class _Section:
    """What is known of an experiment."""

    def __init__(self, name: str, driver: str, client: str, hint: str) -> None:
        self.name, self.driver, self.client, self.hint = name, driver, client, hint
        #: "alive", "lost" or "ended"; and whether the page shows how it ended.
        self.state, self.complete = "alive", False
        self.heard = time.monotonic()
        #: When somebody has asked for news last.
        self.seen = -_LOOKS
        self.wanted = asyncio.Event()
        #: The number of the last change; and of the page, with the page itself.
        self.number = 0
        self.whole: tuple[int, bytes] | None = None
        self.changes: OrderedDict[int, bytes] = OrderedDict()
        #: The version of Bokeh that has made the page.
        self.bokeh = ""

    @property
    def is_wanted(self) -> bool:
        return time.monotonic() - self.seen < _LOOKS

    def look(self) -> None:
        """Note that somebody looks."""
        self.seen = time.monotonic()
        self.wanted.set()

    def take(self, number: int, whole: bytes | None, change: bytes | None, bokeh: str) -> None:
        """Take the next state of the page: as a whole, as a change, or both."""
        self.number = number
        if change is not None:
            self.changes[number] = change
        if whole is not None:
            self.whole, self.bokeh = (number, whole), bokeh
        first = self.whole[0] if self.whole else 0
        kept = sum(map(len, self.changes.values()))
        # Whoever loads the page now needs those after it; the others may be forgotten.
        while self.changes and (kept > _LARGEST or len(self.changes) > _MOST_CHANGES):
            oldest = next(iter(self.changes))
            if oldest > first:
                break
            kept -= len(self.changes.pop(oldest))

    def told(self) -> dict[str, Any]:
        """Return what a browser is told of it."""
        age = time.monotonic() - self.heard
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


class BoardPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Mounts the page, and relays what drivers send to those who look at it.

    Parameters
    ----------
    page : str
        The page as HTML, with places ``{head}`` and ``{pages}`` for Dask's styles and links, and
        ``{script}`` for an address.
    script : bytes
        What keeps it up to date.
    """

    idempotent = True

    def __init__(self, page: str, script: bytes) -> None:
        self.name = f"dasktune-board-{PROTOCOL}"
        self.page, self.script = page, script
        #: By the key of the experiment; who has spoken last is the last one.
        self.sections: OrderedDict[str, _Section] = OrderedDict()
        #: By Bokeh's version, compressed scripts by their names.
        self.scripts: OrderedDict[str, dict[str, bytes]] = OrderedDict()
        #: Where it is on the web server; empty if it is not there.
        self.path = ""
        self.port, self.scheme = 0, "http"
        #: Whether Dask's own pages have a prefix, which the usual link does not tell.
        self.prefix = ""
        #: The names of all pages that Dask's navigation bar has; none if Dask has no pages.
        self.pages: list[str] = []

    async def start(self, scheduler: Any) -> None:
        """Be there for drivers, and for browsers if that is possible."""
        scheduler.handlers[f"dasktune_board_{PROTOCOL}"] = self.answer
        try:
            self._mount(scheduler)
        except Exception:
            # Nobody's work depends on it.
            logger.warning("there is no page of dasktune in this dashboard", exc_info=True)
            self.path = ""

    # What drivers say

    async def answer(self, do: str, key: str, driver: str, **told: Any) -> dict[str, Any]:
        """Answer a driver. What is wrong with the call is raised there."""
        if do == "begin":
            self._begin(key, driver, **told)
        section = self.sections.get(key)
        if section is None or section.driver != driver:
            return {"known": section is not None, "yours": False}
        section.heard = time.monotonic()
        if section.state != "ended":
            section.state = "alive"
        if do == "beat":
            await self._wait(section, float(told["wait"]))
            section.heard = time.monotonic()
        elif do == "push":
            self._push(section, **told)
        elif do == "script":
            self._keep_scripts(**told)
        elif do == "end":
            section.state, section.hint = "ended", str(told["hint"])
            section.complete = bool(told["complete"])
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
            # Whoever looks at it goes on looking.
            section.seen = before.seen
            before.wanted.set()
        self._forget_some()

    async def _wait(self, section: _Section, wait: float) -> None:
        """Wait for somebody to look."""
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
        section.take(int(number), whole, change, bokeh)

    def _keep_scripts(self, bokeh: str, files: dict[str, bytes]) -> None:
        size = sum(map(len, files.values()))
        if size > _LARGEST_SCRIPTS:
            raise ValueError(f"scripts must have at most {_LARGEST_SCRIPTS} bytes, got {size}")
        self.scripts[bokeh] = dict(files)
        while len(self.scripts) > _MOST_SCRIPTS:
            self.scripts.popitem(last=False)

    def _forget_some(self) -> None:
        """Forget the experiments that ended long ago."""
        over = [key for key, one in self.sections.items() if one.state != "alive"]
        for key in over[: max(0, len(over) - _MOST_OVER)]:
            del self.sections[key]
        while len(self.sections) > _MOST_SECTIONS:
            self.sections.popitem(last=False)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Tell at once that a driver is gone."""
        for section in self.sections.values():
            if section.client == client and section.state == "alive":
                section.state = "lost"
        self._forget_some()

    # What browsers ask

    def news(self, key: str) -> dict[str, Any]:
        """Return which experiments there are, and what there is of one of them."""
        section = self.sections.get(key)
        if section is not None:
            section.look()
        listed = [
            {"key": key, **{name: one.told()[name] for name in ("name", "state")}}
            for key, one in reversed(self.sections.items())
        ]
        return {"experiments": listed, "shown": None if section is None else section.told()}

    def part(self, key: str, number: int, *, whole: bool) -> bytes | None:
        """Return a page or a change of it, compressed; None if it is not there any more."""
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
        routes = [(rf"{self.path}(?:~(\w+))?/?", _Handler, {"board": self})]
        application = web.Application(routes)
        application.dasktune_path = self.path  # type: ignore[attr-defined]
        # One of the same protocol that was unregistered has left its own, which would come first.
        root.applications[:] = [
            one for one in root.applications if getattr(one, "dasktune_path", "") != self.path
        ]
        root.add_application(application)
        try:
            self._add_link(scheduler)
        except Exception:
            logger.debug("Dask's pages have no link to dasktune's", exc_info=True)

    def _add_link(self, scheduler: Any) -> None:
        """Add the page to those that Dask's own pages name, and take over what these are."""
        # Not imported: it takes long, and is there if Dask has any pages.
        theirs = sys.modules.get("distributed.dashboard.scheduler")
        has_pages = any(
            hasattr(one, "app_paths") for one in scheduler.http_application.applications
        )
        if theirs is None or not has_pages:
            return
        pages = theirs.template_variables(scheduler)["pages"]
        name = self.path.rpartition("/")[2]
        if name not in pages:
            pages.append(name)
        self.pages = pages


def _prefix(root: Any) -> str:
    """Return what stands before the paths of Dask's pages; no attribute tells it."""
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


def _bar(pages: list[str], own: str) -> str:
    """Return Dask's navigation bar, as its own pages have it; empty if there are none."""
    if not pages:
        return ""
    links = "".join(
        f'<li{active}><a href="{html.escape(name)}">{html.escape(name.title())}</a></li>'
        for name in pages
        for active in (' class="active"' if name == own else "",)
    )
    return f'<div class="navbar"><ul>{_LOGO}{links}</ul></div>'


class _Handler(web.RequestHandler):
    """Answers browsers."""

    def initialize(self, board: Any) -> None:
        self.board = board

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def get(self, what: str | None) -> None:
        if self.request.path.endswith("/"):
            # All links are relative.
            self.redirect("../" + self.request.path.rstrip("/").rpartition("/")[2])
            return
        ask = getattr(self, f"_{what or 'page'}", None)
        if what not in (None, "script", "news", "whole", "change", "bokeh") or ask is None:
            raise web.HTTPError(404)
        ask()

    def _page(self) -> None:
        own = self.board.path.rpartition("/")[2]
        parts = {
            "{head}": _HEAD if self.board.pages else "",
            "{pages}": _bar(self.board.pages, own),
            "{script}": html.escape(f"{own}~script"),
        }
        page = self.board.page
        for place, content in parts.items():
            page = page.replace(place, content)
        self.finish(page)

    def _script(self) -> None:
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.finish(self.board.script)

    def _news(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(self.board.news(self.get_query_argument("key", ""))))

    def _whole(self) -> None:
        self._part(True)

    def _change(self) -> None:
        self._part(False)

    def _part(self, whole: bool) -> None:
        number = self.get_query_argument("number", "")
        key = self.get_query_argument("key", "")
        number = number if number.isdecimal() and len(number) < 16 else "0"
        self._send(self.board.part(key, int(number), whole=whole), "application/json")

    def _bokeh(self) -> None:
        files = self.board.scripts.get(self.get_query_argument("version", ""), {})
        content = files.get(self.get_query_argument("name", ""))
        self._send(content, "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", "private, max-age=86400")

    def _send(self, content: bytes | None, kind: str) -> None:
        """Send what a driver has compressed as it is, to those who understand that."""
        if content is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", kind)
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
        else:
            content = gzip.decompress(content)
        self.write(content)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        self.finish(f"{status_code}")
