"""The control server: what it does, for which clients, and that no request harms the run."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from control_kit import TOKEN, Controlled, told_secret
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasktune.control import TuneClient
from dasktune.control.handlers import LARGEST_BODY
from dasktune.control.issuer import this_user
from dasktune.control.open_server import controlled
from dasktune.control.openapi import PREFIX, openapi_document
from dasktune.control.server import ControlServer
from dasktune.errors import ConfigError, ControlError
from dasktune.storage.journal.json_lines import decode
from dasktune.testing.memory_store import MemoryStore


@pytest.fixture
def place() -> Iterator[Controlled]:
    place = Controlled()
    yield place
    place.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Controlled]:
    """One for tests that change nothing, or do not mind what has changed."""
    place = Controlled(num_samples=-1)
    yield place
    place.close()


# What it does


def test_one_sees_how_an_experiment_stands(place: Controlled):
    place.until("RUNNING", 2)
    seen = place.client.get_experiment()
    assert (seen["state"], seen["metric"], seen["mode"], seen["total"]) == (
        "running",
        "loss",
        "min",
        4,
    )
    assert seen["counts"]["RUNNING"] == 2
    while (best := place.client.get_experiment()["best"]) is None:
        assert place.runs
    last = best["last_result"]
    assert last["loss"] == best["config"]["lr"] / last["training_iteration"]


def test_trials_are_listed_page_by_page(place: Controlled):
    running = place.until("RUNNING", 2)
    assert [one["trial_id"] for one in running] == [
        place.client.get_trials(status="RUNNING", limit=1, offset=n)[0]["trial_id"] for n in range(2)
    ]
    assert place.client.get_trials(offset=10**6) == []
    [first, *_] = place.client.get_all_trials()
    assert place.client.get_trial(first["trial_id"])["config"] == first["config"]


def test_a_trial_is_paused_resumed_and_stopped(place: Controlled):
    [first, _] = place.until("RUNNING", 2)
    key = first["trial_id"]
    assert place.client.pause_trial(key)["trial_id"] == key
    [paused] = place.until("PAUSED")
    assert (paused["trial_id"], paused["paused_by_user"]) == (key, True)
    assert paused["reason"] == "paused by the user"
    assert place.client.unpause_trial(key)["status"] == "PENDING"
    assert place.client.stop_trial(key)["trial_id"] == key
    [stopped] = place.until("TERMINATED")
    assert (stopped["trial_id"], stopped["reason"]) == (key, "stopped by the user")


def test_a_running_trial_is_asked_for_a_checkpoint(place: Controlled):
    [first, _] = place.until("RUNNING", 2)
    outcome = place.client.checkpoint_trial(first["trial_id"])
    assert outcome["trial_id"] == first["trial_id"]
    assert "will save a checkpoint" in outcome["message"]
    with pytest.raises(ControlError) as caught:
        place.client.checkpoint_trial("absent")
    assert caught.value.kind == "unknown"


def test_the_share_of_the_cluster_is_changed(place: Controlled):
    outcome = place.client.set_share(weight=2, priority=1)
    assert outcome["message"] == "the experiment has weight 2 and priority 1 on the cluster"
    place.client.set_share(priority=-1)
    state = place.experiment.state
    assert (state.weight, state.priority, state.yields_after) == (2.0, -1.0, None)
    place.client.set_share(yields_after=60)
    assert state.yields_after == 60.0
    # JSON has no infinity.
    place.client.set_share(yields_after=float("inf"))
    assert state.yields_after == float("inf")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "weight must be given if priority and yields_after are not, got None"),
        ({"weight": -1}, "weight must be a positive finite number, got -1"),
        ({"priority": float("inf")}, "priority must be a finite number, got inf"),
        ({"yields_after": -1}, "yields_after must be a number of seconds, at least 0, got -1"),
    ],
)
def test_the_client_refuses_an_invalid_share(shared: Controlled, given: Any, message: str):
    with pytest.raises(ConfigError) as caught:
        shared.client.set_share(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", 400),
        (b'{"weight": 1, "more": 1}', 400),
        (b'{"weight": 0}', 422),
        (b'{"weight": null}', 422),
        (b'{"weight": true}', 422),
        (b'{"priority": "high"}', 422),
        (b'{"weight": 1e999}', 422),
    ],
)
def test_the_server_refuses_an_invalid_share(shared: Controlled, body: bytes, code: int):
    assert shared.request("POST", f"{PREFIX}/experiment/share", body)[0] == code
    assert shared.experiment.state.weight is None


def test_a_trial_can_be_added_and_new_ones_held(place: Controlled):
    assert place.client.hold()["message"] == "no trial starts until release"
    assert place.client.get_experiment()["state"] == "held"
    added = place.client.add_trial({"lr": 0.25, "more": [1, None]})
    trial = place.client.get_trial(added["trial_id"])
    assert (trial["status"], trial["added"]) == ("PENDING", True)
    assert trial["config"] == {"lr": 0.25, "more": [1, None]}
    place.client.release()
    for one in place.until("RUNNING", 2):
        place.client.stop_trial(one["trial_id"])
    while place.client.get_trial(added["trial_id"])["status"] == "PENDING":
        assert place.runs


def test_the_experiment_is_stopped(place: Controlled):
    place.until("RUNNING", 2)
    assert "the experiment ends" in place.client.stop_experiment()["message"]
    place.wait()
    assert place.experiment.finished
    with pytest.raises(ControlError, match="does not run any more") as caught:
        place.client.get_experiment()
    assert caught.value.kind == "over"


def test_a_cancelled_run_can_be_gone_on_with(place: Controlled):
    place.until("RUNNING", 2)
    assert "restore" in place.client.cancel_experiment()["message"]
    place.wait()
    assert place.runner.interrupted
    assert not place.experiment.finished


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (lambda client: client.get_trial("no/body?"), "unknown", "there is no trial 'no/body\\?'"),
        (lambda client: client.stop_trial(".."), "unknown", "there is no trial"),
        (lambda client: client.add_trial({}), "invalid", "Missing: \\['lr'\\]"),
        (lambda client: client.add_trial({"lr": "x" * 9000}), "invalid", "a finite number"),
        (
            lambda client: client.add_trial({"lr": float("nan")}),
            "invalid",
            "JSON does not support a value",
        ),
        (
            lambda client: client.add_trial({"lr": {1, 2}}),
            "invalid",
            "JSON does not support a value",
        ),
        (lambda client: client.get_trials(limit=0), "invalid", "limit must be an integer"),
        (lambda client: client.get_trials(limit=1001), "invalid", "limit must be"),
        (lambda client: client.get_trials(offset=-1), "invalid", "offset must be"),
        (lambda client: client.get_all_trials(status="DEAD"), "invalid", "status must be"),
    ],
)
def test_what_makes_no_sense_is_refused_and_says_why(shared: Controlled, call: Any, kind: str, told: str):
    with pytest.raises(ControlError, match=told) as caught:
        call(shared.client)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 2000


# For which clients


@pytest.mark.parametrize("path", ["/experiment", "/openapi.json", "/trials", "/nothing", "/../etc"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", TOKEN, f"Basic {TOKEN}", "Bearer \xff"])
def test_without_the_token_all_is_refused(shared: Controlled, path: str, header: str | None):
    headers = {} if header is None else {"Authorization": header}
    status, told, body = shared.request("GET", PREFIX + path, token=None, **headers)
    assert (status, told["Www-Authenticate"]) == (401, "Bearer")
    assert body["error"]["kind"] == "refused"
    assert TOKEN not in json.dumps(body)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:80"},
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
def test_other_pages_and_other_names_have_no_business_there(shared: Controlled, headers: dict[str, str]):
    before = shared.client.get_experiment()["state"]
    status, told, _ = shared.request("POST", f"{PREFIX}/experiment/hold", **headers)
    assert status == 403
    assert "Access-Control-Allow-Origin" not in told
    assert shared.client.get_experiment()["state"] == before


def test_a_preflight_of_a_browser_is_not_answered_with_yes(shared: Controlled):
    status, told, _ = shared.request("OPTIONS", f"{PREFIX}/trials", token=None, Origin="http://evil.example")
    assert status == 403
    assert not any(name.lower().startswith("access-control") for name in told)


def test_answers_say_that_they_are_json_and_are_not_stored(shared: Controlled):
    status, told, _ = shared.request("GET", f"{PREFIX}/experiment")
    assert status == 200
    assert told["Content-Type"].startswith("application/json")
    assert (told["Cache-Control"], told["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert "Server" not in told


@pytest.mark.usefixtures("complete_notices")
def test_the_token_stands_in_no_log_and_no_repr(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.DEBUG)
    place = Controlled()
    try:
        with controlled(True, place.runner.commands) as server:
            assert server is not None
            told = capsys.readouterr().err
            assert server.token not in told
            assert told_secret(told, "Control") == f"TuneClient({server.url!r}, token={server.token!r})"
            client = TuneClient(server.url, server.token)
            client.get_experiment()
            with pytest.raises(ControlError):
                client.get_trial("x")
            assert server.token not in repr(server) + repr(client) + str(vars(client).get("url"))
            assert server.token not in caplog.text
            assert server.url in caplog.text
    finally:
        place.close()


# No request harms the run


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b'{"config": {"lr": NaN}}', 400),
        (b'{"config": {}, "config": {}}', 400),
        (b"[" * 100_000, 400),
        (b'{"config": 3}', 400),
        (b'{"config": {}, "more": 1}', 400),
        (b'{"config": {"lr": 1' + b"0" * 5000 + b"}}", 400),
        (b'{"config": {"lr": 1e999}}', 422),
    ],
)
def test_bad_bodies_are_refused(shared: Controlled, body: bytes, status: int):
    assert shared.request("POST", f"{PREFIX}/trials", body)[0] == status
    assert shared.runs


def test_a_body_must_say_that_it_is_json(shared: Controlled):
    body = b'{"config": {"lr": 1}}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert shared.request("POST", f"{PREFIX}/trials", body, Content_Type=kind)[0] in (400, 415)


def test_commands_take_no_body(shared: Controlled):
    assert shared.request("POST", f"{PREFIX}/experiment/hold", b'{"x": 1}')[0] == 400


def test_a_huge_body_is_not_read(shared: Controlled):
    with socket.create_connection(("127.0.0.1", shared.server.port), timeout=60) as line:
        head = (
            f"POST {PREFIX}/trials HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {LARGEST_BODY + 1}\r\n\r\n"
        )
        line.sendall(head.encode())
        assert line.recv(1000).startswith(b"HTTP/1.1 4")
    assert shared.client.get_experiment()["state"]


@pytest.mark.parametrize(
    "raw",
    [b"\r\n\r\n", b"GET", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9\r\n\r\n", b"A" * 100_000],
)
def test_what_is_no_request_costs_nothing(shared: Controlled, raw: bytes):
    with socket.create_connection(("127.0.0.1", shared.server.port), timeout=60) as line:
        line.sendall(raw)
    assert shared.client.get_experiment()["state"]


@pytest.mark.slow
def test_a_thousand_connections_that_say_nothing_do_not_keep_the_driver_from_its_work(
    shared: Controlled,
):
    lines = []
    try:
        for _ in range(1000):
            line = socket.create_connection(("127.0.0.1", shared.server.port), timeout=60)
            line.setblocking(False)
            lines.append(line)
        done = shared.runner.commands.ask(lambda experiment, now: len(experiment.trials))
        assert done.result(60) >= 0
    finally:
        for line in lines:
            line.close()
    # The server has perhaps not seen yet that the others have gone.
    while not answers(shared.client):
        assert shared.runs
    assert shared.runs


def answers(client: TuneClient) -> bool:
    with suppress(ControlError):
        return bool(client.get_experiment()["state"])
    return False


def test_many_clients_at_once_are_served_or_must_try_again(shared: Controlled):
    kinds: list[str] = []

    def call() -> None:
        for _ in range(10):
            try:
                shared.client.get_all_trials()
                kinds.append("")
            except ControlError as error:
                kinds.append(error.kind)

    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(kinds) <= {"", "busy", "unreachable"}
    assert "" in kinds
    assert shared.runs


def test_a_port_that_is_taken_costs_a_warning(caplog: pytest.LogCaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with controlled(port, None) as server:  # type: ignore[arg-type]
            assert server is None
    assert f"cannot start the control server at port {port}" in caplog.text


def test_no_server_starts_unless_it_is_wanted():
    for wanted in (None, False):
        with controlled(wanted, None) as server:  # type: ignore[arg-type]
            assert server is None


def test_a_server_may_be_closed_twice(place: Controlled):
    server = ControlServer(place.runner.commands)
    server.close()
    server.close()
    with pytest.raises(ControlError) as caught:
        TuneClient(server.url, server.token).get_experiment()
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize(
    ("url", "token", "timeout"),
    [
        ("localhost:1", "x", 1),
        ("ftp://x", "x", 1),
        (3, "x", 1),
        ("http://x", "", 1),
        ("http://x", "a\nb", 1),
        ("http://x", None, 1),
        ("http://x", "x", 0),
    ],
)
def test_a_client_needs_an_address_and_a_token(url: Any, token: Any, timeout: float):
    with pytest.raises(ConfigError, match="must be"):
        TuneClient(url, token, timeout=timeout)


# What the description says


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
        if not path.endswith(("/stop", "/cancel"))
    ]


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is as a schema says, as far as this description goes."""
    if "$ref" in schema:
        return fits(value, openapi_document()["components"]["schemas"][schema["$ref"].split("/")[-1]])
    if value is None:
        return bool(schema.get("nullable"))
    if "allOf" in schema:
        return all(fits(value, one) for one in schema["allOf"])
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds |= {"object": dict, "array": list}
    if not isinstance(value, kinds[schema["type"]]):
        return False
    if schema["type"] == "array":
        return all(fits(one, schema["items"]) for one in value)
    if schema["type"] != "object":
        return True
    known = schema.get("properties", {})
    return value.keys() >= set(schema.get("required", ())) and all(
        fits(one, known[name]) for name, one in value.items() if name in known
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BODIES = (
    st.none()
    | st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries({"config": st.fixed_dictionaries({"lr": JSON})}).map(
        lambda value: json.dumps(value).encode()
    )
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_sent_is_answered_as_the_description_says(shared: Controlled, data: Any):
    path, method, operation = data.draw(st.sampled_from(operations()))
    known = [one["trial_id"] for one in shared.client.get_trials(limit=3)]
    name = data.draw(st.sampled_from(known) if known and data.draw(st.booleans()) else st.text())
    target = PREFIX + path.replace("{trial_id}", quote(name, safe="") or "-")
    names = st.sampled_from(["status", "limit", "offset"]) | st.text(max_size=5)
    values = st.sampled_from(["PENDING", "ERROR", "1", "5"]) | st.text(max_size=5)
    query = data.draw(st.dictionaries(names, values, max_size=2))
    if method == "get" and query:
        target += f"?{urlencode(query)}"
    body = data.draw(BODIES) if method == "post" else None
    status, headers, told = shared.request(method.upper(), target, body)
    assert status < 500 or (status, told["error"]["kind"]) == (503, "busy")
    answer = operation["responses"].get(str(status))
    assert answer is not None, f"{status} is not described"
    assert headers["Content-Type"].startswith("application/json")
    if "content" in answer:
        assert fits(told, answer["content"]["application/json"]["schema"])
    assert shared.runs
    if shared.experiment.state.on_hold:
        shared.client.release()


def test_the_description_can_be_asked_for_and_names_all_there_is(shared: Controlled):
    status, _, told = shared.request("GET", f"{PREFIX}/openapi.json")
    assert (status, told) == (200, json.loads(json.dumps(openapi_document())))
    for path, methods in told["paths"].items():
        target = PREFIX + path.replace("{trial_id}", "absent")
        for method in {"get", "post", "put", "delete"} - methods.keys():
            assert shared.request(method.upper(), target)[0] == 405


def test_every_operation_has_a_name_the_clients_and_says_that_it_may_be_refused():
    named = {
        operation["operationId"]: operation["responses"]
        for methods in openapi_document()["paths"].values()
        for operation in methods.values()
    }
    assert len(named) == sum(len(methods) for methods in openapi_document()["paths"].values())
    assert all("401" in responses for responses in named.values())
    assert all(hasattr(TuneClient, name) for name in named.keys() - {"get_description"})


def test_a_method_that_there_is_not_is_answered_with_those_that_there_are(shared: Controlled):
    for path, methods in openapi_document()["paths"].items():
        target = PREFIX + path.replace("{trial_id}", "absent")
        status, told, _ = shared.request("DELETE", target)
        assert (status, told["Allow"]) == (405, ", ".join(sorted(map(str.upper, methods))))


# Who issues commands


def issuers(place: Controlled) -> list[str]:
    """Return who issued the commands in the journal so far."""
    assert isinstance(place.store, MemoryStore)
    records = [decode(line) for line in place.store.journal.splitlines()]
    return [record["by"] for record in records if "by" in record]


@pytest.fixture
def journaled() -> Iterator[Controlled]:
    place = Controlled(num_samples=-1)
    yield place
    place.close()


def test_the_journal_says_who_issued_each_command(journaled: Controlled):
    client = journaled.client
    trial, other = [one["trial_id"] for one in journaled.until("RUNNING", 2)]
    client.checkpoint_trial(trial)
    client.pause_trial(trial)
    client.unpause_trial(trial)
    client.stop_trial(other)
    client.add_trial({"lr": 0.1})
    client.hold()
    client.release()
    client.set_share(weight=2)
    client.stop_experiment()
    journaled.wait()
    by = issuers(journaled)
    assert len(by) == 9
    assert len(set(by)) == 1
    assert by[0].startswith(f"{this_user()} (HTTP")
    # The system knows the user of the connection, whatever the client says.
    if sys.platform == "linux":
        import pwd

        user = f"uid {os.getuid()}"
        with suppress(KeyError):  # in some containers the user has no name
            user = f"user {pwd.getpwuid(os.getuid()).pw_name}"
        assert by[0].endswith(f", {user})")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "unnamed client"),
        ("", "unnamed client"),
        ("ann%40node%C3%BC", "ann@nodeü"),
        ("a%0Ab%1B%5B31m", "a b?[31m"),
        (f"a%20{TOKEN}", "a ***"),
        ("root (HTTP, user root)", "root [HTTP, user root]"),
        ("x" * 90 + TOKEN, "x" * 90 + "***"),
        ("x" * 300, "x" * 99 + "…"),
    ],
)
def test_the_name_of_a_client_is_short_plain_and_without_the_token(
    journaled: Controlled, given: str | None, shown: str
):
    headers = {} if given is None else {"Dasktune_User": given}
    assert journaled.request("POST", f"{PREFIX}/experiment/hold", b"{}", **headers)[0] == 200
    [by] = issuers(journaled)
    assert by.startswith(f"{shown} (HTTP")
    assert TOKEN[-8:] not in by


def test_requests_that_change_nothing_are_not_journaled(journaled: Controlled):
    journaled.client.release()
    journaled.client.get_experiment()
    assert issuers(journaled) == []
