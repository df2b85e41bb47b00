"""Run Ray Tune, in another interpreter, as the other side of a comparison."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks._measure import Figures, Size

__all__ = ["measure_ray"]


def measure_ray(python: str, workload: str, size: Size) -> tuple[Figures, dict[str, str]]:
    """Run a workload of `ray_baseline`; return its figures and the versions of packages.

    Parameters
    ----------
    python : str
        The interpreter that has Ray.
    workload : str
        The name of the workload.
    size : Size
        The size of the workload.
    """
    command = [python, "-m", "benchmarks.ray_baseline", workload]
    for option, value in vars(size).items():
        command += [f"--{option}", str(value)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True
    )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer["figures"], answer["versions"]
