"""Hyperopt's optimiser as one that is asked and told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.random import SeedSequence

from dasktune.search.ask_tell import AskTell
from dasktune.search.hyperopt.hyperopt_spaces import HyperoptSpace

__all__ = ["TPE", "require_hyperopt"]


def require_hyperopt() -> None:
    """Raise ImportError if it is not installed; the message says how to install it."""
    try:
        import hyperopt  # noqa: F401
    except ImportError as error:
        message = "HyperOptSearch needs Hyperopt: pip install dasktune[hyperopt]"
        raise ImportError(message) from error


class TPE(AskTell):
    """What Hyperopt proposes is a function of the trials so far, and of a seed.

    Parameters
    ----------
    space : HyperoptSpace
        What it searches.
    seed : int
        The source of all randomness.
    n_initial_points : int
        How many suggestions are random.
    gamma : float
        How many of n trials count as good: ``gamma * sqrt(n)``.
    """

    def __init__(self, space: HyperoptSpace, *, seed: int, n_initial_points: int, gamma: float) -> None:
        from hyperopt.base import Domain

        self._space = space
        self._seed = seed
        self._initial = n_initial_points
        self._gamma = gamma
        self._domain = Domain(None, space.expression, pass_expr_memo_ctrl=False)
        self._asked = 0
        #: Values by label and loss of all trials in order; None if it runs. Without those that
        #: failed.
        self._trials: list[tuple[dict[str, float], float | None]] = []

    def ask(self) -> dict[str, Any]:
        """Return the next of the points to begin with, or what Hyperopt proposes."""
        first = self._asked < len(self._space.points)
        point = self._space.point(self._space.points[self._asked] if first else self._propose())
        self._asked += 1
        values = self._space.values(point)
        assert values is not None, "what is suggested is a point of the space"
        self._trials.append((values, None))
        return point

    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Add the loss of a point, whether it was proposed here or not."""
        values = self._space.values(params)
        if values is None:
            return
        if (values, None) in self._trials:
            self._trials.remove((values, None))
        if isinstance(loss, float | int):
            self._trials.append((values, float(loss)))

    def _propose(self) -> dict[str, float]:
        from hyperopt import tpe
        from hyperopt.base import trials_from_docs

        docs = [self._doc(number, *trial) for number, trial in enumerate(self._trials)]
        [seed] = SeedSequence([self._seed, self._asked]).generate_state(1)
        [doc] = tpe.suggest(
            [len(docs)],
            self._domain,
            trials_from_docs(docs, validate=False),
            int(seed),
            n_startup_jobs=self._initial,
            gamma=self._gamma,
            verbose=False,
        )
        return {label: one[0].item() for label, one in doc["misc"]["vals"].items() if len(one)}

    def _doc(self, number: int, values: dict[str, float], loss: float | None) -> dict[str, Any]:
        """Return a trial as Hyperopt keeps it."""
        from hyperopt import STATUS_NEW, STATUS_OK
        from hyperopt.base import JOB_STATE_DONE, JOB_STATE_RUNNING

        labels = self._domain.params
        ended = loss is not None
        return {
            "tid": number,
            "state": JOB_STATE_DONE if ended else JOB_STATE_RUNNING,
            "spec": None,
            "result": {"status": STATUS_OK, "loss": loss} if ended else {"status": STATUS_NEW},
            "misc": {
                "tid": number,
                "cmd": self._domain.cmd,
                "workdir": None,
                "idxs": {one: [number] if one in values else [] for one in labels},
                "vals": {one: [values[one]] if one in values else [] for one in labels},
            },
            "exp_key": None,
            "owner": None,
            "version": 0,
            "book_time": None,
            "refresh_time": None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all trials, and how often it was asked."""
        return {"asked": self._asked, "trials": [[dict(one), loss] for one, loss in self._trials]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._asked = state["asked"]
        self._trials = [(dict(values), loss) for values, loss in state["trials"]]
        for values, _ in self._trials:
            self._space.point(values)  # it may have to know them again
