"""What a user may want of the trials of an experiment that is restored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dasktune.errors import check
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["ResumeConfig", "ResumeType"]


class ResumeType(str, Enum):
    """What becomes of a trial when its experiment is restored."""

    #: It goes on from its last checkpoint, under its name.
    RESUME = "resume"
    #: It begins anew, under its name, without what came of it so far.
    RESTART = "restart"
    #: It stays as it is; one that was not finished is ended.
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeConfig:
    """What becomes of the trials when an experiment is restored.

    Parameters
    ----------
    finished : ResumeType or {"skip", "resume", "restart"}, default="skip"
        Those that have ended well. "resume" lets them go on, for which it takes another `stop`.
    unfinished : ResumeType or {"skip", "resume", "restart"}, default="resume"
        Those that waited, ran or were paused; also then when ``fail_fast`` ended them for the
        failure of another one, which is to be tried again or is no reason to end any more.
    errored : ResumeType or {"skip", "resume", "restart"}, default="skip"
        Those that have failed.

    Raises
    ------
    ConfigError
        If one is none of these.

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
    def of_flags(
        cls, resume_unfinished: bool, resume_errored: bool, restart_errored: bool
    ) -> ResumeConfig:
        """Return what the flags of :meth:`Tuner.restore` mean.

        Raises
        ------
        ConfigError
            If errored trials are both to go on and to begin anew.
        """
        both = resume_errored and restart_errored
        check(not both, "restart_errored", "False with resume_errored=True", True, "Choose one.")
        errored = ResumeType.RESUME if resume_errored else ResumeType.SKIP
        return cls(
            unfinished=ResumeType.RESUME if resume_unfinished else ResumeType.SKIP,
            errored=ResumeType.RESTART if restart_errored else errored,
        )

    def wish(self, trial: Trial, cut_off: str = "") -> ResumeType:
        """Return what becomes of a trial.

        Parameters
        ----------
        trial : Trial
            As it was left.
        cut_off : str, optional
            The reason of those that have ended but count as unfinished.
        """
        if trial.status is TrialStatus.ERROR:
            return ResumeType(self.errored)
        is_cut_off = bool(cut_off) and trial.reason == cut_off
        is_finished = trial.status.is_final and not is_cut_off
        return ResumeType(self.finished if is_finished else self.unfinished)


# Ray Tune's users write ResumeConfig.ResumeType.RESUME. In the class it would hide the name from
# the annotations of its fields.
setattr(ResumeConfig, "ResumeType", ResumeType)  # noqa: B010
