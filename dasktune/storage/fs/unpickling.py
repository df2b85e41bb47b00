"""Reads pickles of earlier versions, which name classes by modules that have moved since.

Directories of experiments hold pickles: schedulers and searchers in ``tuner.json``, configurations
in ``params.pkl``, values that user code saved as a checkpoint. A pickle names a class by its
module, so the tables below translate the names that revision dd8d971 (0.1.0) wrote. Moving or
renaming a class that such a pickle may hold needs a line here; the tests load the experiments in
``tests/fixtures`` to prove it.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final

#: Old and new names of modules below ``dasktune``.
MOVED_MODULES: Final = {
    "schedulers.asha": "schedulers.halving_family.asha",
    "schedulers.bounds": "schedulers.population_based.bounds",
    "schedulers.by_metric": "schedulers.metric_scheduler",
    "schedulers.distribute": "schedulers.resources.distribute",
    "schedulers.explore": "schedulers.population_based.explore",
    "schedulers.fronts": "schedulers.pareto",
    "schedulers.function": "schedulers.function_scheduler",
    "schedulers.hb_bohb": "schedulers.halving_family.hb_bohb",
    "schedulers.hyperband": "schedulers.halving_family.hyperband",
    "schedulers.multi_objective": "schedulers.halving_family.multi_objective",
    "schedulers.pbt": "schedulers.population_based.pbt",
    "schedulers.pbt_replay": "schedulers.population_based.pbt_replay",
    "schedulers.promoting": "schedulers.halving_family.promoting",
    "schedulers.resource_changing": "schedulers.resources.resource_changing",
    "schedulers.successive_halving": "schedulers.halving_family.successive_halving",
    "search.ax.client": "search.ax.ax_client",
    "search.ax.setup": "search.ax.ax_setup",
    "search.ax.spaces": "search.ax.ax_spaces",
    "search.flat_space": "search.spaces.flat_space",
    "search.hyperopt.spaces": "search.hyperopt.hyperopt_spaces",
    "search.optuna.space": "search.optuna.optuna_space",
    "search.parameters": "search.spaces.parameters",
    "search.search_generator": "search.searcher_adapter",
    "search.suggest": "search.searcher",
    "search.unit_cube": "search.spaces.unit_cube",
    "sklearn.batches": "sklearn.incremental.synchronous_scheduler",
    "sklearn.candidates": "sklearn.steps.candidate_space",
    "sklearn.halving": "sklearn.searches.halving_search",
    "sklearn.hyperband": "sklearn.incremental.hyperband_search",
    "sklearn.incremental": "sklearn.incremental.incremental_search",
    "sklearn.incremental_base": "sklearn.incremental.base",
    "sklearn.incremental_run": "sklearn.incremental.bracket_run",
    "sklearn.placed": "sklearn.fits.cluster_data",
    "sklearn.search": "sklearn.searches.grid_random",
    "sklearn.successive_halving": "sklearn.incremental.successive_halving_search",
    "sklearn.training": "sklearn.steps.candidate",
    "sklearn.tune_search": "sklearn.searches.tune_search",
    "stopper.function": "stopper.function_stopper",
    "storage.checkpoint": "storage.checkpoints.checkpoint",
    "trial.nested_metrics": "trial.metrics",
}

#: Old and new names of single classes and functions, where more than the module has changed.
MOVED_NAMES: Final = {
    ("schedulers.fronts", "Fronts"): ("schedulers.pareto", "ParetoFronts"),
    ("search.ax.setup", "GivenClient"): ("search.ax.ax_setup", "UserClient"),
    ("search.ax.spaces", "DomainSpace"): ("search.ax.ax_spaces", "AxDomainSpace"),
    ("search.ax.spaces", "NativeSpace"): ("search.ax.ax_spaces", "AxNativeSpace"),
    ("search.bayesopt.gaussian_process", "Patience"): (
        "search.bayesopt.gaussian_process",
        "DuplicateRule",
    ),
    ("search.bohb.evidence", "Evidence"): ("search.bohb.observations", "Observations"),
    ("search.hyperopt.spaces", "DomainSpace"): (
        "search.hyperopt.hyperopt_spaces",
        "HyperoptDomainSpace",
    ),
    ("search.hyperopt.spaces", "NativeSpace"): (
        "search.hyperopt.hyperopt_spaces",
        "HyperoptNativeSpace",
    ),
    ("search.optuna.ask_tell", "AskTell"): ("search.optuna.study", "OptunaStudy"),
    ("search.optuna.parameters", "Given"): (
        "search.optuna.optuna_space",
        "DistributionParameter",
    ),
    ("search.searcher", "SearchAlgorithm"): ("search.search_algorithm", "SearchAlgorithm"),
    ("search.searcher", "SearchSpec"): ("search.search_algorithm", "SearchSpec"),
    ("search.searcher", "Suggestion"): ("search.search_algorithm", "Suggestion"),
    ("sklearn.batches", "BatchScheduler"): (
        "sklearn.incremental.synchronous_scheduler",
        "SynchronousScheduler",
    ),
    ("sklearn.batches", "_forget"): ("sklearn.incremental.synchronous_scheduler", "_ignore_state"),
    ("sklearn.incremental_run", "_tell"): ("sklearn.incremental.bracket_run", "_log_batch"),
    ("sklearn.placed", "PlacedSamples"): ("sklearn.fits.cluster_data", "ClusterData"),
    ("sklearn.training", "Fold"): ("sklearn.steps.candidate", "FoldState"),
    ("stopper.absence", "AbsenceWarning"): ("stopper.stopper", "MissingMetricWarner"),
    ("stopper.experiment_plateau", "ExperimentPlateauStopper"): (
        "stopper.plateau",
        "ExperimentPlateauStopper",
    ),
    ("stopper.trial_plateau", "TrialPlateauStopper"): ("stopper.plateau", "TrialPlateauStopper"),
}

_PACKAGE: Final = "dasktune."
_FIRST_MODULES: Final = {new: old for old, new in MOVED_MODULES.items()}
_FIRST_NAMES: Final = {new: old for old, new in MOVED_NAMES.items()}


class _MovedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find a class or function, under its present name if it has moved."""
        if module.startswith(_PACKAGE):
            old = module.removeprefix(_PACKAGE)
            new, name = MOVED_NAMES.get((old, name)) or (MOVED_MODULES.get(old, old), name)
            module = _PACKAGE + new
        return super().find_class(module, name)


def loads(content: bytes) -> Any:
    r"""Return the value of a pickle that this or an earlier version wrote.

    Parameters
    ----------
    content : bytes
        What ``pickle`` or ``cloudpickle`` made. It can run any code: it must come from a place that
        only trusted people can write to.

    Raises
    ------
    Exception
        Whatever unpickling raises, e.g. ModuleNotFoundError for code that is gone.

    Examples
    --------
    >>> loads(pickle.dumps({"lr": 0.1}))
    {'lr': 0.1}
    >>> loads(b"cdasktune.schedulers.asha\nASHAScheduler\n.").__module__
    'dasktune.schedulers.halving_family.asha'
    """
    return _MovedUnpickler(io.BytesIO(content)).load()


def first_name(kind: Any) -> tuple[str | None, str]:
    """Return the module and the qualified name under which a class or function was first known.

    A fingerprint of these names does not change when dasktune moves or renames its code.

    Parameters
    ----------
    kind : type or callable
        A class or function of any package.

    Examples
    --------
    >>> first_name(dict)
    ('builtins', 'dict')
    """
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")
    if not (module or "").startswith(_PACKAGE):
        return module, name
    new = module.removeprefix(_PACKAGE)
    old, name = _FIRST_NAMES.get((new, name)) or (_FIRST_MODULES.get(new, new), name)
    return _PACKAGE + old, name
