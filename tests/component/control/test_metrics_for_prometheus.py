"""The metrics of a driver: who gets them, and that Prometheus's own checker accepts them."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from control_kit import TOKEN, Controlled

from dasktune.control.exposition import CONTENT_TYPE
from dasktune.control.openapi import PREFIX

PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def public() -> Iterator[Controlled]:
    place = Controlled(num_samples=-1, public_metrics=True)
    yield place
    place.close()


@pytest.fixture(scope="module")
def private() -> Iterator[Controlled]:
    place = Controlled(num_samples=-1)
    yield place
    place.close()


def scrape(place: Controlled, **headers: str) -> tuple[int, str, str]:
    """Return the status, the media type and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", place.server.port, timeout=60)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_prometheus_gets_the_numbers_of_a_running_experiment(public: Controlled):
    public.until("RUNNING", 2)
    while True:  # the answer before this one may be given again
        status, kind, text = scrape(public)
        assert (status, kind) == (200, CONTENT_TYPE)
        if 'dasktune_trials{status="RUNNING"} 2\n' in text:
            break
        assert public.runs


def test_without_the_switch_the_metrics_need_the_token(private: Controlled):
    status, _, text = scrape(private)
    assert status == 401
    assert "dasktune" not in text
    assert scrape(private, **bearer("wrong"))[0] == 401
    status, kind, text = scrape(private, **bearer(TOKEN))
    assert (status, kind) == (200, CONTENT_TYPE)
    assert "dasktune_results " in text


def test_with_the_switch_all_other_paths_still_need_the_token(public: Controlled):
    for path in ("/experiment", "/trials", "/openapi.json", "/trials/x"):
        assert public.request("GET", f"{PREFIX}{path}", token=None)[0] == 401
    assert public.request("POST", f"{PREFIX}/experiment/stop", b"{}", token=None)[0] == 401
    assert public.request("GET", "/metrics/", token=None)[0] == 401
    assert public.request("POST", "/metrics", b"{}", token=None)[0] == 405
    assert public.runs


@pytest.mark.parametrize(
    "header",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Authorization": "Bearer wrong"},
    ],
)
def test_pages_of_other_sites_and_other_names_get_no_metrics(public: Controlled, header: dict[str, str]):
    status, _, text = scrape(public, **header)
    assert status in (401, 403)
    assert "dasktune" not in text


def test_the_metrics_have_no_name_and_no_value_of_the_experiment(public: Controlled):
    [trial, *_] = public.until("RUNNING", 2)
    status, _, text = scrape(public)
    assert status == 200
    assert trial["trial_id"] not in text
    assert "lr" not in {word.partition("{")[0] for word in text.split()}
    assert "loss " not in text
    assert repr(trial["config"]["lr"]) not in text


def test_an_answer_is_given_to_several_requests(public: Controlled):
    public.until("RUNNING", 2)
    begun = time.monotonic()
    texts = {scrape(public)[2] for _ in range(50)}
    # An answer is given again for at least half a second; the first one may be older.
    assert len(texts) <= 2 + (time.monotonic() - begun) / 0.5


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed; Debian has it in 'prometheus'")
def test_prometheus_s_own_checker_accepts_the_metrics(private: Controlled):
    _, _, text = scrape(private, **bearer(TOKEN))
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_reference_parser_reads_the_metrics(private: Controlled):
    parser = pytest.importorskip("prometheus_client.parser")
    _, _, text = scrape(private, **bearer(TOKEN))
    families = {family.name for family in parser.text_string_to_metric_families(text)}
    assert {"dasktune_trials", "dasktune_decisions", "dasktune_loop_lag_seconds"} <= families
