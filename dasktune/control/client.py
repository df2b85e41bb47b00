"""`TuneClient`, the client of the control server; it uses the standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from math import inf
from typing import Any, Final, TypedDict, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from dasktune.config.validation import check_share
from dasktune.control.issuer import HEADER, user_header
from dasktune.control.openapi import NEVER
from dasktune.errors import ControlError, check
from dasktune.trial.metrics import number

#: Trials per request.
_PAGE: Final = 500


class TrialSnapshot(TypedDict):
    """The state of a trial. Times are seconds of the driver's clock, None before the event."""

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
    """The state of an experiment; `state` is ``"running"``, ``"held"`` or ``"stopping"``."""

    state: str
    reason: str
    time: float
    counts: dict[str, int]
    paused_by_user: int
    total: int | None
    metric: str | None
    mode: str | None
    best: TrialSnapshot | None


class OutcomeInfo(TypedDict):
    """The outcome of a command. A stopped or paused trial may take a while to leave its worker."""

    message: str
    trial_id: str
    status: str


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, because the token is meant for one server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class TuneClient:
    """A client that monitors and controls an experiment with ``RunConfig(server_port=...)``.

    Parameters
    ----------
    url : str
        The URL that the driver has printed, such as ``"http://127.0.0.1:4321"``.
    token : str
        The token that the driver has printed with it.
    timeout : float, default=30.0
        Seconds to wait for an answer.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Notes
    -----
    Every method raises `ControlError` if the server refuses a request; its ``kind`` says why. The
    kind ``"unreachable"`` means that no answer came: the command may have been executed.

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
        # The message has the type only, because the token is a secret.
        check(fits, "token", "the text that the driver has printed", type(token).__name__)
        check(timeout > 0, "timeout", "a positive number of seconds", timeout)
        self.url = url.rstrip("/")
        self._token, self._timeout = token, timeout
        # The server is on this machine, so a proxy must not be used.
        self._opener = build_opener(ProxyHandler({}), _NoRedirect())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # Queries

    def get_experiment(self) -> ExperimentInfo:
        """Return the state of the experiment, its trials by status, and the best trial so far."""
        return cast(ExperimentInfo, self._call("GET", "experiment"))

    def get_all_trials(self, status: str | None = None) -> list[TrialSnapshot]:
        """Return all trials, in the order in which they were added.

        Parameters
        ----------
        status : str, optional
            Return only trials with this status, one of ``"PENDING"``, ``"RUNNING"``, ``"PAUSED"``,
            ``"TERMINATED"`` and ``"ERROR"``.
        """
        trials: list[TrialSnapshot] = []
        while True:
            page = self.get_trials(status=status, limit=_PAGE, offset=len(trials))
            trials += page
            if len(page) < _PAGE:
                return trials

    def get_trials(
        self, *, status: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[TrialSnapshot]:
        """Return a page of the trials.

        Parameters
        ----------
        status : str, optional
            As for :meth:`get_all_trials`.
        limit : int, default=100
            Maximum number of trials to return, from 1 to 1,000.
        offset : int, default=0
            The number of trials to skip.
        """
        query: dict[str, Any] = {"limit": limit, "offset": offset}
        if status is not None:
            query["status"] = status
        return cast("list[TrialSnapshot]", self._call("GET", f"trials?{urlencode(query)}")["trials"])

    def get_trial(self, trial_id: str) -> TrialSnapshot:
        """Return the state of a trial.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return cast(TrialSnapshot, self._call("GET", _path(trial_id)))

    # Trials

    def add_trial(self, config: Mapping[str, Any]) -> OutcomeInfo:
        """Add a trial; it starts before the searcher's next suggestion.

        Parameters
        ----------
        config : mapping
            The complete configuration, of values that JSON supports.
        """
        return self._command("trials", {"config": dict(config)})

    def stop_trial(self, trial_id: str) -> OutcomeInfo:
        """Stop a trial that is pending, running or paused.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return self._command(f"{_path(trial_id)}/stop")

    def pause_trial(self, trial_id: str) -> OutcomeInfo:
        """Pause a trial until :meth:`unpause_trial`; it releases its worker.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return self._command(f"{_path(trial_id)}/pause")

    def unpause_trial(self, trial_id: str) -> OutcomeInfo:
        """Let a paused trial resume from its last checkpoint as soon as resources are free.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return self._command(f"{_path(trial_id)}/unpause")

    def checkpoint_trial(self, trial_id: str) -> OutcomeInfo:
        """Let a running trial of the class API save a checkpoint with one of its next results.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        return self._command(f"{_path(trial_id)}/checkpoint")

    # The experiment

    def hold(self) -> OutcomeInfo:
        """Start no trial until :meth:`release`; running trials continue."""
        return self._command("experiment/hold")

    def release(self) -> OutcomeInfo:
        """Let trials start again after :meth:`hold`."""
        return self._command("experiment/release")

    def set_share(
        self,
        weight: float | None = None,
        priority: float | None = None,
        yields_after: float | None = None,
    ) -> OutcomeInfo:
        """Change the experiment's share of a cluster on which other experiments run.

        The share applies to trials that start from now on, and to later drivers of the experiment.

        Parameters
        ----------
        weight, priority, yields_after : float, optional
            The new values, as for :class:`~dasktune.RunConfig`. At least one is needed; the others
            stay as they are.

        Raises
        ------
        ConfigError
            If an argument breaks its rule.
        """
        check_share(weight, priority, yields_after)
        # JSON has no infinity.
        after = NEVER if yields_after == inf else number(yields_after)
        given = {"weight": number(weight), "priority": number(priority), "yields_after": after}
        return self._command("experiment/share", {k: v for k, v in given.items() if v is not None})

    def stop_experiment(self) -> OutcomeInfo:
        """Stop all trials, which count as finished, and end the experiment."""
        return self._command("experiment/stop")

    def cancel_experiment(self) -> OutcomeInfo:
        """End the run as Ctrl-C does: `Tuner.restore` can resume the unfinished trials."""
        return self._command("experiment/cancel")

    def _command(self, path: str, body: Mapping[str, Any] | None = None) -> OutcomeInfo:
        return cast(OutcomeInfo, self._call("POST", path, {} if body is None else body))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if method != "GET":
            headers[HEADER] = user_header()  # for the journal
        data = None
        if body is not None:
            try:
                data = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise ControlError(f"JSON does not support a value: {error}", "invalid") from error
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
        answer = json.loads(error.read())["error"]
        return ControlError(str(answer["message"]), str(answer["kind"]))
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return ControlError(f"the server answered {error.code}", "refused")
