"""The other side of a comparison, in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks._measure import Figures, Size

__all__ = ["measure_ray"]


def measure_ray(python: str, workload: str, size: Size) -> tuple[Figures, dict[str, str]]:
    """Run a workload of `ray_baseline`; return what was measured, and the versions of packages.

    Parameters
    ----------
    python : str
        The interpreter that has Ray.
    workload : str
        Its name.
    size : Size
        How much of it.
    """
    command = [python, "-m", "benchmarks.ray_baseline", workload]
    for option, value in vars(size).items():
        command += [f"--{option}", str(value)]
    told = subprocess.run(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True
    )
    answer = json.loads(told.stdout.strip().splitlines()[-1])
    return answer["figures"], answer["versions"]
