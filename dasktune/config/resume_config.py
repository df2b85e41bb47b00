"""`ResumeConfig`: which trials of a restored experiment to resume, restart or skip."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dasktune.errors import check
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


class ResumeType(str, Enum):
    """What to do with a trial when its experiment is restored."""

    #: Continue the trial from its last checkpoint, with the same ID.
    RESUME = "resume"
    #: Start the trial from the beginning, with the same ID and without its earlier results.
    RESTART = "restart"
    #: Leave the trial as it is; an unfinished trial is ended.
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeConfig:
    """Which trials to resume, restart or skip when an experiment is restored.

    Parameters
    ----------
    finished : ResumeType or {"skip", "resume", "restart"}, default="skip"
        Trials that ended without error. "resume" continues them, which needs another `stop`.
    unfinished : ResumeType or {"skip", "resume", "restart"}, default="resume"
        Trials that were pending, running or paused. Trials that ``fail_fast`` ended for the failure
        of another trial are unfinished if that trial is tried again, or its failure no longer ends
        the experiment.
    errored : ResumeType or {"skip", "resume", "restart"}, default="skip"
        Trials that failed.

    Raises
    ------
    ConfigError
        If an argument has any other value.

    Examples
    --------
    >>> ResumeConfig(errored="restart").errored
    <ResumeType.RESTART: 'restart'>
    """

    finished: ResumeType | str = ResumeType.SKIP
    unfinished: ResumeType | str = ResumeType.RESUME
    errored: ResumeType | str = ResumeType.SKIP

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            given = getattr(self, name)
            known = given in [kind.value for kind in ResumeType]
            check(known, name, "'skip', 'resume' or 'restart'", given)
            object.__setattr__(self, name, ResumeType(given))

    @classmethod
    def of_flags(cls, resume_unfinished: bool, resume_errored: bool, restart_errored: bool) -> ResumeConfig:
        """Return the configuration for the flags of :meth:`Tuner.restore`.

        Raises
        ------
        ConfigError
            If `resume_errored` and `restart_errored` are both True.
        """
        both = resume_errored and restart_errored
        check(not both, "restart_errored", "False with resume_errored=True", True, "Choose one.")
        errored = ResumeType.RESUME if resume_errored else ResumeType.SKIP
        return cls(
            unfinished=ResumeType.RESUME if resume_unfinished else ResumeType.SKIP,
            errored=ResumeType.RESTART if restart_errored else errored,
        )

    def resume_type(self, trial: Trial, cut_off: str = "") -> ResumeType:
        """Return what to do with a trial.

        Parameters
        ----------
        trial : Trial
            The restored trial.
        cut_off : str, optional
            The end reason of trials that have ended but count as unfinished.
        """
        if trial.status is TrialStatus.ERROR:
            return ResumeType(self.errored)
        is_cut_off = bool(cut_off) and trial.reason == cut_off
        is_finished = trial.status.is_final and not is_cut_off
        return ResumeType(self.finished if is_finished else self.unfinished)


# Users of Ray Tune write ResumeConfig.ResumeType.RESUME. Defined in the class body, the attribute
# would hide the class from the annotations of the fields.
setattr(ResumeConfig, "ResumeType", ResumeType)  # noqa: B010
