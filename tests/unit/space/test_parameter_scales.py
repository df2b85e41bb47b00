from __future__ import annotations

from dasktune.space import choice, lograndint, loguniform, qloguniform, randint, uniform
from dasktune.space.inspection import parameter_scales


def test_ranges_tell_how_they_are_spread_and_nothing_else_does():
    space = {
        "lr": loguniform(1e-4, 1),
        "net": {"width": lograndint(8, 512), "depth": randint(1, 5)},
        "q": qloguniform(1e-3, 1, 1e-3),
        "p": uniform(0, 1),
        "opt": choice(["adam", "sgd"]),
        "epochs": 20,
    }
    assert parameter_scales(space) == {
        "lr": "log",
        "net/width": "log",
        "net/depth": "linear",
        "q": "log",
        "p": "linear",
    }
