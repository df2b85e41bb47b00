"""The scheduler gives a name to one client only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.cluster.submitted.driver_task import NameTakenError, reserved_name


class SchedulerClient:
    """Calls functions on a scheduler that has one published name."""

    def __init__(self) -> None:
        published = SimpleNamespace(datasets={"dasktune/published": object()})
        self.scheduler = SimpleNamespace(extensions={"publish": published})
        self.is_lost = False

    def run_on_scheduler(self, function: Any, *arguments: Any) -> Any:
        if self.is_lost:
            raise OSError("the scheduler is gone")
        return function(*arguments, dask_scheduler=self.scheduler)


def test_a_name_is_given_to_one_client_until_it_releases_it():
    client = SchedulerClient()
    with reserved_name(client, "a", "first"):
        with pytest.raises(NameTakenError, match="name must be new to the cluster, got 'a'"):
            reserved_name(client, "a", "second").__enter__()
        with reserved_name(client, "b", "third"):
            pass
    with reserved_name(client, "a", "second"):
        pass


def test_a_published_name_is_taken():
    with pytest.raises(NameTakenError, match=r"attach\(\) to that one"):
        reserved_name(SchedulerClient(), "published", "first").__enter__()


def test_the_message_names_no_driver_that_is_not_there_yet():
    client = SchedulerClient()
    with reserved_name(client, "a", "first"), pytest.raises(NameTakenError) as caught:
        reserved_name(client, "a", "second").__enter__()
    assert "attach" not in str(caught.value)
    assert "Another client is submitting it" in str(caught.value)


def test_the_reservation_of_a_dead_client_expires(monkeypatch: pytest.MonkeyPatch):
    client = SchedulerClient()
    monkeypatch.setattr("time.monotonic", lambda: 1_000.0)
    dead = reserved_name(client, "a", "dead")
    dead.__enter__()
    monkeypatch.setattr("time.monotonic", lambda: 1_299.0)
    with pytest.raises(NameTakenError):
        reserved_name(client, "a", "second").__enter__()
    monkeypatch.setattr("time.monotonic", lambda: 1_301.0)
    with reserved_name(client, "a", "second"):
        dead.__exit__(None, None, None)  # it was only slow, and must not release the name now
        with pytest.raises(NameTakenError):
            reserved_name(client, "a", "third").__enter__()


def test_the_scheduler_keeps_no_reservations_of_dead_clients(monkeypatch: pytest.MonkeyPatch):
    client = SchedulerClient()
    monkeypatch.setattr("time.monotonic", lambda: 1_000.0)
    dead = [reserved_name(client, f"name-{number}", "dead") for number in range(3)]
    for one in dead:
        one.__enter__()
    monkeypatch.setattr("time.monotonic", lambda: 1_301.0)
    with reserved_name(client, "a", "first"):
        assert list(client.scheduler._dasktune_reserved_names) == ["dasktune/a"]


def test_a_lost_scheduler_does_not_hide_what_the_client_has_done():
    client = SchedulerClient()
    with reserved_name(client, "a", "first"):
        client.is_lost = True
