"""Watches the metadata service of a cloud for the end of this machine, and gives the worker notice.

Each cloud announces the end of a spot machine at an address that only the machine itself can reach:

- AWS: ``spot/instance-action`` of the instance metadata, with a token (IMDSv2), two minutes before.
- Google: ``instance/preempted`` of the metadata server, 30 seconds before.
- Azure: scheduled events of the type ``Preempt``, at least 30 seconds before.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, Final, Literal
from urllib.error import HTTPError

from distributed import WorkerPlugin

from dasktune.cluster.worker.worker_notices import give_notice
from dasktune.errors import check

logger = logging.getLogger(__name__)

#: The addresses of the metadata services.
_SERVICES: Final = {
    "aws": "http://169.254.169.254",
    "azure": "http://169.254.169.254",
    "gcp": "http://metadata.google.internal",
}

#: Seconds that the services give before the end, if they do not name the time.
_GIVEN: Final = 30.0

#: Seconds that one request may take.
_TIMEOUT: Final = 5.0

#: Seconds for which a token of AWS is valid. A new one is requested after half of them.
_TOKEN_SECONDS: Final = 300

#: A proxy of the environment must not get these requests.
_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PreemptionNotices(WorkerPlugin):  # type: ignore[misc]
    """Give each worker notice when the cloud announces the end of its machine.

    Register it on the cluster by ``client.register_plugin``, before or while experiments run;
    workers that join later get it, too. The trials of the machine then save, leave and resume
    elsewhere, see :func:`~dasktune.should_checkpoint`. A thread of each worker asks the metadata
    service of its machine. If the service does not answer, the worker logs a warning once, and asks
    again.

    Parameters
    ----------
    cloud : {"aws", "gcp", "azure"}
        The cloud.
    interval_s : float, default=5.0
        Seconds between two requests.
    service : str, optional
        The URL of the metadata service; by default that of the cloud.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Notes
    -----
    In a container on AWS the service answers only if the instance's hop limit for its metadata,
    ``HttpPutResponseHopLimit``, is at least 2.

    Examples
    --------
    >>> client.register_plugin(PreemptionNotices("gcp"))  # doctest: +SKIP
    """

    name = "dasktune-preemption"
    idempotent = True

    def __init__(
        self, cloud: Literal["aws", "gcp", "azure"], *, interval_s: float = 5.0, service: str | None = None
    ) -> None:
        check(cloud in _SERVICES, "cloud", f"one of {', '.join(sorted(_SERVICES))}", cloud)
        given: object = interval_s
        number = isinstance(given, int | float) and not isinstance(given, bool)
        check(number and interval_s > 0, "interval_s", "a number of seconds above 0", interval_s)
        self.cloud = cloud
        self.interval_s = interval_s
        self.service = _SERVICES[cloud] if service is None else service.rstrip("/")

    def setup(self, worker: Any) -> None:
        """Start the thread; Dask calls this on each worker."""
        self._ended = threading.Event()
        threading.Thread(target=self._watch, args=(worker,), name="dasktune-preemption", daemon=True).start()

    def teardown(self, worker: Any) -> None:
        """End the thread; Dask calls this."""
        self._ended.set()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_ended"}

    def _watch(self, worker: Any) -> None:
        service = _CLOUDS[self.cloud](self.service)
        is_known = True
        last: object = None
        while not self._ended.wait(self.interval_s):
            try:
                end = service.announced_end()
            except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
                if is_known:
                    message = "the metadata service of %s at %s does not say whether this machine ends: %s"
                    logger.warning(message, self.cloud, self.service, error)
                is_known = False
                continue
            is_known = True
            if end is not None and end.identity != last:
                # A notice is given once, but another one replaces it.
                last = end.identity
                seconds = max(1.0, end.seconds)
                logger.warning("%s ends this machine in %.0f s", self.cloud, seconds)
                give_notice(worker, seconds, end.reason)


class _AnnouncedEnd:
    """The end of the machine.

    Parameters
    ----------
    identity : object
        Equal for equal announcements.
    seconds : float
        Seconds until then.
    reason : str
        What the cloud calls it.
    """

    def __init__(self, identity: object, seconds: float, reason: str) -> None:
        self.identity, self.seconds, self.reason = identity, seconds, reason


class _Aws:
    """The instance metadata service of AWS, version 2."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._token = ""
        self._refresh_at = 0.0

    def announced_end(self) -> _AnnouncedEnd | None:
        """Return the end; None as long as none is announced."""
        if not self._token or time.monotonic() > self._refresh_at:
            validity = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
            self._token = _request(f"{self._service}/latest/api/token", validity, "PUT")
            self._refresh_at = time.monotonic() + _TOKEN_SECONDS / 2
        url = f"{self._service}/latest/meta-data/spot/instance-action"
        try:
            text = _request(url, {"X-aws-ec2-metadata-token": self._token})
        except HTTPError as error:
            if error.code == 404:  # the answer of AWS as long as there is none
                return None
            self._token = ""  # it may have expired
            raise
        action = json.loads(text)
        end = datetime.strptime(action["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        return _AnnouncedEnd(text, _seconds_until(end), f"AWS: spot instance, {action['action']}")


class _Gcp:
    """The metadata server of Google."""

    def __init__(self, service: str) -> None:
        self._service = service

    def announced_end(self) -> _AnnouncedEnd | None:
        """Return the end; None as long as none is announced."""
        url = f"{self._service}/computeMetadata/v1/instance/preempted"
        text = _request(url, {"Metadata-Flavor": "Google"}).strip()
        if text not in ("TRUE", "FALSE"):
            raise ValueError(f"the answer is {text[:80]!r}")
        return _AnnouncedEnd(text, _GIVEN, "Google Cloud: preempted") if text == "TRUE" else None


class _Azure:
    """The scheduled events of Azure."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._own = ""

    def announced_end(self) -> _AnnouncedEnd | None:
        """Return the end; None as long as none is announced."""
        metadata = {"Metadata": "true"}
        if not self._own:
            url = f"{self._service}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._own = _request(url, metadata).strip()
        url = f"{self._service}/metadata/scheduledevents?api-version=2020-07-01"
        for event in json.loads(_request(url, metadata))["Events"]:
            # All machines of a set see the events of all others.
            if event["EventType"] == "Preempt" and self._own in event["Resources"]:
                return _AnnouncedEnd(event["EventId"], _azure_seconds(event), "Azure: preempted")
        return None


def _azure_seconds(event: Mapping[str, Any]) -> float:
    """Return the seconds until an event; it has no time once it has begun."""
    return _seconds_until(parsedate_to_datetime(event["NotBefore"])) if event.get("NotBefore") else _GIVEN


def _seconds_until(end: datetime) -> float:
    return (end - datetime.now(timezone.utc)).total_seconds()


def _request(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    with _opener.open(request, timeout=_TIMEOUT) as answer:
        text: str = answer.read().decode()
    return text


_Service = Callable[[str], Any]

_CLOUDS: Final[Mapping[str, _Service]] = {"aws": _Aws, "gcp": _Gcp, "azure": _Azure}
