"""What the package lends from the top of dasktune."""

from __future__ import annotations

import pytest

import dasktune as tune
from dasktune import experiment


def test_users_find_the_classes_of_ray_here() -> None:
    assert experiment.Trial is tune.Trial
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = experiment.Nothing
