"""One trial, trained with the schedule that population based training has found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path  # noqa: TID251 - read before there is an experiment, see _read
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.schedulers.decision import Command, Continue, Decision, Exploit, ExploitOther
from dasktune.schedulers.fifo import first_in
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["PopulationBasedTrainingReplay"]


class PopulationBasedTrainingReplay(TrialScheduler):
    """Train one trial with the hyperparameters that a trial of an earlier run came to have.

    At each iteration where the trial or one of its ancestors became a clone, the trial is saved and
    goes on with the configuration of then. Whatever configuration it is given, it gets that of the
    schedule.

    Parameters
    ----------
    policy_file : str or Path
        ``pbt_policy_<trial>.txt`` of that run, a local file. It is read now.

    Raises
    ------
    ConfigError
        If it cannot be read or is no such file; later, if there is a second trial.

    Notes
    -----
    The rows are taken from the last one back for as long as each row's clone is the donor of the
    next row: what came before was given up. Files of Ray Tune have the same format.

    Examples
    --------
    >>> import tempfile
    >>> rows = [["b", "a", 4, 5, {"lr": 0.1}, {"lr": 0.12}]]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "pbt_policy_b.txt"
    ...     _ = file.write_text("".join(json.dumps(row) for row in rows))
    ...     replay = PopulationBasedTrainingReplay(file)
    >>> replay.config, replay.changes
    ({'lr': 0.1}, [(5, {'lr': 0.12})])
    """

    def __init__(self, policy_file: str | Path) -> None:
        rows = _read(policy_file)
        #: What the trial begins with; None if the schedule does not say.
        self.config: dict[str, Any] | None = None
        #: ``(training_iteration, configuration)`` in order: what it goes on with from there.
        self.changes: list[tuple[int, dict[str, Any]]] = []
        heir = None
        for clone, donor, _, reached, before, after in reversed(rows):
            if heir not in (None, clone):
                break
            heir, self.config = donor, before
            self.changes.insert(0, (reached, after))
        self._trial_id = ""
        #: How many changes were made.
        self._done = 0

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Give the trial the configuration that the schedule begins with.

        Raises
        ------
        ConfigError
            If it is not the first.
        """
        known = self._trial_id in ("", trial.trial_id)
        check(known, "num_samples", "1 to replay a schedule", "a second trial")
        if self._trial_id or self.config is None or self.config == trial.config:
            self._trial_id = trial.trial_id
            return None
        key = self._trial_id = trial.trial_id
        reason = "begins as the schedule does"
        return (ExploitOther(trial_id=key, donor=key, config=self.config, reason=reason),)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Let the trial go on with another configuration if it is time."""
        due = [one for one in self.changes[self._done :] if one[0] <= result["training_iteration"]]
        if not due:
            return Continue()
        self._done += len(due)
        iteration, config = due[-1]
        reason = f"change {self._done} of {len(self.changes)}, made at iteration {iteration}"
        return Exploit(trial.trial_id, config, reason)

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the trial if it waits."""
        return first_in(waiting)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return where the next change is due."""
        left = self.changes[self._done : self._done + 1]
        return tuple(Milestone("training_iteration", iteration) for iteration, _ in left)

    def debug_string(self) -> str:
        """Return how much of the schedule is done."""
        return f"PopulationBasedTrainingReplay: {self._done} of {len(self.changes)} changes"

    def state_dict(self) -> dict[str, Any]:
        """Return how many changes were made, and to which trial."""
        return {"trial": self._trial_id, "done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._trial_id, self._done = state["trial"], state["done"]


def _read(policy_file: str | Path) -> list[tuple[str, str, int, int, Any, Any]]:
    try:
        # The only file that a policy reads: before there is an experiment, so that what is in it
        # is part of the scheduler from then on.
        text = Path(policy_file).expanduser().read_text(encoding="utf-8")
    except (OSError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"policy_file must be a local file that can be read, got {policy_file!r} ({error})"
        ) from error
    return [_row(line) for line in text.splitlines() if line.strip()]


def _row(line: str) -> tuple[str, str, int, int, Any, Any]:
    rule = "[clone, donor, its iteration, the donor's, old configuration, new configuration]"
    try:
        clone, donor, was, reached, before, after = json.loads(line)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"a row of policy_file must be {rule}, got {line:.80}") from error
    counts = type(was) is int and type(reached) is int
    check(counts and isinstance(before, dict) and isinstance(after, dict), "a row", rule, line)
    return clone, donor, was, reached, before, after
