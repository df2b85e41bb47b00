"""Stop everything when the best results no longer differ."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from math import isfinite
from typing import Any

from dasktune.errors import check
from dasktune.stopper.absence import AbsenceWarning
from dasktune.stopper.plateau_rules import check_count, check_metric, check_std, deviation
from dasktune.stopper.stopper import Stopper
from dasktune.trial.metrics import Mode, score

__all__ = ["ExperimentPlateauStopper"]


class ExperimentPlateauStopper(Stopper):
    """End the experiment when the standard deviation of its best results is at most `std`.

    All results of all trials count, several of one trial, too. Those without a finite value of the
    metric are passed over.

    Parameters
    ----------
    metric : str
        What to watch; nested names are joined by ``/``.
    std : float, default=0.001
        Standard deviation (of the population) up to which it is a plateau, more than 0.
    top : int, default=10
        How many of the best results are looked at, at least 2.
    mode : {"min", "max"}, default="min"
        Which way the metric is better.
    patience : int, default=0
        For how many further results the plateau must last.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> stopper = ExperimentPlateauStopper("loss", std=0.1, top=2)
    >>> stopper("a_00000", {"loss": 1.0}), stopper.stop_all()
    (False, False)
    >>> stopper("a_00001", {"loss": 1.1}), stopper.stop_all()
    (True, True)
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.001,
        top: int = 10,
        mode: Mode = "min",
        patience: int = 0,
    ) -> None:
        check_metric(metric)
        check_std(std)
        check_count("top", top, least=2)
        check(mode in ("min", "max"), "mode", "'min' or 'max'", mode)
        check_count("patience", patience, least=0)
        self.metric = metric
        self.std = std
        self.top = top
        self.mode: Mode = mode
        self.patience = patience
        #: Scores of the best results, higher is better, ascending.
        self._best: list[float] = []
        #: Results for which the plateau has lasted, the first one included.
        self._lasted = 0
        self._absence = AbsenceWarning("nothing can be said of a plateau")

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Take in the result, and return whether everything ends."""
        value = score(result, self.metric, self.mode)
        if value is None:
            self._absence.warn(trial_id, self.metric)
        elif isfinite(value):
            insort(self._best, value)
            del self._best[: -self.top]
            self._lasted = self._lasted + 1 if self.has_plateaued() else 0
        return self.stop_all()

    def has_plateaued(self) -> bool:
        """Return whether the best results are a plateau now, patience or not."""
        return len(self._best) == self.top and deviation(self._best) <= self.std

    def stop_all(self) -> bool:
        """Return whether the plateau has lasted long enough."""
        return self._lasted > self.patience

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return why everything ends."""
        return self.stop_all_reason()

    def stop_all_reason(self) -> str:
        """Return the deviation and its limit."""
        return (
            f"the standard deviation of the best {self.top} results of {self.metric} is "
            f"{deviation(self._best):.3g}, at most {self.std:g}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the best results, and how long the plateau has lasted."""
        return {"best": list(self._best), "lasted": self._lasted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._best = list(state["best"])
        self._lasted = int(state["lasted"])
