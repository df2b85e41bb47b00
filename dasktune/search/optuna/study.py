"""An Optuna study that is asked and told by the names of our trials."""

from __future__ import annotations

import base64
import logging
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from types import SimpleNamespace
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.trial.metrics import Mode

__all__ = ["OptunaStudy", "new_tpe", "require_optuna", "require_picklable"]

#: What Optuna takes of a fitted Gaussian process when it fits the next one.
_STARTS: Final = ("inverse_squared_lengthscales", "kernel_scale", "noise_var")


def require_optuna() -> Any:
    """Return the module.

    Raises
    ------
    ImportError
        If it is not installed; the message says how to.
    """
    try:
        import optuna
    except ImportError as error:
        message = "OptunaSearch needs Optuna 5 or later: pip install dasktune[optuna]"
        raise ImportError(message) from error
    return optuna


def new_tpe(seed: int | None, *, grouped: bool) -> Any:
    """Return the sampler that is taken by default.

    Parameters
    ----------
    seed : int or None
        Its seed.
    grouped : bool
        Whether to learn separately of parameters that do not always occur together.
    """
    optuna = require_optuna()
    if not grouped:
        return optuna.samplers.TPESampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)


def require_picklable(sampler: Any) -> None:
    """Raise ConfigError if a sampler cannot be part of a snapshot."""
    try:
        pickle.dumps(sampler)
    except Exception as error:  # users' functions are among what a sampler may hold
        raise ConfigError(
            f"sampler must be picklable, got {sampler!r} ({error}). It is a part of the "
            "experiment's snapshots: use functions of a module in it, no lambdas."
        ) from error


class OptunaStudy:
    """A study in memory, and which of its trials have not ended.

    Parameters
    ----------
    sampler : optuna.samplers.BaseSampler
        What proposes.
    modes : sequence of {"min", "max"}
        Which way each metric is better.
    name : str
        Name of the study.

    Attributes
    ----------
    study : optuna.Study
        The study.
    open : dict of str to optuna.Trial
        Those that were asked for and have not ended, by the names of ours.
    waiting : list of dict
        Parameters to begin with. Optuna's own queue has no way to put a trial first.
    exhausted : bool
        Whether the sampler has proposed all there is.
    """

    def __init__(self, sampler: Any, modes: Sequence[Mode | None], name: str) -> None:
        optuna = require_optuna()
        with _quiet():
            self.study = optuna.create_study(
                directions=["minimize" if mode == "min" else "maximize" for mode in modes],
                study_name=name,
                sampler=sampler,
                # The trial scheduler prunes; a pruner might hide trials from the sampler.
                pruner=optuna.pruners.NopPruner(),
            )
        self.open: dict[str, Any] = {}
        self.waiting: list[dict[str, Any]] = []
        self.exhausted = False
        #: The last step that was reported of each open trial; Optuna takes each only once.
        self._steps: dict[str, int] = {}

    @property
    def metrics(self) -> int:
        """How many metrics there are."""
        return len(self.study.directions)

    @property
    def ranks_pruned(self) -> bool:
        """Whether the sampler learns from trials that were pruned."""
        tpe = isinstance(self.study.sampler, require_optuna().samplers.TPESampler)
        return tpe and self.metrics == 1

    def ask(self, trial_id: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return a new trial, which has no parameters until it is asked for some.

        Parameters
        ----------
        trial_id : str
            Whose.
        params : mapping, optional
            What it will answer, as far as it is here.
        """
        if params is not None:
            self.study.enqueue_trial(dict(params))
        trial = self.open[trial_id] = self.study.ask()
        return trial

    def report(self, trial_id: str, step: int, value: float) -> None:
        """Report an intermediate value, if it is one that Optuna takes."""
        if self.metrics == 1 and step > self._steps.get(trial_id, -1):
            self._steps[trial_id] = step
            self.open[trial_id].report(value, step)

    def tell(self, trial_id: str, state: str, values: list[float] | None = None) -> None:
        """Tell how an open trial has ended.

        Parameters
        ----------
        trial_id : str
            Whose.
        state : {"COMPLETE", "PRUNED", "FAIL"}
            How.
        values : list of float, optional
            The value of each metric, if it is complete.
        """
        trial = self.open.pop(trial_id)
        self._steps.pop(trial_id, None)
        try:
            self.study.tell(trial, values, state=require_optuna().trial.TrialState[state])
        except RuntimeError as error:
            # So samplers that try each point once say that there are no more; it has been told.
            if "Study.stop" not in str(error):
                raise
            self.exhausted = True

    def learn(
        self, trial: Any, state: str, values: list[float] | None, intermediate: Sequence[float]
    ) -> None:
        """Add a trial that has ended already.

        Parameters
        ----------
        trial : optuna.trial.FixedTrial
            One that was asked for all its parameters.
        state, values
            As for :meth:`tell`; a pruned one has values, too.
        intermediate : sequence of float
            The values on the way.
        """
        optuna = require_optuna()
        finite = {step: one for step, one in enumerate(intermediate, 1) if isfinite(one)}
        self.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[state],
                values=values,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values=finite if self.metrics == 1 else {},
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all of it: some samplers keep their state in the study, others in themselves."""
        _slim(self.study.sampler)
        blob = pickle.dumps((self.study, self.open, self._steps, self.waiting))
        return {"study": base64.b64encode(blob).decode("ascii"), "exhausted": self.exhausted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned; unpickling may run code."""
        known = pickle.loads(base64.b64decode(state["study"]))
        self.study, self.open, self._steps, self.waiting = known
        self.exhausted = state["exhausted"]


def _slim(sampler: Any) -> None:
    """Keep of fitted Gaussian processes only what the next fit starts from.

    Everything else is computed again, and grows with the square of the number of trials.
    """
    if not isinstance(sampler, require_optuna().samplers.GPSampler):
        return
    for name in ("_gprs_cache_list", "_constraints_gprs_cache_list"):
        fitted = vars(sampler).get(name)
        if fitted is not None:
            starts = [{key: getattr(one, key) for key in _STARTS} for one in fitted]
            setattr(sampler, name, [SimpleNamespace(**start) for start in starts])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from telling everybody that there is a study; its logging is the user's."""
    told = logging.getLogger("optuna.storages._in_memory")
    told.addFilter(_is_serious)
    try:
        yield
    finally:
        told.removeFilter(_is_serious)


def _is_serious(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO
