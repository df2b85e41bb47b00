"""A file system that becomes read-only under a running experiment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import cluster_kit
import fault_kit
import pytest
from cluster_kit import Fleet, histories, statuses
from fault_kit import walk

import dasktune as tune

#: Runs a command with mounts of its own, which end with it.
ALONE = ["unshare", "--mount", "--propagation=private"]

#: Mounts a directory on itself, read-only. Files that are open stay writable, as the journal.
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'


def can_mount() -> bool:
    """Whether this process may mount a directory, for itself alone."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    command = [*ALONE, "sh", "-c", "mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="this user may not mount directories"),
]

DRIVER = """
import subprocess, sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from distributed import LocalCluster
import dasktune as tune
from cluster_kit import until
from fault_kit import Bout, walk
if __name__ == "__main__":
    place, storage, read_only = Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        bout = Bout(walk, storage, cluster, space={"place": str(place)}, num_samples=2, driver_ttl=6.0)
        with bout.fitting() as future:
            until(lambda: future.done() or bout.is_walking(trials=2))
            subprocess.run(["sh", "-c", read_only, "sh", str(storage)], check=True)
            print("READ-ONLY", flush=True)
            try:
                results = future.result(timeout=90)
            except Exception as error:
                print("RAISED", type(error).__name__, error, flush=True)
            else:
                for result in results:
                    print("ENDED", result.status.value, result.reason, result.error, flush=True)
"""


def test_an_experiment_whose_disk_becomes_read_only_ends_with_the_reason_and_resumes(
    fleet: Fleet, tmp_path: Path
) -> None:
    place, storage = tmp_path / "place", tmp_path / "storage"
    place.mkdir()
    storage.mkdir()
    kits = [str(Path(module.__file__ or "").parent) for module in (cluster_kit, fault_kit)]
    command = [*ALONE, sys.executable, "-c", DRIVER, *kits, str(place), str(storage), READ_ONLY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "READ-ONLY" in done.stdout
    # A disk that refuses to write does so permanently: trials do not wait for it.
    assert done.stdout.count("ENDED ERROR OSError: [Errno 30] Read-only file system") == 2, done.stdout
    assert "could not write trials/" in done.stderr
    # The mount has ended with the driver. What was acknowledged is there.
    before = histories(tune.Tuner.restore(str(storage / "run"), walk).get_results())
    assert min(map(len, before)) >= 2
    (place / "go").touch()
    fleet.keep(1)
    resumed = tune.Tuner.restore(str(storage / "run"), walk, client=fleet.address, resume_errored=True).fit()
    assert statuses(resumed) == {"TERMINATED"}
    for then, now in zip(before, histories(resumed), strict=True):
        assert now[: len(then)] == then
        assert now == list(range(1, len(now) + 1))
