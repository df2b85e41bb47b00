"""Names of other libraries for what dasktune calls otherwise, or has in another package."""

from __future__ import annotations

from typing import Final

#: What Optuna, Ray, Hyperopt, SciPy, scikit-optimize and W&B call the functions of a search space
#: and of a run, in lower case and without underscores, and dasktune's name.
FUNCTIONS: Final = {
    # Distributions of floats.
    "float": "uniform",
    "real": "uniform",
    "suggestfloat": "uniform",
    "suggestuniform": "uniform",
    "logfloat": "loguniform",
    "reciprocal": "loguniform",
    "suggestloguniform": "loguniform",
    "discreteuniform": "quniform",
    "qfloat": "quniform",
    "suggestdiscreteuniform": "quniform",
    "gauss": "randn",
    "gaussian": "randn",
    "norm": "randn",
    "normal": "randn",
    "qnormal": "qrandn",
    "lognormal": "sample_from",
    "qlognormal": "sample_from",
    # Distributions of integers.
    "int": "randint",
    "integer": "randint",
    "integers": "randint",
    "intuniform": "randint",
    "suggestint": "randint",
    "uniformint": "randint",
    "logint": "lograndint",
    "logrange": "lograndint",
    "qint": "qrandint",
    "qlogint": "qlograndint",
    # Choices.
    "categorical": "choice",
    "choices": "choice",
    "pchoice": "choice",
    "suggestcategorical": "choice",
    "grid": "grid_search",
    "gridsearch": "grid_search",
    "sample": "sample_from",
    # Runs and trials.
    "createstudy": "Tuner",
    "study": "Tuner",
    "fmin": "Tuner",
    "optimize": "Tuner",
    "session": "get_context",
    "gettrialdir": "get_context",
    "gettrialid": "get_context",
    "gettrialname": "get_context",
    "shouldprune": "report",
}

#: Classes that are not in `dasktune` itself, by the package that has them.
CLASSES: Final = {
    "schedulers": (
        "ASHAScheduler",
        "AsyncHyperBandScheduler",
        "DistributeResources",
        "DistributeResourcesToTopJob",
        "FIFOScheduler",
        "FunctionScheduler",
        "HyperBandForBOHB",
        "HyperBandScheduler",
        "MedianStoppingRule",
        "MultiObjectiveASHAScheduler",
        "PB2",
        "PopulationBasedTraining",
        "PopulationBasedTrainingReplay",
        "PromotingASHAScheduler",
        "ResourceChangingScheduler",
        "SuccessiveHalvingScheduler",
        "TrialScheduler",
    ),
    "search": (
        "AskTellSearch",
        "AxSearch",
        "BasicVariantGenerator",
        "BayesOptSearch",
        "ConcurrencyLimiter",
        "GaussianProcessSearch",
        "HyperOptSearch",
        "OptunaSearch",
        "QuasiRandomSearch",
        "Repeater",
        "Searcher",
        "TuneBOHB",
        "WarmStart",
    ),
    "stopper": (
        "CombinedStopper",
        "ExperimentPlateauStopper",
        "FunctionStopper",
        "MaximumIterationStopper",
        "NoopStopper",
        "TimeoutStopper",
        "TrialPlateauStopper",
    ),
    "logger": ("CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"),
    "sklearn": (
        "GridSearchCV",
        "HalvingGridSearchCV",
        "HalvingRandomSearchCV",
        "HyperbandSearchCV",
        "IncrementalSearchCV",
        "InverseDecaySearchCV",
        "RandomizedSearchCV",
        "SuccessiveHalvingSearchCV",
        "TuneGridSearchCV",
        "TuneSearchCV",
    ),
}

#: Packages that are no attribute of `dasktune` until they are imported.
MODULES: Final = ("dashboard", "sklearn", "testing")

_PLAIN: Final = {name.lower(): (package, name) for package, names in CLASSES.items() for name in names}


def name_hint(name: str) -> str:
    """Return what to write instead of a name that `dasktune` lacks; empty if it is not known.

    Parameters
    ----------
    name : str
        The name, as somebody has written it.

    Examples
    --------
    >>> name_hint("suggest_float")
    'did you mean uniform?'
    >>> name_hint("OptunaSearch")
    'did you mean dasktune.search.OptunaSearch?'
    """
    plain = name.replace("_", "").lower()
    if name in MODULES:
        return f"import dasktune.{name}"
    if plain in _PLAIN:
        package, known = _PLAIN[plain]
        return f"did you mean dasktune.{package}.{known}?"
    return f"did you mean {FUNCTIONS[plain]}?" if plain in FUNCTIONS else ""
