"""Texts in which much looks like the beginning of a URL."""

from __future__ import annotations

import pytest

from dasktune.storage.fs.redaction import redact

SECRET = "2retnuh"[::-1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        *("://", "://a:", "@", "://?"),
        *(
            pytest.param(piece, marks=pytest.mark.slow)
            for piece in ("a:b@", "://a@", ":/", "://;", "://a:b ", "&key=", "://;a=")
        ),
    ],
)
def test_a_long_text_takes_no_time_that_grows_with_its_square(piece: str) -> None:
    shown = redact(piece * (100_000 // len(piece)) + f" ftp://me:{SECRET}@host")
    assert shown.endswith(" ftp://***@host")
