"""``hyperparameter_search``: that of Transformers' ``Trainer``, with dasktune's `Tuner`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Literal

from dasktune.config.validation import is_int
from dasktune.errors import ConfigError, check
from dasktune.integration.reporting import check_installed
from dasktune.integration.transformers.trainer_reporter import Objective
from dasktune.integration.transformers.trainer_trial import (
    TrainerTemplate,
    takes_hyperparameters,
    transformers_trial,
)
from dasktune.schedulers import FIFOScheduler
from dasktune.space import choice, loguniform, randint
from dasktune.trainable import with_parameters, with_ranks

#: Transformers' directions and dasktune's modes.
_MODES: Final = {"minimize": "min", "maximize": "max"}

#: Options that other arguments determine, and these arguments.
_DETERMINED: Final = {
    "config": "hp_space",
    "metric": "compute_objective",
    "mode": "direction",
    "num_samples": "n_trials",
}


def default_hp_space(trial: object) -> dict[str, Any]:
    """Return the default search space, which is that of Transformers with Ray Tune.

    Parameters
    ----------
    trial : object
        Unused; Transformers passes it to such functions.

    Examples
    --------
    >>> sorted(default_hp_space(None))
    ['learning_rate', 'num_train_epochs', 'per_device_train_batch_size', 'seed']
    """
    return {
        "learning_rate": loguniform(1e-6, 1e-4),
        "num_train_epochs": choice(list(range(1, 6))),
        "seed": randint(1, 41),
        "per_device_train_batch_size": choice([4, 8, 16, 32, 64]),
    }


def hyperparameter_search(
    trainer: Any,
    hp_space: Callable[[Any], Mapping[str, Any]] | None = None,
    compute_objective: Callable[[dict[str, float]], Any] | None = None,
    n_trials: int = 20,
    direction: Literal["minimize", "maximize"] | Sequence[str] = "minimize",
    hp_name: Callable[[dict[str, Any]], str] | None = None,
    *,
    ranks: int | Callable[[dict[str, Any]], int] | Mapping[str, Any] | None = None,
    client: Any = None,
    **options: Any,
) -> Any:
    """Search the hyperparameters of a Hugging Face ``Trainer`` on a Dask cluster.

    The arguments and the result are those of ``Trainer.hyperparameter_search``, which knows no
    backends but its own. Each trial makes a trainer and a model of its own. The given trainer is
    not changed. Needs ``pip install transformers accelerate torch``.

    Parameters
    ----------
    trainer : Trainer
        A trainer that was made with ``model_init``. If that function takes an argument, it gets the
        hyperparameters of the trial as a dict.
    hp_space : callable, optional
        A function that returns the search space: domains such as ``tune.loguniform(1e-6, 1e-4)`` by
        the names of training arguments. It is called once, with None. By default
        :func:`default_hp_space`.
    compute_objective : callable, optional
        A function of what ``Trainer.evaluate`` returns. By default the sum of the metrics of
        ``compute_metrics``, or the evaluation loss if there are none, as in Transformers.
    n_trials : int, default=20
        The number of trials. -1 has no limit: another rule must end the search.
    direction : {"minimize", "maximize"} or list of them, default="minimize"
        Whether a lower or a higher objective is better. With a list `compute_objective` returns a
        sequence with a value for each.
    hp_name : callable, optional
        A function of the hyperparameters that returns the name of the trial.
    ranks : int, callable or mapping, optional
        Each trial trains on several processes: their number, or the arguments of
        :func:`~dasktune.with_ranks` as a dict.
    client : optional
        The Dask cluster, as for `Tuner`.
    **options
        The experiment's `name`, and the fields of `TuneConfig` and `RunConfig` but `learn_from`:
        `scheduler`, `search_alg`, `storage_path` and so on. An interrupted search is resumed with
        its `name`, `hp_space` and ``if_exists="resume"``. `resources_per_trial` is one CPU by
        default, and a GPU if the trainer uses one here. `isolation` is ``"process"`` by default,
        because a trainer sets the random seeds of its process.

    Returns
    -------
    BestRun or list of BestRun
        Transformers' description of the best trial, by its last evaluation: ``run_id``,
        ``objective``, ``hyperparameters``, and the :class:`~dasktune.ResultGrid` of all trials as
        ``run_summary``. With several directions a list, the Pareto front.

    Raises
    ------
    ConfigError
        If Transformers is not installed, or an argument or a training argument is not valid. No
        trial has been started in this case.
    NoResultError
        If no trial has an objective.

    Notes
    -----
    Each evaluation is a result with the metrics, the ``objective`` and the ``step``. With several
    directions the metrics are ``objective_0``, ``objective_1`` and so on. A save of the trainer
    waits for the next evaluation, and becomes the checkpoint of that result. A trial whose worker
    is lost continues there. The trainers' ``output_dir`` is temporary, and they push nothing to
    the hub.

    Examples
    --------
    >>> best = hyperparameter_search(  # doctest: +SKIP
    ...     trainer,
    ...     hp_space=lambda trial: {"learning_rate": tune.loguniform(1e-6, 1e-4)},
    ...     n_trials=10,
    ...     scheduler=ASHAScheduler(max_t=5),
    ... )
    >>> best.hyperparameters  # doctest: +SKIP
    {'learning_rate': 3.2e-05}
    """
    _check_trainer(trainer)
    modes = _modes(direction)
    check(n_trials == -1 or is_int(n_trials, least=1), "n_trials", "a positive int, or -1", n_trials)
    for name, value in (("compute_objective", compute_objective), ("hp_name", hp_name)):
        check(value is None or callable(value), name, "a function or None", value)
    for name, argument in _DETERMINED.items():
        check(name not in options, name, "left out", options.get(name), f"It follows from {argument}.")
    hint = (
        "It finds earlier experiments by the name of the trainable, which is the same for all trainers. "
        "Write search_alg=WarmStart(past=[paths])."
    )
    past = options.get("learn_from")
    check(past is None, "learn_from", "left out", past, hint)
    space = _space(hp_space or default_hp_space, trainer)
    _check_scheduler(options.get("scheduler"), trainer.args)
    objective = Objective(
        compute_objective or _default_objective(), len(modes) if isinstance(modes, list) else None
    )
    trainable: Any = with_parameters(
        transformers_trial,
        template=TrainerTemplate.of(trainer),
        objective=objective,
        hp_name=hp_name,
        data=(trainer.train_dataset, trainer.eval_dataset),
    )
    trainable, resources = _with_resources(trainable, ranks, trainer.args.n_gpu, options)
    names = objective.names
    settings = {
        "config": space,
        "num_samples": n_trials,
        "metric": names if isinstance(modes, list) else names[0],
        "mode": modes,
        "isolation": "process",
        **_naming(hp_name),
        **resources,
        **options,
    }
    # A worker that imports this module for its trials needs no Tuner.
    from dasktune.classic.experiment import Experiment

    experiment = Experiment(settings.pop("name", None), trainable, **settings)
    return _best_run(experiment.tuner(client).fit(), names, is_single=isinstance(modes, str))


def _default_objective() -> Callable[[dict[str, float]], Any]:
    from transformers.trainer_utils import default_compute_objective

    default: Callable[[dict[str, float]], Any] = default_compute_objective
    return default


def _trainer_class() -> type[Any]:
    try:
        from transformers import Trainer
    except ImportError as error:
        check_installed("Transformers", "transformers", str(error))
        raise
    base: type[Any] = Trainer
    return base


def _check_trainer(trainer: Any) -> None:
    base = _trainer_class()
    check(isinstance(trainer, base), "trainer", "a Trainer of Transformers", trainer)
    hint = "A search makes a model for each trial: Trainer(model_init=make_model, ...)."
    check(trainer.model_init is not None, "trainer.model_init", "a function that returns a model", None, hint)
    args = trainer.args
    has_data = trainer.eval_dataset is not None
    own = type(trainer).get_eval_dataloader is not base.get_eval_dataloader
    check(has_data or own, "trainer.eval_dataset", "the data for evaluations", None)
    hint = "The trainer decides only after an evaluation whether it saves. Write 'epoch' or 'steps'."
    check(_text(args.save_strategy) != "best", "args.save_strategy", "other than 'best'", "best", hint)
    hint = "Let dasktune save: a trial that is interrupted continues from its checkpoint."
    jit = getattr(args, "enable_jit_checkpoint", False)
    check(not jit, "args.enable_jit_checkpoint", "False", jit, hint)
    hint = "Its tracker of the memory cannot be sent to workers."
    check(args.skip_memory_metrics, "args.skip_memory_metrics", "True", args.skip_memory_metrics, hint)


def _modes(direction: Any) -> str | list[str]:
    rule = "'minimize', 'maximize' or a list of several"
    if isinstance(direction, list | tuple):
        check(len(direction) > 1, "direction", rule, direction)
        return [str(_modes(one)) for one in direction]
    check(isinstance(direction, str) and direction in _MODES, "direction", rule, direction)
    return _MODES[direction]


def _space(hp_space: Any, trainer: Any) -> dict[str, Any]:
    check(callable(hp_space), "hp_space", "a function that returns the search space", hp_space)
    hint = (
        "A function that calls trial.suggest_... is a space of Optuna: "
        "give search_alg=OptunaSearch(hp_space), and hp_space=lambda trial: {}."
    )
    try:
        space = hp_space(None)
    except AttributeError as error:
        raise ConfigError(f"hp_space must be a function that returns domains, got {error}. {hint}") from error
    check(isinstance(space, Mapping), "hp_space(None)", "a dict of domains", space, hint)
    known = {field.name for field in fields(trainer.args) if field.init}
    unknown = [name for name in space if name not in known]
    hint = "For other names let model_init take the hyperparameters: def model_init(trial)."
    is_used = takes_hyperparameters(trainer.model_init)
    check(not unknown or is_used, "hp_space(None)", "a dict with names of training arguments", unknown, hint)
    return dict(space)


def _check_scheduler(scheduler: Any, args: Any) -> None:
    decides = scheduler not in (None, "fifo") and not isinstance(scheduler, FIFOScheduler)
    strategy = _text(args.eval_strategy)
    hint = "A scheduler decides by evaluations during training."
    check(not decides or strategy != "no", "args.eval_strategy", "'epoch' or 'steps'", strategy, hint)


def _text(strategy: Any) -> str:
    return str(getattr(strategy, "value", strategy))


def _with_resources(
    trainable: Any, ranks: Any, n_gpu: int, options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the trainable with its ranks, and the resources of a trial without ranks."""
    default = {"cpu": 1, "gpu": 1} if n_gpu > 0 else {"cpu": 1}
    if ranks is None:
        return trainable, {"resources_per_trial": default}
    hint = "Write ranks={'ranks': 2, 'resources_per_rank': {'gpu': 1}}."
    given = options.get("resources_per_trial")
    check(given is None, "resources_per_trial", "left out with ranks", given, hint)
    settings = dict(ranks) if isinstance(ranks, Mapping) else {"ranks": ranks}
    check("ranks" in settings, "ranks", "a dict with 'ranks'", ranks, hint)
    try:
        return with_ranks(trainable, **{"resources_per_rank": default, **settings}), {}
    except TypeError as error:
        raise ConfigError(f"ranks must be arguments of with_ranks(), got {ranks!r}. {hint}") from error


def _naming(hp_name: Callable[[dict[str, Any]], str] | None) -> dict[str, Any]:
    return {} if hp_name is None else {"trial_name_creator": lambda trial: hp_name(dict(trial.config))}


def _best_run(results: Any, names: list[str], *, is_single: bool) -> Any:
    from transformers.trainer_utils import BestRun

    from dasktune.tuner.result_grid import NoResultError

    def run(result: Any) -> Any:
        values = [result.metrics[name] for name in names]
        objective = values[0] if is_single else values
        return BestRun(result.trial_id, objective, result.config, results)

    if not is_single:
        return [run(one) for one in results.get_pareto_front()]
    best = results.get_best_result()
    if names[0] not in best.metrics:  # the only trial
        raise NoResultError(
            f"the trial {best.trial_id} has no objective: {best.error or 'it was interrupted'}"
        )
    return run(best)
