"""Replay of a hyperparameter schedule that population based training found."""

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


class PopulationBasedTrainingReplay(TrialScheduler):
    """Train one trial with the hyperparameter schedule of a trial of an earlier PBT run.

    At each iteration at which the earlier trial or one of its ancestors became a clone, the trial
    is saved and continues with the configuration of that clone. The schedule replaces the
    configuration that the searcher suggested.

    Parameters
    ----------
    policy_file : str or Path
        ``pbt_policy_<trial>.txt`` of the earlier run, a local file. The constructor reads it.

    Raises
    ------
    ConfigError
        If the file cannot be read or has another format; later, if a second trial is added.

    Notes
    -----
    The rows are read backwards from the last one, as long as the clone of a row is the donor of the
    next row: earlier rows belong to configurations that were replaced. Ray Tune's files have the
    same format.

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
        #: The initial configuration; None if the file has no rows.
        self.config: dict[str, Any] | None = None
        #: ``(training_iteration, configuration)`` of each change, in order.
        self.changes: list[tuple[int, dict[str, Any]]] = []
        heir = None
        for clone, donor, _, reached, before, after in reversed(rows):
            if heir not in (None, clone):
                break
            heir, self.config = donor, before
            self.changes.insert(0, (reached, after))
        self._trial_id = ""
        #: Number of changes made so far.
        self._done = 0

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Give the trial the initial configuration of the schedule.

        Raises
        ------
        ConfigError
            If `trial` is not the first trial.
        """
        known = self._trial_id in ("", trial.trial_id)
        check(known, "num_samples", "1 to replay a schedule", "a second trial")
        if self._trial_id or self.config is None or self.config == trial.config:
            self._trial_id = trial.trial_id
            return None
        key = self._trial_id = trial.trial_id
        reason = "starts with the configuration of the schedule"
        return (ExploitOther(trial_id=key, donor=key, config=self.config, reason=reason),)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Change the trial's configuration if a change of the schedule is due."""
        due = [one for one in self.changes[self._done :] if one[0] <= result["training_iteration"]]
        if not due:
            return Continue()
        self._done += len(due)
        iteration, config = due[-1]
        reason = f"change {self._done} of {len(self.changes)}, made at iteration {iteration}"
        return Exploit(trial.trial_id, config, reason)

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the trial if it is pending or paused."""
        return first_in(waiting)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the iteration of the next change."""
        left = self.changes[self._done : self._done + 1]
        return tuple(Milestone("training_iteration", iteration) for iteration, _ in left)

    def debug_string(self) -> str:
        """Return how many changes of the schedule were made."""
        return f"PopulationBasedTrainingReplay: {self._done} of {len(self.changes)} changes"

    def state_dict(self) -> dict[str, Any]:
        """Return the trial and the number of changes made."""
        return {"trial": self._trial_id, "done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._trial_id, self._done = state["trial"], state["done"]


def _read(policy_file: str | Path) -> list[tuple[str, str, int, int, Any, Any]]:
    try:
        # The only file that a scheduler reads. It does so before the experiment starts, so the
        # pickled scheduler has the file's content.
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
