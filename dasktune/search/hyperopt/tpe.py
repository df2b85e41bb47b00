"""`TPE`, the ask-and-tell interface to Hyperopt's tree of Parzen estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.random import SeedSequence

from dasktune.search.ask_tell import AskTell
from dasktune.search.hyperopt.hyperopt_spaces import HyperoptSpace


def require_hyperopt() -> None:
    """Raise ImportError if Hyperopt is not installed; the message says how to install it."""
    try:
        import hyperopt  # noqa: F401
    except ImportError as error:
        message = "HyperOptSearch needs Hyperopt: pip install hyperopt"
        raise ImportError(message) from error


class TPE(AskTell):
    """Suggests points by Hyperopt's TPE, which gets all trials for each suggestion.

    A suggestion depends only on the trials so far, the number of suggestions and the seed.

    Parameters
    ----------
    space : HyperoptSpace
        The search space.
    seed : int
        The seed of all randomness.
    n_initial_points : int
        Number of random suggestions before TPE is used.
    gamma : float
        Of n trials, the best ``gamma * sqrt(n)`` are modelled as good.
    """

    def __init__(self, space: HyperoptSpace, *, seed: int, n_initial_points: int, gamma: float) -> None:
        from hyperopt.base import Domain

        self._space = space
        self._seed = seed
        self._initial = n_initial_points
        self._gamma = gamma
        self._domain = Domain(None, space.expression, pass_expr_memo_ctrl=False)
        self._asked = 0
        #: Values by label and loss of each trial, in order; the loss is None while the trial runs.
        #: Failed trials are left out.
        self._trials: list[tuple[dict[str, float], float | None]] = []

    def ask(self) -> dict[str, Any]:
        """Return the next of the space's first points, or Hyperopt's suggestion."""
        first = self._asked < len(self._space.points)
        point = self._space.point(self._space.points[self._asked] if first else self._propose())
        self._asked += 1
        values = self._space.values(point)
        assert values is not None, "a suggestion is a point of the space"
        self._trials.append((values, None))
        return point

    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Add the loss of a point, whether or not it was suggested here."""
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

        docs = [self._doc(index, *trial) for index, trial in enumerate(self._trials)]
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
        return {label: drawn[0].item() for label, drawn in doc["misc"]["vals"].items() if len(drawn)}

    def _doc(self, index: int, values: dict[str, float], loss: float | None) -> dict[str, Any]:
        """Return a trial in the form of Hyperopt's trial documents."""
        from hyperopt import STATUS_NEW, STATUS_OK
        from hyperopt.base import JOB_STATE_DONE, JOB_STATE_RUNNING

        labels = self._domain.params
        ended = loss is not None
        return {
            "tid": index,
            "state": JOB_STATE_DONE if ended else JOB_STATE_RUNNING,
            "spec": None,
            "result": {"status": STATUS_OK, "loss": loss} if ended else {"status": STATUS_NEW},
            "misc": {
                "tid": index,
                "cmd": self._domain.cmd,
                "workdir": None,
                "idxs": {label: [index] if label in values else [] for label in labels},
                "vals": {label: [values[label]] if label in values else [] for label in labels},
            },
            "exp_key": None,
            "owner": None,
            "version": 0,
            "book_time": None,
            "refresh_time": None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all trials, and the number of suggestions made."""
        return {"asked": self._asked, "trials": [[dict(values), loss] for values, loss in self._trials]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._asked = state["asked"]
        self._trials = [(dict(values), loss) for values, loss in state["trials"]]
        for values, _ in self._trials:
            self._space.point(values)  # a HyperoptNativeSpace stores the values by this call
