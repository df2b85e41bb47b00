"""Experiments whose workers, or whose driver, are jobs of a real SLURM."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster_kit import PATIENCE, fitting, histories, journal, statuses, until
from engine_kit import assert_complete, gated_tuner, jobs_of, waiting, walking
from slurm_kit import Slurm

import dasktune as tune

ROOT = Path(__file__).parents[2]

#: A driver and its trial.
OF_A_DRIVER = ("--ntasks=1", "--cpus-per-task=2")

#: A driver in a job, and its trials beside it; a second job resumes the experiment of the first.
DRIVER = """
import sys, time
from pathlib import Path
import dasktune as tune

def train(config):
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while not Path("enough").exists():
        step += 1
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        time.sleep(0.1)

if __name__ == "__main__":
    if tune.Tuner.can_restore("run"):
        tuner = tune.Tuner.restore("run", train)
    else:
        tuner = tune.Tuner(train, run_config=tune.RunConfig(storage_path=".", name="run", verbose=0))
    (result,) = tuner.fit()
    history = [row["step"] for row in result.history]
    assert history == list(range(1, len(history) + 1)), history
    print("interrupted:", tuner.runner.interrupted, "status:", result.status.value)
"""

#: Submits an experiment to the cluster of a scheduler, and ends.
SUBMITTER = """
import sys
import dasktune as tune

def train(config):
    for step in range(1, 4):
        tune.report({"step": step * config["x"]})

if __name__ == "__main__":
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 10])},
        tune_config=tune.TuneConfig(metric="step", mode="max"),
        run_config=tune.RunConfig(storage_path=sys.argv[1], name="mine", verbose=0),
        client=sys.argv[2],
    ).submit()
"""

#: One user's experiment, on workers that are jobs of this user.
OF_A_USER = """
import os, sys, time
from pathlib import Path
import dasktune as tune
from dask_jobqueue import SLURMCluster

def train(config):
    tune.report({"uid": os.getuid(), "step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))
    while not Path(config["go"]).exists():
        time.sleep(0.05)
    tune.report({"uid": os.getuid(), "step": 2}, checkpoint=tune.Checkpoint.from_dict({"step": 2}))

if __name__ == "__main__":
    place, go = sys.argv[1:]
    with SLURMCluster(
        cores=1, processes=1, memory="1GB", interface="lo", python=sys.executable,
        job_extra_directives=["--job-name=of-" + str(os.getuid())], log_directory=place,
        scheduler_options={"dashboard_address": ":0"},
    ) as cluster:
        cluster.adapt(minimum_jobs=0, maximum_jobs=2)
        results = tune.Tuner(
            train,
            param_space={"go": go},
            tune_config=tune.TuneConfig(num_samples=3),
            run_config=tune.RunConfig(storage_path=place, name="run", verbose=0, isolation="process"),
            client=cluster,
        ).fit()
    print([[row["uid"] for row in result.history] for result in results], flush=True)
"""


def test_the_example_starts_its_workers_as_jobs(slurm: Slurm, tmp_path: Path) -> None:
    before = set(slurm.jobs(name="dask-worker"))
    example = ROOT / "examples" / "04_batch_system.py"
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "The best learning rate is 0.3: x = 0.000000" in done.stdout
    assert set(slurm.jobs(name="dask-worker")) - before
    until(lambda: not slurm.jobs("pending,running,completing"))


@pytest.mark.parametrize(
    ("command", "isolation"),
    [(["scancel"], "thread"), (["scancel", "--full", "--signal=KILL"], "process")],
    ids=["cancelled", "killed"],
)
def test_a_job_that_ends_in_mid_run_costs_no_result(
    slurm: Slurm, tmp_path: Path, command: list[str], isolation: str
) -> None:
    with slurm.workers(tmp_path, jobs=2) as cluster:
        tuner = gated_tuner(tmp_path, cluster, isolation=isolation)
        with fitting(tuner) as future:
            until(lambda: len(waiting(tmp_path)) == 2)
            victim = min(jobs_of(tmp_path).values())
            slurm.command(*command, victim)
            until(lambda: victim not in slurm.jobs("running,completing"))
            # The cluster replaces the job, and the trial waits there again.
            until(lambda: len(journal(tmp_path, event="TrialStarted")) == 3)
            (tmp_path / "go").touch()
            results = future.result(timeout=PATIENCE)
        assert_complete(results)
        assert slurm.state_of(victim) in {"CANCELLED", "FAILED"}
        assert victim not in jobs_of(tmp_path).values()


@dataclass(frozen=True)
class DriverJob:
    """A driver whose job has a wall time of a minute."""

    directory: Path
    line: str
    job: str


@pytest.fixture(scope="module")
def drivers_of_two_minutes(
    slurm_daemons: Slurm, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, DriverJob]:
    """Two drivers that SLURM signals before their time ends. All tests wait for it together."""
    drivers = {}
    # On a busy machine a driver needs more than 15 s until it obeys signals.
    for start, option in (("srun", "--signal=USR1@45"), ("exec", "--signal=B:USR1@45")):
        directory = tmp_path_factory.mktemp(start)
        (directory / "driver.py").write_text(DRIVER)
        line = f"{start} {sys.executable} driver.py"
        job = slurm_daemons.submit(directory, line, *OF_A_DRIVER, "--time=2", option)
        drivers[start] = DriverJob(directory, line, job)
    return drivers


def states_of(slurm: Slurm, drivers: dict[str, DriverJob]) -> dict[str, str]:
    """Wait until all jobs have ended, and return their states."""
    return {start: slurm.wait_for(driver.job) for start, driver in drivers.items()}


def test_a_wall_time_that_ends_costs_no_result(
    slurm: Slurm, tmp_path: Path, drivers_of_two_minutes: dict[str, DriverJob]
) -> None:
    with slurm.workers(tmp_path, jobs=1, walltime="00:01:00") as cluster:
        with fitting(gated_tuner(tmp_path, cluster, trials=1)) as future:
            until(lambda: waiting(tmp_path))
            (victim,) = jobs_of(tmp_path).values()
            assert slurm.wait_for(victim) == "TIMEOUT"
            until(lambda: len(journal(tmp_path, event="TrialStarted")) == 2)
            (tmp_path / "go").touch()
            results = future.result(timeout=PATIENCE)
        assert_complete(results)
        (second,) = jobs_of(tmp_path).values()
        assert second != victim
    # Wait for them, too: the end of this test ends all jobs.
    states_of(slurm, drivers_of_two_minutes)


@pytest.mark.parametrize("start", ["srun", "exec"], ids=["of a step", "of the batch shell"])
def test_a_driver_saves_when_slurm_signals_that_its_time_ends(
    slurm: Slurm, drivers_of_two_minutes: dict[str, DriverJob], start: str
) -> None:
    driver = drivers_of_two_minutes[start]
    output = driver.directory / "job.out"
    states = states_of(slurm, drivers_of_two_minutes)
    assert states[start] == "COMPLETED", output.read_text()
    assert "interrupted: True status: PENDING" in output.read_text()
    reports = len(journal(driver.directory, event="ResultReported"))
    (driver.directory / "enough").touch()
    second = slurm.submit(driver.directory, driver.line, *OF_A_DRIVER)
    assert slurm.wait_for(second) == "COMPLETED", output.read_text()
    assert "interrupted: False status: TERMINATED" in output.read_text()
    # Nothing was computed again.
    assert len(journal(driver.directory, event="ResultReported")) == reports


def test_a_worker_that_retires_before_its_wall_time_costs_no_step(slurm: Slurm, tmp_path: Path) -> None:
    with slurm.workers(tmp_path, jobs=1, worker_extra_args=["--lifetime", "15s"]) as cluster:
        with fitting(gated_tuner(tmp_path, cluster, trials=1, trainable=walking)) as future:
            until(lambda: len(journal(tmp_path, event="TrialStarted")) == 2)
            (tmp_path / "go").touch()
            results = future.result(timeout=PATIENCE)
        assert statuses(results) == {"TERMINATED"}
        (history,) = histories(results)
        assert history == list(range(1, len(history) + 1))
        assert len(journal(tmp_path, event="ResultReported")) == len(history)
        assert {one["charged"] for one in journal(tmp_path, event="TrialLost")} == {False}


def test_an_experiment_is_submitted_from_a_job(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "submitter.py").write_text(SUBMITTER)
    with slurm.workers(tmp_path, jobs=2) as cluster:
        line = f"exec {sys.executable} submitter.py {tmp_path} {cluster.scheduler_address}"
        job = slurm.submit(tmp_path, line)
        assert slurm.wait_for(job) == "COMPLETED", (tmp_path / "job.out").read_text()
        with tune.attach("mine", client=cluster) as experiment:
            results = experiment.result(timeout=PATIENCE)
            experiment.forget()
    assert [[row["step"] for row in result.history] for result in results] == [[1, 2, 3], [10, 20, 30]]


@pytest.fixture
def public_place() -> Iterator[Path]:
    """A directory that other users can reach."""
    place = Path(tempfile.mkdtemp(prefix="dasktune-users-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def environment_of(place: Path, slurm: Slurm) -> dict[str, str]:
    """Return the environment of another user, whose home directory is a place of the test."""
    # Only the packages: another Python of the same version has a standard library of its own.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {
        **{name: os.environ[name] for name in os.environ if name.startswith("DASKTUNE_TEST")},
        **slurm.environment,
        "HOME": str(place),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *packages]),
    }


def python_of(user: pwd.struct_passwd, environment: dict[str, str]) -> str | None:
    """Return a Python with which this user can import dasktune; that of root may be hidden."""
    system = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    for python in filter(None, [sys.executable, system]):
        try:
            done = subprocess.run(
                [python, "-c", "import dasktune.tuner, dask_jobqueue"],
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
                env=environment,
                cwd="/",
                capture_output=True,
                check=False,
            )
        except PermissionError:
            continue
        if done.returncode == 0:
            return python
    return None


def test_experiments_of_two_users_share_one_slurm(slurm: Slurm, public_place: Path) -> None:
    users = [pwd.getpwnam(name) for name in ("daemon", "games")]
    go = public_place / "go"
    drivers: list[subprocess.Popen[bytes]] = []

    def start(user: pwd.struct_passwd) -> None:
        place = public_place / user.pw_name
        place.mkdir(mode=0o700)
        os.chown(place, user.pw_uid, user.pw_gid)
        (place / "driver.py").write_text(OF_A_USER)
        environment = environment_of(place, slurm)
        python = python_of(user, environment)
        if python is None:
            pytest.skip(f"{user.pw_name} cannot read the checkout, its packages or a Python for them")
        with (place / "out").open("wb") as out:
            driver = subprocess.Popen(
                [python, "driver.py", str(place), str(go)],
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
                env=environment,
                cwd=place,
                stdout=out,
                stderr=out,
            )
        drivers.append(driver)

    def told(user: pwd.struct_passwd) -> str:
        return (public_place / user.pw_name / "out").read_text()

    try:
        for user in users:
            start(user)
        # Both have a running job at the same time.
        for user, driver in zip(users, drivers, strict=True):
            until(lambda d=driver, u=user: d.poll() is not None or slurm.jobs("running", user=u.pw_name))
            assert driver.poll() is None, told(user)
        go.touch()
        for user, driver in zip(users, drivers, strict=True):
            assert driver.wait(timeout=2 * PATIENCE) == 0, told(user)
            assert str([[user.pw_uid] * 2] * 3) in told(user)
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
