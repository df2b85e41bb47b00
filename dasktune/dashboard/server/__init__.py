"""The dashboard: the figures of an experiment in a browser, while it goes on."""

from dasktune.dashboard.server.serve import serve
from dasktune.dashboard.server.web import WebServer

__all__ = ["WebServer", "serve"]
