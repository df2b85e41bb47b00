"""Going on with an experiment that another driver has left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from dasktune.callback import Missed, TrialPlaces
from dasktune.config import RunConfig, TuneConfig
from dasktune.errors import StorageError, check
from dasktune.experiment import Experiment
from dasktune.first_setup import FirstSetup, setup_of
from dasktune.registry import get_trainable
from dasktune.resume_config import ResumeConfig, ResumeType
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_callbacks, build_experiment
from dasktune.runner.replay import replay
from dasktune.search import BasicVariantGenerator, create_searcher
from dasktune.storage.beginning import check_beginning, has_beginning
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.driver_lock import DriverLock
from dasktune.storage.experiment_store import ExperimentStore
from dasktune.storage.journal_format import JournalEnd
from dasktune.storage.journal_reader import JournalReader
from dasktune.storage.lease import LONGEST_TTL
from dasktune.storage.location import Storage
from dasktune.storage.setup_file import SetupFile
from dasktune.storage.snapshots import Snapshot, Snapshots
from dasktune.trainable.interface import trainable_name
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import (
    OtherEvent,
    ReleaseRequested,
    TrialReopenRequested,
    TrialStopRequested,
    TrialUnpauseRequested,
)
from dasktune.trial.trial import Trial

__all__ = [
    "Session",
    "check_trainable",
    "leading",
    "restored",
    "seeded",
    "beginning_of",
]

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Session:
    """An experiment brought to where its journal ends, ready to go on.

    Parameters
    ----------
    storage : Storage
        Its directory.
    experiment : Experiment
        Its state.
    tune_config, run_config, param_space
        What it goes on with.
    setup : SetupFile
        The same, of objects that nobody has used yet.
    resume : ResumeConfig
        What becomes of its trials.
    end : JournalEnd
        Where its journal ended.
    broken : dict of str to str
        Trials whose configurations no longer load, and why.
    given_up : sequence of CheckpointRecord
        Checkpoints that its last driver may not have deleted any more.
    missed : Missed
        What its callbacks do not know yet.
    releases : bool, default=True
        Whether what its user has paused or held goes on. It does not where a driver only takes over
        by itself from one that has died.
    """

    storage: Storage
    experiment: Experiment
    tune_config: TuneConfig
    run_config: RunConfig
    param_space: Mapping[str, Any]
    setup: SetupFile
    resume: ResumeConfig
    end: JournalEnd
    broken: dict[str, str]
    given_up: Sequence[CheckpointRecord]
    missed: Missed
    releases: bool = True

    @property
    def name(self) -> str:
        """The experiment's name: that of its directory."""
        return self.storage.url.rstrip("/").rpartition("/")[2]

    def begin(self, runner: TrialRunner) -> None:
        """Go on, in a driver that leads and whose journal has begun.

        Parameters
        ----------
        runner : TrialRunner
            Runs the experiment.
        """
        cut_off = self._cut_off()  # of before the session begins, which forgets the end
        runner.resume(lambda now: self.requests(now, cut_off), self.given_up)
        self.setup.write(self.storage)
        failed = self.experiment.first_error
        if failed is not None:
            logger.warning(
                "trial %s had failed, and everything was ended for it. Restore with "
                "resume_errored=True or restart_errored=True to try it again, or with another "
                "FailureConfig to go on without it",
                failed.trial_id,
            )

    def _cut_off(self) -> str:
        """Return why trials were ended that are to go on; empty if none are."""
        failed = self.experiment.first_error
        if failed is None:
            return ""
        stays = self.resume.wish(failed) is ResumeType.SKIP
        return "" if stays and self.experiment.is_cut_off else self.experiment.stop_reason

    def requests(self, now: float, cut_off: str = "") -> Iterator[OtherEvent]:
        """Yield what the user wants of the trials.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock.
        cut_off : str, optional
            As for :meth:`ResumeConfig.wish`.
        """
        for key, trial in self.experiment.trials.items():
            wish = self.resume.wish(trial, cut_off)
            if wish is not ResumeType.SKIP and key in self.broken:
                yield TrialStopRequested(trial_id=key, reason=self.broken[key], time=now)
            elif wish is ResumeType.SKIP and not trial.status.is_final:
                reason = "left out when the experiment was restored"
                yield TrialStopRequested(trial_id=key, reason=reason, time=now)
            elif wish is ResumeType.RESTART or (wish is ResumeType.RESUME and _is_over(trial)):
                fresh = wish is ResumeType.RESTART
                yield TrialReopenRequested(trial_id=key, fresh=fresh, time=now)
            elif self.releases and trial.status.is_resting:
                yield TrialUnpauseRequested(trial_id=key, time=now)
        if self.releases and self.experiment.on_hold:
            yield ReleaseRequested(time=now)

    def tell_the_end(self, trainable: Any) -> None:
        """Tell callbacks of an end that was the last thing its driver could write down.

        Parameters
        ----------
        trainable : callable or type
            What the trials ran.

        Raises
        ------
        StorageError
            If another driver leads.
        """
        if not self.missed.owes_end:
            return
        with leading(self.storage, self.run_config.driver_ttl, self, lambda: None):
            store, name = ExperimentStore(self.storage), trainable_name(trainable)
            places = TrialPlaces.of(store, name, self.param_space)
            callbacks = build_callbacks(
                self.tune_config, self.run_config, self.experiment, places, self.missed
            )
            assert callbacks is not None  # there are some, or nothing would be owed
            callbacks.on_end(self.experiment)
            state = {**self.experiment.state_dict(), **callbacks.state_dict()}
            Snapshots(self.storage).write(Snapshot(self.end.epoch, self.end.position, state))

    def check_nobody_went_on(self) -> None:
        """Refuse to go on from a state that is no longer the last.

        Raises
        ------
        StorageError
            If the journal has grown since it was read.
        """
        reader = JournalReader(self.storage, start=self.end.position)
        grown = any(True for _ in reader)
        if grown or reader.end != self.end:
            raise StorageError(
                f"another driver has gone on with {self.storage} since it was restored. "
                "Stop it, and call Tuner.restore() again."
            )


@contextmanager
def leading(
    storage: Storage, ttl_s: float, session: Session | None, on_lost: Callable[[], None]
) -> Iterator[None]:
    """Keep other drivers from an experiment inside the ``with`` block.

    Parameters
    ----------
    storage : Storage
        Its directory.
    ttl_s : float
        Seconds without a sign of life after which another driver may take the lead.
    session : Session, optional
        What it goes on from.
    on_lost : callable
        Called, in some thread, if another driver has taken the lead.

    Raises
    ------
    StorageError
        If another driver leads, or has come to do so because this one was frozen.
    """
    with DriverLock(storage, ttl_s=min(ttl_s, LONGEST_TTL), on_lost=on_lost) as lock:
        if session is not None:
            session.check_nobody_went_on()
        yield
    if lock.lost:
        raise StorageError(
            f"another driver leads {storage} now: this one was frozen, or cut off from its "
            "storage, for longer than driver_ttl. What it did meanwhile does not count."
        )


def _is_over(trial: Trial) -> bool:
    return trial.status.is_final


def seeded(config: TuneConfig) -> TuneConfig:
    """Return a configuration whose seed is settled, so that a later driver draws the same."""
    if config.seed is not None:
        return config
    seed = int(SeedSequence().generate_state(1, np.uint64)[0])
    return replace(config, seed=seed)


def beginning_of(config: RunConfig, session: Session | None) -> Checkpoint | None:
    """Return what trials begin from, if it is still to be copied into the experiment.

    Parameters
    ----------
    config : RunConfig
        Which says what it is.
    session : Session or None
        The experiment that is gone on with.

    Raises
    ------
    ConfigError
        If it is not there.
    """
    if config.restore is None or (session is not None and has_beginning(session.storage)):
        return None
    return check_beginning(config.restore, config.storage_url, config.storage_options or {})


def check_trainable(storage: Storage, trainable: Any) -> None:
    """Refuse another trainable than the experiment's.

    Raises
    ------
    ConfigError
        If its name differs.
    StorageError
        If there is no experiment.
    """
    then = ExperimentStore(storage).spec().get("trainable")
    name = trainable_name(get_trainable(trainable) if isinstance(trainable, str) else trainable)
    hint = "An experiment goes on with the code that it was begun with."
    check(name == then, "trainable", f"{then!r} as at the start", name, hint)


def restored(
    storage: Storage,
    *,
    tune_config: TuneConfig | None,
    run_config: RunConfig | None,
    param_space: Mapping[str, Any] | None,
    resume: ResumeConfig,
) -> Session:
    """Bring an experiment to where its journal ends.

    The user's objects are unpickled.

    Parameters
    ----------
    storage : Storage
        Its directory.
    tune_config, run_config : TuneConfig, RunConfig, optional
        What it is to go on with; by default as it was begun.
    param_space : mapping, optional
        Likewise; it must have the names that it had.
    resume : ResumeConfig
        What becomes of its trials.

    Raises
    ------
    ConfigError
        If something is to be changed that cannot.
    StorageError
        If there is no experiment, or it is damaged, or an object that is needed no longer loads.
    """
    then = FirstSetup(SetupFile.read(storage), tune_config, run_config, param_space)
    broken: dict[str, str] = {}
    tune, run, space = then.configs()
    missed = Missed((run_config or run).callbacks)
    experiment, end, given_up = _brought_up(then.build, storage, broken, missed)
    tune = tune if tune_config is None else _checked(tune_config, tune)
    run = run_config or run
    setup = setup_of(tune, run, space)
    if tune_config is not None or run_config is not None:
        state = experiment.state_dict()
        experiment = build_experiment(tune, run, space)
        experiment.load_state_dict(state)
    return Session(
        storage=storage,
        experiment=experiment,
        tune_config=tune,
        run_config=run,
        param_space=space,
        setup=setup,
        resume=resume,
        end=end,
        broken=broken,
        given_up=given_up,
        missed=missed,
    )


def _checked(now: TuneConfig, then: TuneConfig) -> TuneConfig:
    """Return the new configuration with the seed of then."""
    for name in ("metric", "mode"):
        was = getattr(then, name)
        check(getattr(now, name) == was, name, f"{was!r} as at the start", getattr(now, name))
    kind = _kind(then.search_alg)
    hint = "What it has learnt means nothing to another one."
    same = _kind(now.search_alg) is kind
    check(same, "search_alg", f"a {kind.__name__} as at the start", now.search_alg, hint)
    unchanged = now.seed is None or repr(now.seed) == repr(then.seed)
    check(unchanged, "seed", f"None or {then.seed!r} as at the start", now.seed)
    return replace(now, seed=then.seed)


def _kind(search_alg: Any) -> type:
    if isinstance(search_alg, str):
        return type(create_searcher(search_alg))
    return BasicVariantGenerator if search_alg is None else type(search_alg)


def _brought_up(
    build: Callable[[], Experiment], storage: Storage, broken: dict[str, str], missed: Missed
) -> tuple[Experiment, JournalEnd, list[CheckpointRecord]]:
    """Return the experiment after the last record, where that is, and what was given up lately."""
    store = ExperimentStore(storage)
    origin = Snapshot(0, 0, {})
    for snapshot in chain(Snapshots(storage).newest_first(), [origin]):
        experiment = build()
        broken.clear()
        missed.begin(None if snapshot is origin else snapshot.state)
        reader = JournalReader(storage, start=snapshot.position)
        try:
            if snapshot is not origin:
                experiment.load_state_dict(_with_configs(snapshot.state, store, broken))
            given_up = replay(experiment, reader, store.load_params, missed)
        except Exception as error:  # what is damaged may lead anywhere
            if snapshot is origin:
                raise
            logger.warning("a snapshot of %s leads nowhere: %r", storage, error)
        else:
            if reader.end.position >= snapshot.position:
                return experiment, reader.end, given_up
            logger.warning("a snapshot of %s knows more than the journal", storage)
    raise AssertionError("the beginning is always a way")  # pragma: no cover


def _with_configs(
    state: Mapping[str, Any], store: ExperimentStore, broken: dict[str, str]
) -> dict[str, Any]:
    """Return a snapshot's state with the configurations that JSON cannot tell."""
    trials = []
    for trial in state["trials"]:
        if trial["pickled"]:
            try:
                trial = {
                    **trial,
                    "config": store.load_params(trial["dirname"] or trial["trial_id"]),
                }
            except StorageError as error:
                logger.warning("%s; the trial cannot go on", error)
                broken[trial["trial_id"]] = str(error)
        trials.append(trial)
    return {**state, "trials": trials}
