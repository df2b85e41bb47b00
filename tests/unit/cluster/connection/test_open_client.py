"""A client that connects while the scheduler has news for all of its clients."""

from __future__ import annotations

import resource

import pytest

from dasktune.cluster.connection import open_client as module

ADDRESS = "tcp://127.0.0.1:1"


class Opened:
    """Opens clients, after a given number of attempts has failed."""

    def __init__(self, failures):
        self.failures = failures
        self.attempts = []

    def __call__(self, address, **options):
        self.attempts.append((address, options))
        assert len(self.attempts) > self.failures
        return self


def test_a_greeting_that_comes_with_other_messages_makes_it_connect_again():
    opened = Opened(failures=2)
    assert module.open_client(ADDRESS, make_client=opened, timeout=1) is opened
    options = {"connection_limit": module.connection_limit(), "timeout": 1}
    assert opened.attempts == [(ADDRESS, options)] * 3


@pytest.mark.parametrize(
    ("files", "limit"),
    [(1_024, 512), (256, 512), (20_000, 10_000), (10**9, 16_384), (resource.RLIM_INFINITY, 16_384)],
)
def test_a_client_keeps_its_connections_to_thousands_of_workers(monkeypatch, files, limit):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    opened = Opened(failures=0)
    module.open_client(ADDRESS, make_client=opened)
    assert opened.attempts == [(ADDRESS, {"connection_limit": limit})]


def test_it_does_not_connect_for_ever():
    opened = Opened(failures=100)
    with pytest.raises(AssertionError):
        module.open_client(ADDRESS, make_client=opened)
    assert len(opened.attempts) == 5
