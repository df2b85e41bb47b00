"""Trials that go on from another one's checkpoint, and the record of who came of whom.

A clone has the donor's weights and a configuration made of the donor's. Its history is its own up
to the iteration of the checkpoint, and what it does from there on after it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dasktune.experiment.custody import Custody
from dasktune.schedulers.decision import Decision, Exploit, ExploitOther
from dasktune.space.tree import is_plain
from dasktune.trial.actions import DeleteCheckpoint, ExploitTrial
from dasktune.trial.trial import Trial

__all__ = ["Cloning", "cut_back"]

logger = logging.getLogger(__name__)


class Cloning:
    """Lets trials go on from each other, and remembers it.

    Parameters
    ----------
    trials : mapping of str to Trial
        All there are, now and later.
    custody : Custody
        Their checkpoints.

    Attributes
    ----------
    rows : list of list
        One for each exploit, in order: the clone, the donor, what ``training_iteration`` each of
        them had come to, the donor's configuration, and the one made of it. `Trial.ancestry`
        counts these.
    """

    def __init__(self, trials: Mapping[str, Trial], custody: Custody) -> None:
        self._trials = trials
        self._custody = custody
        self.rows: list[list[Any]] = []
        #: Whether the user was told that there is nothing to go on from.
        self._has_warned = False

    def settled(self, trial: Trial, decision: Decision) -> Decision:
        """Return a decision, or what is to happen instead if it cannot be carried out.

        Parameters
        ----------
        trial : Trial
            Whom it is about.
        decision : Decision
            What the scheduler wants.
        """
        if not isinstance(decision, Exploit) or self.order(trial, decision) is not None:
            return decision
        instead = decision.otherwise
        return replace(instead, commands=(*instead.commands, *decision.commands))

    def order(self, trial: Trial, wish: Exploit | ExploitOther) -> ExploitTrial | None:
        """Return the order to go on from another trial; None if that has nothing to go on from.

        Parameters
        ----------
        trial : Trial
            Who is to.
        wish : Exploit or ExploitOther
            What the scheduler wants.
        """
        donor = self._trials[wish.donor]
        checkpoint = None if donor is trial else self._custody.newest(donor, wish.iteration)
        if checkpoint is None and donor is not trial:
            self._tell(trial, donor, wish)
            return None
        return ExploitTrial(
            trial_id=trial.trial_id,
            incarnation=trial.incarnation,
            donor=wish.donor,
            config=wish.config,
            old_config=donor.config,
            reason=wish.reason,
            iteration=trial.last_iteration,
            donor_iteration=wish.iteration,
            checkpoint=checkpoint,
            pickled=donor.pickled or not is_plain(wish.config),
        )

    def _tell(self, trial: Trial, donor: Trial, wish: Exploit | ExploitOther) -> None:
        """Say that a trial is not cloned; once where the user's code may never save anything."""
        logger.info(
            "trial %s is not cloned from %s, which has no checkpoint%s (%s)",
            trial.trial_id,
            wish.donor,
            "" if wish.iteration is None else f" of iteration {wish.iteration} or before",
            wish.reason,
        )
        if not self._has_warned and self._custody.newest(donor, None) is None:
            self._has_warned = True
            logger.warning(
                "trial %s is to go on as a clone of %s, which has saved no checkpoint yet; trials "
                "that save none are never cloned: report(metrics, checkpoint=...), or write "
                "save_checkpoint",
                trial.trial_id,
                wish.donor,
            )

    def again(self, told: ExploitTrial, config: dict[str, Any]) -> ExploitTrial:
        """Return an order that was given before, as it is to be given now.

        Parameters
        ----------
        told : ExploitTrial
            What the journal says of it.
        config : dict
            What it was to go on with.
        """
        wish = ExploitOther(
            trial_id=told.trial_id,
            donor=told.donor,
            config=config,
            reason=told.reason,
            iteration=told.donor_iteration,
        )
        order = self.order(self._trials[told.trial_id], wish)
        assert order is not None, "the donor has what it had"
        return order

    def carry_out(self, order: ExploitTrial) -> list[DeleteCheckpoint]:
        """Let a trial be a clone, and return which checkpoints are not needed any more.

        Parameters
        ----------
        order : ExploitTrial
            What :meth:`order` gave just now.
        """
        trial, donor = self._trials[order.trial_id], self._trials[order.donor]
        if trial.incarnation or donor is not trial:  # else it has no past to be told
            self._note(trial, donor, order)
        trial.config, trial.pickled = order.config, order.pickled
        if order.checkpoint is None:
            return []
        cut_back(trial, order.checkpoint.iteration)
        return self._custody.lend(trial, order.checkpoint)

    def _note(self, trial: Trial, donor: Trial, order: ExploitTrial) -> None:
        point = order.checkpoint
        reached = order.iteration if point is None else point.iteration
        trial.ancestry = (*donor.ancestry, len(self.rows))
        names = [order.trial_id, order.donor]
        self.rows.append([*names, order.iteration, reached, order.old_config, order.config])


def cut_back(trial: Trial, iteration: int) -> None:
    """Forget what a trial has reported after an iteration.

    Parameters
    ----------
    trial : Trial
        It goes on from a checkpoint of that time.
    iteration : int
        The last ``training_iteration`` that stays.
    """
    while trial.last_iteration > iteration:
        del trial.rows[trial.last_iteration]
        trial.history.pop()
    # What it had come to before counts no more as progress that it has yet to exceed.
    trial.progress_at_loss = min(trial.progress_at_loss, trial.progress)
