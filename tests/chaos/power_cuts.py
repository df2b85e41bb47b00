"""Power cuts in virtual time, with a journal and checkpoints on a real disk.

A driver dies with a record. Then the power fails: what was never synced is lost or torn, the newest
files first, and the journal ends at any byte after what was synced.
"""

from __future__ import annotations

import os
import random
import stat
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from mortal_store import MortalStore
from storm import loss_of

from dasktune.config import CheckpointConfig, RunConfig, TuneConfig
from dasktune.config.resume_config import ResumeConfig
from dasktune.errors import CheckpointDamaged, CheckpointNotFound
from dasktune.experiment import ExperimentMachine
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.schedulers import ASHAScheduler, FIFOScheduler
from dasktune.space import grid_search
from dasktune.storage.checkpoints.checkpoint import dict_files
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.experiment.experiment_store import experiment_json
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.segments import segment_name, segments
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trial.actions import RestoreTrial, StartTrial
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import checkpoint_place
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.tuner.restore import RestoredExperiment, restore_experiment
from dasktune.tuner.saved_setup import setup_of

TRIALS, STEPS = 4, 7


class Disk:
    """A disk that knows what survives a power cut.

    Parameters
    ----------
    root : str
        The experiment's directory.
    seed : int
        Chooses what is lost.
    """

    def __init__(self, root: str, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        #: ``{inode: size when it was last synced}``
        self._synced: dict[int, int] = {}
        #: What power cuts have done.
        self.losses: Counter[str] = Counter()
        #: Checkpoints of which they have damaged a file.
        self.damaged: set[str] = set()

    def sync(self, descriptor: int) -> None:
        """Replace `os.fsync`."""
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            self._synced[found.st_ino] = found.st_size

    def cut_power(self, storage: Storage) -> None:
        """Lose what is not synced: the end of the journal, and a number of the newest files."""
        last = segment_name(*max((epoch, sequences[-1]) for epoch, sequences in segments(storage).items()))
        self._cut(storage.path(last))
        unsynced = sorted(self._unsynced(), key=lambda path: os.stat(path).st_mtime_ns, reverse=True)
        journal = [path for path in unsynced if f"{os.sep}journal{os.sep}" in path]
        for path in journal:
            self._cut(path)
        files = [path for path in unsynced if path not in journal]
        for path in files[: self.random.randint(0, len(files))]:
            self._lose(path)

    def _unsynced(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                found = os.stat(path)
                if self._synced.get(found.st_ino) != found.st_size:
                    yield path

    def _cut(self, path: str) -> None:
        """Let a segment end at a byte after what was synced."""
        found = os.stat(path)
        size = self.random.randint(self._synced.get(found.st_ino, 0), found.st_size)
        if size < found.st_size:
            os.truncate(path, size)
            self.losses["journal"] += 1

    def _lose(self, path: str) -> None:
        """Let a file vanish, be empty, end early, have other bytes, or stay."""
        size = os.stat(path).st_size
        loss = self.random.choice(["vanishes", "is empty", "is torn", "has zeros", "stays"])
        if loss == "vanishes":
            os.unlink(path)
        elif loss == "is empty":
            os.truncate(path, 0)
        elif loss == "is torn":
            os.truncate(path, self.random.randint(0, size))
        elif loss == "has zeros":
            kept = self.random.randint(0, size)
            os.truncate(path, kept)
            os.truncate(path, size)
        self.losses[loss] += 1
        folder = os.path.relpath(os.path.dirname(path), self.root)
        if loss != "stays" and checkpoint_place(folder) is not None:
            self.damaged.add(folder)


class StoredCheckpoints(MutableMapping[str, Any]):
    """The checkpoints of simulated trials, as files."""

    def __init__(self, storage: Storage) -> None:
        self.store = CheckpointStore(storage)

    def __setitem__(self, path: str, state: int) -> None:
        place = checkpoint_place(path)
        assert place is not None
        record = CheckpointRecord(path=path, index=place[1], iteration=state)
        self.store.write(dict_files({"step": state}), record, incarnation=place[2])

    def __getitem__(self, path: str) -> int:
        place = checkpoint_place(path)
        assert place is not None
        try:
            record = CheckpointRecord(path=path, index=place[1], iteration=0)
            return int(self.store.load(record).to_dict()["step"])
        except (CheckpointNotFound, CheckpointDamaged) as error:
            raise KeyError(path) from error

    def __delitem__(self, path: str) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class Workers(SimulatedTrialExecutor):
    """Takes a trial over as a worker does: earlier starts are fenced, and their rest is deleted."""

    def start_trial(self, action: StartTrial) -> None:
        self._take_over(action)
        super().start_trial(action)

    def restore(self, action: RestoreTrial) -> None:
        self._take_over(action)
        super().restore(action)

    def _take_over(self, action: StartTrial | RestoreTrial) -> None:
        assert isinstance(self._checkpoints, StoredCheckpoints)
        store = self._checkpoints.store
        store.remove_stale(action.trial_id, action.incarnation, action.next_checkpoint)


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    """Report a loss for each step, with a checkpoint."""
    for step in range((checkpoint or 0) + 1, config["steps"] + 1):
        yield {"step": step, "loss": loss_of(config["x"], step)}, 1.0, step


class Lab:
    """An experiment on a disk whose drivers die.

    Parameters
    ----------
    storage : Storage
        The experiment's directory, on a disk.
    seed : int
        Chooses the scheduler and the number of checkpoints that are kept.
    """

    def __init__(self, storage: Storage, seed: int) -> None:
        chosen = random.Random(seed)
        scheduler = chosen.choice([FIFOScheduler, lambda: ASHAScheduler(max_t=STEPS, reduction_factor=2)])
        self.storage = storage
        self.clock = ManualClock()
        self.period = chosen.choice([1.0, 100.0])
        self.parts: dict[str, Any] = {
            "tune_config": TuneConfig(metric="loss", mode="min", seed=0, scheduler=scheduler()),
            "run_config": RunConfig(
                checkpoint_config=CheckpointConfig(num_to_keep=chosen.choice([1, 2, None]))
            ),
            "param_space": {"x": grid_search(list(range(TRIALS))), "steps": STEPS},
        }

    def begin(self, lives: int) -> None:
        """Run a new experiment until the driver dies."""
        store = MortalStore(self.storage, lives)
        tune, _, space = self.parts.values()
        store.create(experiment_json("run", "curve", tune, space, TRIALS))
        store.begin()
        setup_of(**self.parts).write(self.storage)
        self._run(build_experiment(*self.parts.values()), store)

    def resume(self, lives: int) -> None:
        """Restore the experiment, and run it until the driver dies."""
        given = {"tune_config": None, "run_config": None, "param_space": None}
        session = restore_experiment(self.storage, resume=ResumeConfig(), **given)
        session.check_journal_unchanged()
        store = MortalStore(self.storage, lives)
        store.begin(after=session.end)
        self._run(session.experiment, store, session)

    def _run(
        self, experiment: ExperimentMachine, store: MortalStore, session: RestoredExperiment | None = None
    ) -> None:
        one_cpu = PlacementGroupFactory([{"CPU": 1}])
        workers = Workers(curve, clock=self.clock, checkpoints=StoredCheckpoints(self.storage), slots=3)
        resources: Callable[[dict[str, Any]], PlacementGroupFactory] = lambda config: one_cpu  # noqa: E731
        runner = TrialRunner(
            experiment,
            workers,
            store=store,
            clock=self.clock,
            resources_for=resources,
            checkpoint_period=self.period,
        )
        try:
            if session is not None:
                session.begin(runner)
            runner.run()
        finally:
            store.close()
