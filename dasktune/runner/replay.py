"""Replay a journal: rebuild the state of an experiment from its recorded events.

A replay asks the policies again, in the order of the journal, so they learn the same as before.
Where a policy now decides differently, the recorded decision is used.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from traceback import walk_tb
from typing import Any, Final

from dasktune.callback import MissedEvents
from dasktune.errors import ConfigError, StorageError
from dasktune.experiment import ExperimentMachine, RecordedDecisions
from dasktune.schedulers import TrialScheduler
from dasktune.search import SearchAlgorithm, Searcher
from dasktune.stopper import Stopper
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.trial.actions import Action, DeleteCheckpoint, ExploitTrial
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ExperimentEvent, Suggested
from dasktune.trial.journal_codec import decode_actions, decode_event
from dasktune.trial.names import is_one_name
from dasktune.trial.status import PUBLIC

logger = logging.getLogger(__name__)

#: Number of deletions that are repeated after a replay. A driver deletes a checkpoint within about
#: a second of the deletion's record, so fewer than this were pending when the driver died.
_MOST_DELETIONS: Final = 1_000

#: Returns the configuration of a trial that has values which JSON cannot hold.
ConfigLoader = Callable[[str], dict[str, Any]]


def event_of(record: Mapping[str, Any]) -> ExperimentEvent:
    """Return the event of a record; raise if this version cannot read it exactly.

    Parameters
    ----------
    record : mapping
        A record of :func:`~dasktune.trial.journal_codec.journal_record`, possibly read from a
        journal.

    Raises
    ------
    StorageError
        If the record is malformed, or of an event that this version does not know.
    """
    try:
        event = decode_event(record)
        if event is None:
            raise ValueError("unknown event")
        if isinstance(event, Suggested) and event.dirname and not is_one_name(event.dirname):
            raise ValueError("dirname must be the name of one directory")
    except Exception as error:  # a damaged or hostile journal may hold anything
        raise StorageError(f"not a record of an event: {str(record)[:200]} ({error!r})") from error
    return event


def replay(
    experiment: ExperimentMachine,
    records: Iterable[Mapping[str, Any]],
    load_config: ConfigLoader,
    missed: MissedEvents | None = None,
) -> list[CheckpointRecord]:
    """Bring an experiment up to date with the records of a journal.

    Parameters
    ----------
    experiment : ExperimentMachine
        The experiment, in its state before the first record. It is changed.
    records : iterable of mapping
        The records, in order.
    load_config : callable
        ``load_config(folder)`` returns the configuration of a trial whose record says `pickled`.
    missed : MissedEvents, optional
        Collects the events that callbacks have missed.

    Returns
    -------
    list of CheckpointRecord
        The persistent checkpoints that the last recorded deletions name. The driver may have died
        before it deleted them, so the caller deletes them again.

    Raises
    ------
    ConfigError
        If a scheduler, searcher or stopper raises an exception.
    StorageError
        If a record is malformed, or contradicts the records before it.
    """
    replaying = _Replay(experiment, load_config, missed)
    for number, record in enumerate(records, 1):
        try:
            replaying.step(record)
        except Exception as error:  # a damaged or hostile journal may lead anywhere
            policy = _policy_that_raised(error)
            if policy is not None:
                raise ConfigError(
                    f"{type(policy).__name__} must be able to follow the recorded events, got {error!r} "
                    f"at record {number} of the replayed ones ({record['event']}). Restore with the "
                    "param_space and the arguments of the start, or correct the class. The stored "
                    "experiment is unchanged; `dasktune repair --dry-run DIRECTORY` says whether its "
                    "journal is in order."
                ) from error
            cause = error if isinstance(error, StorageError) else repr(error)
            raise StorageError(f"record {number} of the replayed ones: {cause}") from error
    return list(replaying.deleted)


def _policy_that_raised(error: Exception) -> object | None:
    """Return the innermost policy in whose method the error was raised; None without any."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    # The first argument of a method is its object.
    firsts = (one.f_locals.get(next(iter(one.f_code.co_varnames), "")) for one in reversed(frames))
    kinds = (TrialScheduler, SearchAlgorithm, Searcher, Stopper)
    return next((first for first in firsts if isinstance(first, kinds)), None)


class _Replay:
    def __init__(
        self, experiment: ExperimentMachine, load_config: ConfigLoader, missed: MissedEvents | None
    ) -> None:
        self._experiment = experiment
        self._load_config = load_config
        self._missed = missed
        self._has_warned_of_search = False
        self._has_warned_of_policy = False
        self.deleted: deque[CheckpointRecord] = deque(maxlen=_MOST_DELETIONS)

    def step(self, record: Mapping[str, Any]) -> None:
        event = event_of(record)
        if isinstance(event, Suggested):
            event = self._suggest_again(event)
        written = record.get("actions", ())
        recorded = [_without_checkpoint(one) for one in decode_actions(record)]
        decisions = RecordedDecisions(recorded, self._config_of)
        handled = self._experiment.handle(event, decisions)
        actions = handled.actions
        # Most records have no actions.
        if actions or written:
            was = [(one["do"], one.get("trial_id")) for one in written]
            now = [(type(one).__name__, getattr(one, "trial_id", None)) for one in actions]
            _check_same(record, was, now)
        if self._missed is not None:
            self._missed.on_event(event, handled, self._experiment)
        self.deleted.extend(
            one.checkpoint
            for one in actions
            if isinstance(one, DeleteCheckpoint) and one.checkpoint.kind is CheckpointKind.PERSISTENT
        )
        trial = self._experiment.trials.get(getattr(event, "trial_id", ""))
        status = None if trial is None else PUBLIC[trial.status]
        _check_same(record, record.get("status"), status)
        if decisions.diverged_policy and not self._has_warned_of_policy:
            self._has_warned_of_policy = True
            self._warn_of(decisions.diverged_policy, record)

    def _config_of(self, recorded: ExploitTrial, own: dict[str, Any] | None) -> dict[str, Any]:
        """Return the configuration of a clone with the original Python values.

        They come from the scheduler's decision in the replay if it equals the recorded one, and
        otherwise from ``params.pkl``.
        """
        if own is not None and _same(own, recorded.config):
            return own
        folder = self._experiment.trials[recorded.trial_id].folder
        return self._load_config(folder) if recorded.pickled else recorded.config

    @staticmethod
    def _warn_of(policy: str, record: Mapping[str, Any]) -> None:
        logger.warning(
            "%s decides differently than before the restore (first about %s of trial %s); the "
            "recorded decisions are kept. A policy continues exactly if it decides by its "
            "arguments alone and saves everything that it learns in state_dict()",
            policy,
            record["event"],
            record.get("trial_id"),
        )

    def _suggest_again(self, event: Suggested) -> Suggested:
        """Ask the searcher again; return the event with the original Python values."""
        answer = self._experiment.search.next_trial(event.trial_id)
        if _same(answer.config, event.config):
            return replace(event, config=answer.config)
        if not self._has_warned_of_search:
            self._has_warned_of_search = True
            logger.warning(
                "the search algorithm suggests other configurations than before the restore (first "
                "for trial %s); the trials keep their recorded configurations",
                event.trial_id,
            )
        self._experiment.search.adopt(event.trial_id, event.config)
        if event.pickled:
            return replace(event, config=self._load_config(event.dirname or event.trial_id))
        return event


def _same(answer: Mapping[str, Any] | None, recorded: Mapping[str, Any] | None) -> bool:
    """Whether a configuration is the recorded one, as far as JSON can hold it."""
    if answer is None or recorded is None:
        return answer is recorded
    # As text, because NaN is not equal to itself.
    return repr(decode(encode(answer))) == repr(recorded)


def _check_same(record: Mapping[str, Any], was: object, now: object) -> None:
    if was != now:
        raise StorageError(
            f"{record['event']} led to {was} and leads to {now} now: the journal is damaged, or "
            "another version of dasktune wrote it"
        )


def _without_checkpoint(action: Action | None) -> Action | None:
    """Return an action as the policy decided it; the experiment looks up the donor's checkpoint."""
    return replace(action, checkpoint=None) if isinstance(action, ExploitTrial) else action
