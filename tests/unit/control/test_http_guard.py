"""Who may command, and who may not."""

from __future__ import annotations

import pytest

from dasktune.control.http_guard import RequestGuard, new_token


def test_tokens_are_long_and_never_the_same():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    # A command line takes it as a word, which a leading hyphen would make an option.
    assert all(len(one) >= 32 and one.isascii() and one.isalnum() for one in tokens)


@pytest.mark.parametrize("given", [None, "", "secre", "secret ", "Secret", "sécret", "\udcff", "x" * 999])
def test_nothing_but_the_token_is_the_token(given: str | None):
    guard = RequestGuard("secret")
    assert guard.check_token("secret")
    assert not guard.check_token(given)


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        ("Bearer secret", True),
        ("bearer  secret", True),
        ("secret", False),
        ("Basic secret", False),
        ("Bearer", False),
        (None, False),
    ],
)
def test_a_header_must_bear_it(header: str | None, fits: bool):
    assert RequestGuard("secret").is_bearer(header) is fits


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("localhost:1", True),
        ("LOCALHOST", True),
        ("127.0.0.1:4321", True),
        ("[::1]:4321", True),
        ("evil.example:4321", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("[", False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_known_host_name_is_allowed(host: str | None, fits: bool):
    assert RequestGuard("secret").host_allowed(host) is fits


@pytest.mark.parametrize(
    ("origin", "fits"),
    [
        (None, True),
        ("http://localhost:1", True),
        ("https://LOCALHOST:1", True),
        ("http://localhost:2", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_pages_of_others_have_no_business_here(origin: str | None, fits: bool):
    assert RequestGuard("secret").same_origin(origin, "localhost:1") is fits
