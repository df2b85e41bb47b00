"""A client that connects while the scheduler has news for all of its clients."""

from __future__ import annotations

import pytest

from dasktune.cluster.connection import open_client as module

ADDRESS = "tcp://127.0.0.1:1"


class Opened:
    """Opens clients, after as many attempts have failed as it is told."""

    def __init__(self, failures):
        self.failures = failures
        self.attempts = []

    def __call__(self, address, **options):
        self.attempts.append((address, options))
        assert len(self.attempts) > self.failures
        return self


def test_a_greeting_that_comes_with_other_messages_makes_it_connect_again(monkeypatch):
    opened = Opened(failures=2)
    monkeypatch.setattr(module, "Client", opened)
    assert module.open_client(ADDRESS, timeout=1) is opened
    assert opened.attempts == [(ADDRESS, {"timeout": 1})] * 3


def test_it_does_not_connect_for_ever(monkeypatch):
    opened = Opened(failures=100)
    monkeypatch.setattr(module, "Client", opened)
    with pytest.raises(AssertionError):
        module.open_client(ADDRESS)
    assert len(opened.attempts) == 5
