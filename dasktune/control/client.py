"""The client of the control server; it needs nothing but the standard library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final, TypedDict, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from dasktune.errors import ControlError, check

__all__ = ["ExperimentInfo", "OutcomeInfo", "TrialInfo", "TuneClient"]

#: Trials that are asked for at a time.
_PAGE: Final = 500


class TrialInfo(TypedDict):
    """What is told of a trial. Times are seconds of the driver's clock, None before they come."""

    trial_id: str
    status: str
    paused_by_user: bool
    config: dict[str, Any]
    tag: str
    added: bool
    training_iteration: int
    last_result: dict[str, Any]
    worker: str
    started_at: float | None
    ended_at: float | None
    failures: int
    losses: int
    error: str | None
    reason: str


class ExperimentInfo(TypedDict):
    """What is told of an experiment; `state` is ``"running"``, ``"held"`` or ``"stopping"``."""

    state: str
    reason: str
    time: float
    counts: dict[str, int]
    paused_by_user: int
    total: int | None
    metric: str | None
    mode: str | None
    best: TrialInfo | None


class OutcomeInfo(TypedDict):
    """What came of a command. A trial that is told to leave its worker may take a while."""

    message: str
    trial_id: str
    status: str


class _NoRedirect(HTTPRedirectHandler):
    """Follows nobody: the token is meant for one server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class TuneClient:
    """Watches and commands an experiment that runs with ``RunConfig(server_port=...)``.

    Parameters
    ----------
    url : str
        Where the driver says that its server is, such as ``"http://127.0.0.1:4321"``.
    token : str
        What the driver has printed besides.
    timeout : float, default=30.0
        Seconds to wait for an answer.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Notes
    -----
    Every method raises `ControlError` where the server refuses what is asked; its ``kind`` says
    why. One of the kind ``"unreachable"`` means that no answer came.

    Examples
    --------
    >>> client = TuneClient("http://127.0.0.1:4321", token="...")
    >>> for trial in client.get_all_trials(status="RUNNING"):  # doctest: +SKIP
    ...     client.stop_trial(trial["trial_id"])
    """

    def __init__(self, url: str, token: str, *, timeout: float = 30.0) -> None:
        given: object = url
        parts = urlsplit(url) if isinstance(given, str) else None
        is_web = parts is not None and parts.scheme in ("http", "https") and bool(parts.netloc)
        check(is_web, "url", "an http:// address", url)
        text: object = token
        fits = isinstance(text, str) and text.isascii() and text.isprintable() and text != ""
        # It is no password that an error may show.
        check(fits, "token", "the text that the driver has printed", type(token).__name__)
        check(timeout > 0, "timeout", "a positive number of seconds", timeout)
        self.url = url.rstrip("/")
        self._token, self._timeout = token, timeout
        # No proxy has business with a server on this machine.
        self._opener = build_opener(ProxyHandler({}), _NoRedirect())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # Looking

    def get_experiment(self) -> ExperimentInfo:
        """Return how the experiment stands: state, counts, and the trial that is best now."""
        return cast(ExperimentInfo, self._call("GET", "experiment"))

    def get_all_trials(self, status: str | None = None) -> list[TrialInfo]:
        """Return all trials, in the order in which they were added.

        Parameters
        ----------
        status : str, optional
            Only those with this status, one of ``"PENDING"``, ``"RUNNING"``, ``"PAUSED"``,
            ``"TERMINATED"`` and ``"ERROR"``.
        """
        trials: list[TrialInfo] = []
        while True:
            page = self.get_trials(status=status, limit=_PAGE, offset=len(trials))
            trials += page
            if len(page) < _PAGE:
                return trials

    def get_trials(
        self, *, status: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[TrialInfo]:
        """Return some of the trials.

        Parameters
        ----------
        status : str, optional
            As for :meth:`get_all_trials`.
        limit : int, default=100
            How many at most, up to 1,000.
        offset : int, default=0
            How many are left out before the first.
        """
        query: dict[str, Any] = {"limit": limit, "offset": offset}
        if status is not None:
            query["status"] = status
        return cast("list[TrialInfo]", self._call("GET", f"trials?{urlencode(query)}")["trials"])

    def get_trial(self, trial_id: str) -> TrialInfo:
        """Return a trial.

        Parameters
        ----------
        trial_id : str
            Which.
        """
        return cast(TrialInfo, self._call("GET", _path(trial_id)))

    # Trials

    def add_trial(self, config: Mapping[str, Any]) -> OutcomeInfo:
        """Add a trial, which goes before the suggestions of the search.

        Parameters
        ----------
        config : mapping
            Its whole configuration, of values that JSON has words for.
        """
        return self._command("trials", {"config": dict(config)})

    def stop_trial(self, trial_id: str) -> OutcomeInfo:
        """End a trial, wherever it is.

        Parameters
        ----------
        trial_id : str
            Which.
        """
        return self._command(f"{_path(trial_id)}/stop")

    def pause_trial(self, trial_id: str) -> OutcomeInfo:
        """Let a trial leave its worker and rest until :meth:`unpause_trial`.

        Parameters
        ----------
        trial_id : str
            Which.
        """
        return self._command(f"{_path(trial_id)}/pause")

    def unpause_trial(self, trial_id: str) -> OutcomeInfo:
        """Let a trial that rests wait for a place again, from its last checkpoint.

        Parameters
        ----------
        trial_id : str
            Which.
        """
        return self._command(f"{_path(trial_id)}/unpause")

    # Everything

    def hold(self) -> OutcomeInfo:
        """Let no trial start until :meth:`release`; what runs goes on."""
        return self._command("experiment/hold")

    def release(self) -> OutcomeInfo:
        """Let trials start again."""
        return self._command("experiment/release")

    def stop_experiment(self) -> OutcomeInfo:
        """End the experiment: all trials are stopped, and count as finished."""
        return self._command("experiment/stop")

    def cancel_experiment(self) -> OutcomeInfo:
        """End the run as Ctrl-C does: trials stay unfinished, `Tuner.restore` goes on with them."""
        return self._command("experiment/cancel")

    def _command(self, path: str, body: Mapping[str, Any] | None = None) -> OutcomeInfo:
        return cast(OutcomeInfo, self._call("POST", path, {} if body is None else body))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        data = None
        if body is not None:
            try:
                data = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise ControlError(f"JSON has no words for it: {error}", "invalid") from error
            headers["Content-Type"] = "application/json"
        request = Request(f"{self.url}/api/v1/{path}", data=data, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            with error:
                raise _refusal(error) from None
        except (OSError, HTTPException, ValueError) as error:
            raise ControlError(f"no answer from {self.url}: {error}", "unreachable") from error


def _path(trial_id: str) -> str:
    return f"trials/{quote(trial_id, safe='')}"


def _refusal(error: HTTPError) -> ControlError:
    try:
        told = json.loads(error.read())["error"]
        return ControlError(str(told["message"]), str(told["kind"]))
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return ControlError(f"the server answered {error.code}", "refused")
