"""Restore an experiment from its directory: stored configuration, snapshot and journal.

Another driver may still be alive while an experiment is restored. Restoring only reads, and needs
no lock. `hold_leader_lock` then takes the leader lock and checks that the journal has not grown
since it was read. The orders that are possible:

- The other driver holds the lock: taking the lock fails, and nothing has been written.
- It appended records and released the lock after the journal was read: the check sees the longer
  journal, and the user has to restore again.
- It was frozen and its lease expired: this driver takes the lock with a higher epoch. When the old
  driver continues, readers of the journal ignore its records, because their epoch is older, and its
  lock reports the loss.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from dasktune.callback import MissedEvents, TrialStorage
from dasktune.config import RunConfig, TuneConfig
from dasktune.config.found_past import places_of
from dasktune.config.resume_config import ResumeConfig, ResumeType
from dasktune.errors import StorageError, check
from dasktune.experiment import ExperimentMachine
from dasktune.registry import get_trainable
from dasktune.results.journal_trials import JournalHistories
from dasktune.results.past_lookup import read_earlier_experiments
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_callbacks, build_experiment
from dasktune.runner.replay import replay
from dasktune.search import BasicVariantGenerator, create_searcher
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.initial import check_initial_checkpoint, has_initial_checkpoint
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import (
    HOW_TO_REPAIR,
    JournalReader,
    check_journal_exists,
)
from dasktune.storage.journal.segments import JournalEnd
from dasktune.storage.journal.snapshots import Snapshot, Snapshots
from dasktune.storage.leader.leader_lease import LONGEST_TTL
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.trainable.api.binding import trainable_name
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import (
    OtherEvent,
    ReleaseRequested,
    ShareRequested,
    TrialReopenRequested,
    TrialStopRequested,
    TrialUnpauseRequested,
)
from dasktune.trial.rows.trial_history import History
from dasktune.trial.trial import Trial
from dasktune.tuner.saved_setup import SavedSetup, setup_of
from dasktune.tuner.suspicious_settings import with_score_order

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RestoredExperiment:
    """An experiment in the state at the end of its journal, ready to be resumed.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    experiment : ExperimentMachine
        The experiment's state.
    tune_config, run_config, param_space
        The configuration to resume with.
    setup : TunerFile
        The same configuration, pickled before its objects were used.
    resume : ResumeConfig
        Which trials to resume, restart or skip.
    end : JournalEnd
        The end of the journal when it was read.
    broken : dict of str to str
        The reason by trial ID, for trials whose configurations cannot be unpickled.
    dropped : sequence of CheckpointRecord
        Checkpoints that the last driver dropped, and may not have deleted.
    missed : MissedEvents
        Events that the callbacks have not received.
    releases : bool, default=True
        Whether paused trials are unpaused and a held experiment is released. False where a driver
        replaces one that died, because no user has requested to continue.
    share : tuple of float or None, default=(None, None, None)
        The weight, the priority and the `yields_after` of the new `run_config` that replace values
        which the user has set at run time; None keeps these.
    """

    storage: Storage
    experiment: ExperimentMachine
    tune_config: TuneConfig
    run_config: RunConfig
    param_space: Mapping[str, Any]
    setup: TunerFile
    resume: ResumeConfig
    end: JournalEnd
    broken: dict[str, str]
    dropped: Sequence[CheckpointRecord]
    missed: MissedEvents
    releases: bool = True
    share: tuple[float | None, float | None, float | None] = (None, None, None)

    @property
    def name(self) -> str:
        """The name of the experiment's directory."""
        return self.storage.url.rstrip("/").rpartition("/")[2]

    @property
    def was_over(self) -> bool:
        """Whether an earlier driver has ended the experiment, and no user wants to continue it."""
        return self.experiment.finished and not self.releases

    def begin(self, runner: TrialRunner) -> None:
        """Resume the trials in a driver that holds the lock and has opened the journal.

        Parameters
        ----------
        runner : TrialRunner
            The runner of the experiment.
        """
        # First, because the runner's new session clears the end reason of the last session.
        cut_off = self._cut_off()
        runner.resume(lambda now: self.requests(now, cut_off), self.dropped)
        self.setup.write(self.storage)
        if self.experiment.scheduler.clones_trials and (trial := self.experiment.trial_index.cut_short()):
            # Otherwise the loop would read the whole journal at the first clone. The reader has a
            # lock, so a clone that comes earlier waits for the rest.
            name = "dasktune-histories"
            threading.Thread(target=_read_results, args=(trial.history,), name=name, daemon=True).start()
        failed = self.experiment.state.first_failed
        if failed is not None:
            logger.warning(
                "trial %s had failed, which ended the experiment. Restore with resume_errored=True or "
                "restart_errored=True to try it again%s",
                failed.trial_id,
                "" if failed.fails_all_trials else ", or with another FailureConfig to continue without it",
            )

    def _cut_off(self) -> str:
        """Return the end reason of ended trials that count as unfinished; empty without any."""
        failed = self.experiment.state.first_failed
        if failed is None:
            return ""
        stays = self.resume.resume_type(failed) is ResumeType.SKIP
        return "" if stays and self.experiment.is_stopped_by_failure else self.experiment.state.stop_reason

    def requests(self, now: float, cut_off: str = "") -> Iterator[OtherEvent]:
        """Yield the requests that make the trials resume, restart or end as `resume` says.

        Parameters
        ----------
        now : float
            Seconds of the runner's clock.
        cut_off : str, optional
            The end reason of ended trials that count as unfinished, as for
            :meth:`ResumeConfig.resume_type`.
        """
        for key, trial in self.experiment.trials.items():
            choice = self.resume.resume_type(trial, cut_off)
            if choice is not ResumeType.SKIP and key in self.broken:
                yield TrialStopRequested(trial_id=key, reason=self.broken[key], time=now)
            elif choice is ResumeType.SKIP and not trial.status.is_final:
                reason = "skipped when the experiment was restored"
                yield TrialStopRequested(trial_id=key, reason=reason, time=now)
            elif choice is ResumeType.RESTART or (choice is ResumeType.RESUME and _is_over(trial)):
                fresh = choice is ResumeType.RESTART
                yield TrialReopenRequested(trial_id=key, fresh=fresh, time=now)
            elif self.releases and trial.status.is_paused_by_user:
                yield TrialUnpauseRequested(trial_id=key, time=now)
        if self.releases and self.experiment.state.on_hold:
            yield ReleaseRequested(time=now)
        if self.share != (None, None, None):
            weight, priority, yields_after = self.share
            yield ShareRequested(weight=weight, priority=priority, yields_after=yields_after, time=now)

    def report_end(self, trainable: Any) -> None:
        """Call the callbacks' ``on_experiment_end`` if the last driver died before it did.

        Parameters
        ----------
        trainable : callable or type
            The trainable of the trials.

        Raises
        ------
        StorageError
            If another driver holds the leader lock.
        """
        if not self.missed.is_end_missed:
            return
        with hold_leader_lock(self.storage, self.run_config.driver_ttl, self, lambda: None):
            store, name = ExperimentStore(self.storage), trainable_name(trainable)
            trial_storage = TrialStorage.of(store, name, self.param_space)
            callbacks = build_callbacks(
                self.tune_config, self.run_config, self.experiment, trial_storage, self.missed
            )
            assert callbacks is not None  # without callbacks no event is missed
            callbacks.on_end(self.experiment)
            state = {**self.experiment.state_dict(rows=False), **callbacks.state_dict()}
            snapshot = Snapshot(self.end.epoch, self.end.position, state, self.end.journal)
            Snapshots(self.storage).write(snapshot)

    def check_journal_unchanged(self) -> None:
        """Check that the restored state is still the newest one.

        Call it with the leader lock held. Records that an older driver appends after the check have
        an older epoch, and are ignored.

        Raises
        ------
        StorageError
            If the journal has grown since it was read.
        """
        if not JournalReader(self.storage).ends_at(self.end):
            raise StorageError(
                f"another driver has resumed {self.storage} since it was restored. "
                "Stop it, and call Tuner.restore() again."
            )


@contextmanager
def hold_leader_lock(
    storage: Storage, ttl_s: float, session: RestoredExperiment | None, on_lost: Callable[[], None]
) -> Iterator[LeaderLock]:
    """Hold the leader lock of an experiment inside the ``with`` block, and yield it.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    ttl_s : float
        Seconds after which a lease that is not renewed expires, so that another driver may lead.
    session : RestoredExperiment, optional
        The restored experiment, whose journal must not have grown.
    on_lost : callable
        Called in any thread if this driver loses the lock.

    Raises
    ------
    StorageError
        If another driver holds the lock, or took it because this driver was frozen, or the
        experiment's directory was deleted, renamed or replaced.
    """
    lock = LeaderLock(storage, ttl_s=min(ttl_s, LONGEST_TTL), on_lost=on_lost)
    try:
        with lock:
            if session is not None:
                session.check_journal_unchanged()
            yield lock
    except Exception as error:
        # A lost directory makes other operations fail, too, with messages that do not say why.
        if lock.lost:
            raise StorageError(lock.loss) from error
        raise
    # The loss may be noticed after `on_lost` could still interrupt the run: the release checks it.
    if lock.lost:
        raise StorageError(lock.loss)


def _is_over(trial: Trial) -> bool:
    return trial.status.is_final


def seeded(config: TuneConfig) -> TuneConfig:
    """Return a configuration with a seed, so that a later driver draws the same numbers.

    A missing seed is drawn from NumPy's global generator, so that `numpy.random.seed` makes a
    program repeatable, as it does for Ray Tune and scikit-learn.
    """
    if config.seed is not None:
        return config
    seed = int(np.random.randint(2**63, dtype=np.uint64))  # noqa: NPY002
    return replace(config, seed=seed)


def initial_checkpoint_of(config: RunConfig, session: RestoredExperiment | None) -> Checkpoint | None:
    """Return the initial checkpoint if it still has to be copied into the experiment.

    Parameters
    ----------
    config : RunConfig
        The configuration, whose `restore` is the initial checkpoint.
    session : RestoredExperiment or None
        The restored experiment.

    Raises
    ------
    ConfigError
        If there is no such checkpoint.
    """
    if config.restore is None or (session is not None and has_initial_checkpoint(session.storage)):
        return None
    return check_initial_checkpoint(config.restore, config.storage_url, config.storage_options or {})


def check_trainable(storage: Storage, trainable: Any) -> None:
    """Check that the trainable has the name of the experiment's trainable.

    Raises
    ------
    ConfigError
        If its name differs.
    StorageError
        If there is no experiment.
    """
    then = ExperimentStore(storage).spec().get("trainable")
    name = trainable_name(get_trainable(trainable) if isinstance(trainable, str) else trainable)
    hint = "An experiment must be resumed with its own trainable."
    check(name == then, "trainable", f"{then!r} as at the start", name, hint)


def restore_experiment(
    storage: Storage,
    *,
    tune_config: TuneConfig | None,
    run_config: RunConfig | None,
    param_space: Mapping[str, Any] | None,
    resume: ResumeConfig,
) -> RestoredExperiment:
    """Restore an experiment to the end of its journal.

    The user's objects are unpickled.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    tune_config, run_config : TuneConfig, RunConfig, optional
        New configurations; by default the stored ones.
    param_space : mapping, optional
        A new search space with the same names; by default the stored one.
    resume : ResumeConfig
        Which trials to resume, restart or skip.

    Raises
    ------
    ConfigError
        If an argument changes a setting that must stay the same.
    StorageError
        If there is no experiment, its journal is missing, it is damaged, or a needed object cannot
        be unpickled.
    """
    then = SavedSetup(TunerFile.read(storage), tune_config, run_config, param_space)
    check_journal_exists(storage)
    broken: dict[str, str] = {}
    tune, run, space = then.configs()
    missed = MissedEvents((run_config or run).callbacks)
    experiment, end, dropped = _replay(then.build, storage, broken, missed)
    tune = tune if tune_config is None else _checked(tune_config, tune)
    share = (None, None, None) if run_config is None else _new_share(experiment, run, run_config)
    run = run if run_config is None else with_score_order(run_config, tune)
    read_earlier_experiments(tune.search_alg)
    setup = setup_of(tune, run, space)
    if tune_config is not None or run_config is not None:
        state, before = experiment.state_dict(rows=False), experiment.trials
        experiment = build_experiment(tune, run, space)
        experiment.load_state_dict(state, lambda trial_id: before[trial_id].history)
    return RestoredExperiment(
        storage=storage,
        experiment=experiment,
        tune_config=tune,
        run_config=run,
        param_space=space,
        setup=setup,
        resume=resume,
        end=end,
        broken=broken,
        dropped=dropped,
        missed=missed,
        share=share,
    )


def _new_share(
    experiment: ExperimentMachine, then: RunConfig, now: RunConfig
) -> tuple[float | None, float | None, float | None]:
    """Return the parts of the share that replace those which the user has set at run time.

    The later decision stands: these values are replaced only if the user has changed the
    configuration. The driver of a submitted experiment always gives the configuration of its task.
    """
    state = experiment.state

    def changed(name: str) -> float | None:
        is_set = getattr(state, name) is not None
        value: float = getattr(now, name)
        return value if is_set and value != getattr(then, name) else None

    return changed("weight"), changed("priority"), changed("yields_after")


def _checked(now: TuneConfig, then: TuneConfig) -> TuneConfig:
    """Return the new configuration with the stored seed, after checking what must not change."""
    now = _with_stored_past(now, then)
    for name in ("metric", "mode"):
        was = getattr(then, name)
        check(getattr(now, name) == was, name, f"{was!r} as at the start", getattr(now, name))
    kind = _kind(then.search_alg)
    hint = "Another searcher cannot use its state."
    # By name: a class of ``__main__`` is pickled by value, so the stored one is another object.
    same = _kind(now.search_alg).__name__ == kind.__name__
    check(same, "search_alg", f"a {kind.__name__} as at the start", now.search_alg, hint)
    unchanged = now.seed is None or repr(now.seed) == repr(then.seed)
    check(unchanged, "seed", f"None or {then.seed!r} as at the start", now.seed)
    return replace(now, seed=then.seed)


def _with_stored_past(now: TuneConfig, then: TuneConfig) -> TuneConfig:
    """Return the new configuration with the stored searcher if that has learned from a past."""
    was, given = places_of(then.learn_from), places_of(now.learn_from)
    check(given == was, "learn_from", f"{list(was) or None!r} as at the start", list(given) or None)
    return replace(now, learn_from=then.learn_from, search_alg=then.search_alg) if was else now


def _read_results(history: History) -> None:
    """Read the results of all trials, which one pass over the journal does."""
    try:
        history.read_stored()
    except StorageError as error:
        # A clone that needs them tries again, and says what it loses.
        logger.info("the results of the trials cannot be read from the journal: %s", error)


def _kind(search_alg: Any) -> type:
    if isinstance(search_alg, str):
        return type(create_searcher(search_alg))
    return BasicVariantGenerator if search_alg is None else type(search_alg)


def _replay(
    build: Callable[[], ExperimentMachine], storage: Storage, broken: dict[str, str], missed: MissedEvents
) -> tuple[ExperimentMachine, JournalEnd, list[CheckpointRecord]]:
    """Return the experiment after the last record, the journal's end, and dropped checkpoints.

    The replay starts from the newest usable snapshot, or from the initial state if there is none.
    """
    store = ExperimentStore(storage)
    origin = Snapshot(0, 0, {})
    for snapshot in chain(Snapshots(storage).newest_first(), [origin]):
        experiment = build()
        broken.clear()
        missed.reset(None if snapshot is origin else snapshot.state)
        reader = JournalReader(storage, start=snapshot.position)
        try:
            if snapshot is not origin:
                histories = JournalHistories(storage, snapshot.position)
                state = _with_configs(snapshot.state, store, broken)
                experiment.load_state_dict(state, histories)
            dropped = replay(experiment, reader, store.load_params, missed)
        except Exception as error:  # a damaged snapshot can cause any exception
            if snapshot is origin:
                # A reader has given this advice already where it knows what is damaged.
                if not isinstance(error, StorageError) or HOW_TO_REPAIR in str(error):
                    raise
                hint = f"{HOW_TO_REPAIR}; with --keep N it drops what follows record N"
                raise StorageError(f"{error}. {hint}") from error
            logger.warning("ignoring unusable snapshot of %s: %r", storage, error)
        else:
            if reader.end.position >= snapshot.position:
                return experiment, reader.end, dropped
            logger.warning("ignoring snapshot of %s: it is newer than the journal", storage)
    raise AssertionError("the initial state can always be replayed")  # pragma: no cover


def _with_configs(state: Mapping[str, Any], store: ExperimentStore, broken: dict[str, str]) -> dict[str, Any]:
    """Return a snapshot's state with the pickled configurations, which JSON cannot hold."""
    trials = []
    for trial in state["trials"]:
        if trial["pickled"]:
            try:
                trial = {
                    **trial,
                    "config": store.load_params(trial["dirname"] or trial["trial_id"]),
                }
            except StorageError as error:
                logger.warning("%s; the trial cannot be resumed", error)
                broken[trial["trial_id"]] = str(error)
        trials.append(trial)
    return {**state, "trials": trials}
