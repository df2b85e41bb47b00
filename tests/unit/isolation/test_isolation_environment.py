from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from process_run_kit import make_spec

from dasktune.isolation.environment import environment_of, needs_process
from dasktune.trial.resources import PlacementGroupFactory


@pytest.mark.parametrize(
    ("isolation", "bundles", "process"),
    [
        ("auto", [{"CPU": 1}], False),
        ("auto", [{"CPU": 0.5}], False),
        ("auto", [{}], False),
        ("auto", [{"CPU": 1.5}], True),
        ("auto", [{"CPU": 1, "GPU": 0.1}], True),
        # The others are for what user code starts elsewhere.
        ("auto", [{"CPU": 1}, {"CPU": 8, "GPU": 1}], False),
        ("thread", [{"CPU": 8, "GPU": 1}], False),
        ("process", [{"CPU": 1}], True),
    ],
)
def test_a_trial_with_more_than_a_cpu_has_a_process_unless_the_user_says_otherwise(
    isolation: str, bundles: list[Any], process: bool
) -> None:
    resources = PlacementGroupFactory(bundles)
    spec = make_spec(Path("/tmp"), isolation=isolation, resources=resources)
    assert needs_process(spec) is process


@pytest.mark.parametrize(("cpus", "threads"), [(0, "1"), (0.5, "1"), (1, "1"), (4, "4"), (3.9, "3")])
def test_numerical_libraries_get_as_many_threads_as_the_trial_has_cpus(cpus: float, threads: str) -> None:
    spec = make_spec(Path("/tmp"), resources=PlacementGroupFactory([{"CPU": cpus}]))
    assert set(environment_of(spec).values()) == {threads}
    assert "OMP_NUM_THREADS" in environment_of(spec)


@pytest.mark.parametrize(
    ("devices", "visible"), [(None, None), ((), ""), (("0",), "0"), (("3", "GPU-5b"), "3,GPU-5b")]
)
def test_a_trial_sees_the_devices_that_it_was_assigned(
    devices: tuple[str, ...] | None, visible: str | None
) -> None:
    spec = make_spec(Path("/tmp"), devices=devices)
    assert environment_of(spec).get("CUDA_VISIBLE_DEVICES") == visible
