"""Going on with an experiment that another driver has left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.random import SeedSequence

from dasktune.callback import Missed
from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import StorageError, check
from dasktune.experiment import Experiment
from dasktune.registry import get_trainable
from dasktune.resume_config import ResumeConfig, ResumeType
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import replay
from dasktune.search import BasicVariantGenerator, create_searcher
from dasktune.storage.driver_lock import DriverLock
from dasktune.storage.experiment_store import ExperimentStore
from dasktune.storage.journal_format import JournalEnd
from dasktune.storage.journal_reader import JournalReader
from dasktune.storage.lease import LONGEST_TTL
from dasktune.storage.location import Storage
from dasktune.storage.setup_file import SetupFile, packed
from dasktune.storage.snapshots import Snapshot, Snapshots
from dasktune.trainable.interface import trainable_name
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import OtherEvent, TrialReopenRequested, TrialStopRequested
from dasktune.trial.trial import Trial

__all__ = [
    "Session",
    "check_trainable",
    "leading",
    "restored",
    "seeded",
    "setup_of",
]

logger = logging.getLogger(__name__)

#: Where an experiment is kept may change, and is not written into it.
_PLACE: Final = frozenset({"name", "storage_path", "storage_options"})

_PARTS: Final = {"checkpoint_config": CheckpointConfig, "failure_config": FailureConfig}


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
                "trial %s had failed, and everything was ended for it (fail_fast). Restore with "
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
        return "" if stays and self.experiment.settings.fail_fast else self.experiment.stop_reason

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


def setup_of(
    tune_config: TuneConfig, run_config: RunConfig, param_space: Mapping[str, Any]
) -> SetupFile:
    """Return what a later driver needs to go on, but for the trainable.

    To be called before anything was asked of the user's objects, as they are written as they are.

    Parameters
    ----------
    tune_config, run_config : TuneConfig, RunConfig
        The configuration.
    param_space : mapping
        The search space.
    """
    values: dict[str, Any] = {"param_space": dict(param_space)}
    for prefix, config in (("tune_config", tune_config), ("run_config", run_config)):
        values.update(_flat(prefix, config))
    return SetupFile(packed(values))


def _flat(prefix: str, config: Any) -> Iterator[tuple[str, Any]]:
    for one in fields(config):
        value = getattr(config, one.name)
        if is_dataclass(value):
            yield from _flat(f"{prefix}.{one.name}", value)
        elif one.name == "callbacks":
            yield f"{prefix}.callbacks", len(value or ())
            # One that no longer loads must not take the others along.
            yield from ((f"{prefix}.callbacks.{n}", x) for n, x in enumerate(value or ()))
        elif one.name not in _PLACE:
            yield f"{prefix}.{one.name}", value


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
    then = _Then(SetupFile.read(storage), tune_config, run_config, param_space)
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


class _Then:
    """What an experiment was set up with, the user's new objects in the place of lost ones."""

    def __init__(
        self,
        file: SetupFile,
        tune_config: TuneConfig | None,
        run_config: RunConfig | None,
        param_space: Mapping[str, Any] | None,
    ) -> None:
        self._file = file
        self._given = {"tune_config": tune_config, "run_config": run_config}
        self._param_space = param_space

    def configs(self) -> tuple[TuneConfig, RunConfig, Mapping[str, Any]]:
        """Return the configuration, of objects that nobody has used yet."""
        tune = TuneConfig(**self._fields(TuneConfig, "tune_config"))
        run = RunConfig(**self._fields(RunConfig, "run_config"))
        space = self._param_space
        if space is None:
            space = self._load("param_space", None, "param_space=")
        return tune, run, space

    def build(self) -> Experiment:
        """Return the experiment as it was at its beginning."""
        return build_experiment(*self.configs())

    def _fields(self, kind: Any, prefix: str) -> dict[str, Any]:
        given = self._given[prefix.partition(".")[0]]
        values = {}
        for one in fields(kind):
            if one.name in _PLACE:
                continue
            name = f"{prefix}.{one.name}"
            if one.name in _PARTS:
                values[one.name] = _PARTS[one.name](**self._fields(_PARTS[one.name], name))
            elif one.name == "callbacks":
                values[one.name] = [] if given is not None else list(self._callbacks(name))
            else:
                values[one.name] = self._load(name, given, f"{prefix.partition('.')[0]}=")
        return values

    def _callbacks(self, name: str) -> Iterator[Any]:
        """Yield those that still load: an experiment can go on without any of them."""
        for number in range(self._load(name, None, "run_config=")):
            try:
                yield self._file.load(f"{name}.{number}")
            except StorageError as error:
                logger.warning("%s; give run_config= to go on with it", error)

    def _load(self, name: str, given: Any, argument: str) -> Any:
        try:
            return self._file.load(name)
        except StorageError as error:
            if given is None:
                raise StorageError(f"{error}. Give {argument} to Tuner.restore().") from error
            logger.warning("%s; that of %s is taken instead", error, argument)
        for part in name.split(".")[1:]:
            given = getattr(given, part)
        return given


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
                trial = {**trial, "config": store.load_params(trial["trial_id"])}
            except StorageError as error:
                logger.warning("%s; the trial cannot go on", error)
                broken[trial["trial_id"]] = str(error)
        trials.append(trial)
    return {**state, "trials": trials}
