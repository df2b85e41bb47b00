"""`OptunaStudy`, an Optuna study whose trials are known by the names of dasktune's trials."""

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

#: The attributes of a fitted Gaussian process from which Optuna starts the next fit.
_STARTS: Final = ("inverse_squared_lengthscales", "kernel_scale", "noise_var")


def require_optuna() -> Any:
    """Import Optuna and return the module.

    Raises
    ------
    ImportError
        If Optuna is not installed; the message says how to install it.
    """
    try:
        import optuna
    except ImportError as error:
        message = "OptunaSearch needs Optuna 5 or later: pip install 'optuna>=5'"
        raise ImportError(message) from error
    return optuna


def new_tpe(seed: int | None, *, grouped: bool) -> Any:
    """Return a new default sampler.

    Parameters
    ----------
    seed : int or None
        The sampler's seed; None gives suggestions that cannot be reproduced.
    grouped : bool
        Whether to model each group of parameters that always occur together separately, for
        conditional spaces.
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
    except Exception as error:  # a sampler may hold users' functions, which may raise anything
        raise ConfigError(
            f"sampler must be picklable, got {sampler!r} ({error}). It is a part of the "
            "experiment's snapshots: use functions of a module in it, no lambdas."
        ) from error


class OptunaStudy:
    """An Optuna study in memory, with its unfinished trials.

    Parameters
    ----------
    sampler : optuna.samplers.BaseSampler
        The sampler.
    modes : sequence of {"min", "max"}
        Whether to minimise or maximise each metric.
    name : str
        Name of the study.

    Attributes
    ----------
    study : optuna.Study
        The study.
    open : dict of str to optuna.Trial
        The unfinished Optuna trials, by the names of dasktune's trials.
    waiting : list of dict
        Parameters of the presets that are not suggested yet. They are not in Optuna's own queue,
        because a trial cannot be put at the front of that queue.
    exhausted : bool
        Whether the sampler has no more suggestions.
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
        #: The last step reported for each open trial; Optuna accepts each step only once.
        self._steps: dict[str, int] = {}

    @property
    def metrics(self) -> int:
        """The number of metrics."""
        return len(self.study.directions)

    @property
    def ranks_pruned(self) -> bool:
        """Whether the sampler learns from trials that were pruned."""
        tpe = isinstance(self.study.sampler, require_optuna().samplers.TPESampler)
        return tpe and self.metrics == 1

    def ask(self, trial_id: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return a new Optuna trial, whose ``suggest_`` methods choose its parameters.

        Parameters
        ----------
        trial_id : str
            The name of dasktune's trial.
        params : mapping, optional
            Parameters, by name, that the trial suggests as they are. The sampler chooses others.
        """
        if params is not None:
            self.study.enqueue_trial(dict(params))
        trial = self.open[trial_id] = self.study.ask()
        return trial

    def report(self, trial_id: str, step: int, value: float) -> None:
        """Report an intermediate value, unless the step is not new or there are several metrics."""
        if self.metrics == 1 and step > self._steps.get(trial_id, -1):
            self._steps[trial_id] = step
            self.open[trial_id].report(value, step)

    def tell(self, trial_id: str, state: str, values: list[float] | None = None) -> None:
        """Report the final state of an unfinished trial.

        Parameters
        ----------
        trial_id : str
            The name of dasktune's trial.
        state : {"COMPLETE", "PRUNED", "FAIL"}
            The name of the Optuna state.
        values : list of float, optional
            The value of each metric, if the trial is complete.
        """
        trial = self.open.pop(trial_id)
        self._steps.pop(trial_id, None)
        try:
            self.study.tell(trial, values, state=require_optuna().trial.TrialState[state])
        except RuntimeError as error:
            # Samplers that try each point once call Study.stop() after the last one, which raises
            # outside of Study.optimize(). The trial's state is already stored then.
            if "Study.stop" not in str(error):
                raise
            self.exhausted = True

    def learn(
        self, trial: Any, state: str, values: list[float] | None, intermediate: Sequence[float]
    ) -> None:
        """Add a finished trial that this study did not suggest.

        Parameters
        ----------
        trial : optuna.trial.FixedTrial
            A trial that has already suggested all its parameters.
        state : {"COMPLETE", "PRUNED", "FAIL"}
            The name of the Optuna state.
        values : list of float or None
            The value of each metric, for a pruned trial too; None if it failed.
        intermediate : sequence of float
            The values at steps 1, 2, 3 and so on.
        """
        optuna = require_optuna()
        finite = {step: value for step, value in enumerate(intermediate, 1) if isfinite(value)}
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
        """Return the pickled study with its sampler: samplers keep state in both."""
        _slim(self.study.sampler)
        blob = pickle.dumps((self.study, self.open, self._steps, self.waiting))
        return {"study": base64.b64encode(blob).decode("ascii"), "exhausted": self.exhausted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned; unpickling may run code."""
        known = pickle.loads(base64.b64decode(state["study"]))
        self.study, self.open, self._steps, self.waiting = known
        self.exhausted = state["exhausted"]


def _slim(sampler: Any) -> None:
    """Reduce a sampler's fitted Gaussian processes to the start values of the next fit.

    The sampler recomputes the rest, which grows with the square of the number of trials.
    """
    if not isinstance(sampler, require_optuna().samplers.GPSampler):
        return
    for name in ("_gprs_cache_list", "_constraints_gprs_cache_list"):
        fitted = vars(sampler).get(name)
        if fitted is not None:
            starts = [{key: getattr(process, key) for key in _STARTS} for process in fitted]
            setattr(sampler, name, [SimpleNamespace(**start) for start in starts])


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Optuna's message about the new study, without changing its logging settings."""
    storage_logger = logging.getLogger("optuna.storages._in_memory")
    storage_logger.addFilter(_is_above_info)
    try:
        yield
    finally:
        storage_logger.removeFilter(_is_above_info)


def _is_above_info(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO
