"""The end of a machine, as the metadata services of the clouds announce it."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.cluster.notices.preemption import PreemptionNotices
from dasktune.cluster.worker.worker_notices import WorkerNotices
from dasktune.errors import ConfigError

PATIENCE = 30.0

TOKEN = "a-token"

#: In place of a status: the service answers something else.
NO_HTTP = -1


class Service:
    """A metadata service of a cloud on this machine."""

    def __init__(self, cloud: str) -> None:
        self.cloud = cloud
        #: What it announces: None, or the seconds that are left.
        self.left: float | None = None
        self.identity = "1"
        self.end = ""
        self.status = 0
        self.resources = ["vm-1"]
        self.requests = 0
        self.asked = threading.Event()
        #: Tokens of AWS that it has given.
        self.tokens = 0

        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                service.answer(self)

            def do_GET(self) -> None:
                service.answer(self)

            def log_message(self, *arguments: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def answer(self, request: Any) -> None:
        if self.status == NO_HTTP:
            request.wfile.write(b"no HTTP\r\n")
            self.requests += 1
            self.asked.set()
            return
        status, text = (self.status, "") if self.status else getattr(self, self.cloud)(request)
        body = text.encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
        self.requests += 1
        self.asked.set()

    def aws(self, request: Any) -> tuple[int, str]:
        if request.command == "PUT" and request.path == "/latest/api/token":
            assert int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
            self.tokens += 1
            return 200, f"{TOKEN}-{self.tokens}"
        if request.headers["X-aws-ec2-metadata-token"] != f"{TOKEN}-{self.tokens}":
            return 401, ""
        assert request.path == "/latest/meta-data/spot/instance-action"
        if self.left is None:
            return 404, ""
        if not self.end:
            self.end = f"{datetime.now(timezone.utc) + timedelta(seconds=self.left):%Y-%m-%dT%H:%M:%SZ}"
        return 200, json.dumps({"action": "terminate", "time": self.end})

    def gcp(self, request: Any) -> tuple[int, str]:
        assert request.headers["Metadata-Flavor"] == "Google"
        assert request.path == "/computeMetadata/v1/instance/preempted"
        return 200, "FALSE" if self.left is None else "TRUE"

    def azure(self, request: Any) -> tuple[int, str]:
        assert request.headers["Metadata"] == "true"
        path = request.path.partition("?")[0]
        if path == "/metadata/instance/compute/name":
            return 200, "vm-1"
        assert path == "/metadata/scheduledevents"
        reboot = {"EventId": "0", "EventType": "Reboot", "Resources": ["vm-1"], "NotBefore": ""}
        if self.left is None:
            return 200, json.dumps({"Events": [reboot]})
        end = datetime.now(timezone.utc) + timedelta(seconds=self.left)
        event = {
            "EventId": self.identity,
            "EventType": "Preempt",
            "Resources": self.resources,
            "NotBefore": format_datetime(end, usegmt=True) if self.left else "",
        }
        return 200, json.dumps({"Events": [reboot, event]})


@pytest.fixture(params=["aws", "gcp", "azure"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    service = Service(request.param)
    yield service
    service.server.shutdown()
    service.server.server_close()


class Worker(SimpleNamespace):
    """A worker as far as a notice needs it."""

    def __init__(self) -> None:
        self.given = threading.Event()
        super().__init__(loop=SimpleNamespace(add_callback=self._call))

    def _call(self, function: Any, *arguments: Any) -> None:
        function(*arguments)
        self.given.set()


@pytest.fixture
def worker(service: Service) -> Iterator[Worker]:
    """Return a worker that watches the service, as it does after the plugin has travelled to it."""
    worker = Worker()
    plugin = PreemptionNotices(service.cloud, interval_s=0.01, service=service.url)  # type: ignore[arg-type]
    plugin = pickle.loads(pickle.dumps(plugin))
    plugin.setup(worker)
    assert pickle.loads(pickle.dumps(plugin)).service == service.url.rstrip("/")
    yield worker
    plugin.teardown(worker)


def test_the_worker_is_given_notice_once(service: Service, worker: Worker) -> None:
    wait_for_requests(service, 3)
    assert WorkerNotices.of(worker).current is None
    service.left = 100.0
    assert worker.given.wait(PATIENCE)
    notice = WorkerNotices.of(worker).current
    assert notice is not None
    name = {"aws": "AWS", "gcp": "Google Cloud", "azure": "Azure"}[service.cloud]
    assert notice.reason.startswith(name)
    # Google does not say when.
    most = 30 if service.cloud == "gcp" else 100
    assert most - 15 < notice.seconds <= most
    worker.given.clear()
    # It is the same announcement each time.
    wait_for_requests(service, 4)
    assert not worker.given.is_set()


@pytest.mark.parametrize("status", [500, NO_HTTP])
def test_a_service_that_does_not_answer_is_asked_again(
    service: Service, worker: Worker, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    service.status = status
    wait_for_requests(service, 3)
    assert caplog.text.count("does not say whether this machine ends") == 1
    service.status = 0
    service.left = 100.0
    assert worker.given.wait(PATIENCE)


@pytest.mark.parametrize("service", ["azure"], indirect=True)
def test_the_end_of_another_machine_is_not_that_of_this_one(service: Service, worker: Worker) -> None:
    service.resources = ["vm-2"]
    service.left = 100.0
    wait_for_requests(service, 4)
    assert not worker.given.is_set()
    service.resources = ["vm-2", "vm-1"]
    service.left = 0.0  # it has begun
    assert worker.given.wait(PATIENCE)
    notice = WorkerNotices.of(worker).current
    assert notice is not None
    assert 20 < notice.seconds <= 30


@pytest.mark.parametrize("service", ["aws"], indirect=True)
def test_an_expired_token_is_replaced(service: Service, worker: Worker) -> None:
    wait_for_requests(service, 2)
    service.tokens += 1  # the one that the worker has is not valid any more
    service.left = 100.0
    assert worker.given.wait(PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cloud": "moon"}, "cloud must be one of aws, azure, gcp, got 'moon'"),
        ({"cloud": "aws", "interval_s": 0}, "interval_s must be a number of seconds above 0, got 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PreemptionNotices(**arguments)


def wait_for_requests(service: Service, count: int) -> None:
    """Wait until the service has answered so many further requests."""
    goal = service.requests + count
    while service.requests < goal:
        service.asked.clear()
        assert service.requests >= goal or service.asked.wait(PATIENCE)
