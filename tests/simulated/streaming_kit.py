"""Lets simulated experiments stream their results, or not: users cannot choose it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dasktune.experiment import ExperimentSettings
from dasktune.runner import build


@contextmanager
def streaming(is_on: bool) -> Iterator[None]:
    """Let the experiments that begin in the block stream their results, or not."""

    def patched(**values: Any) -> ExperimentSettings:
        return replace(ExperimentSettings(**values), streaming=is_on)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "ExperimentSettings", patched)
        yield
