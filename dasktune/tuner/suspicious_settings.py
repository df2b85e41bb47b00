"""Settings that are valid, but probably not meant: warn about them, or correct them and warn."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dasktune.config import RunConfig, TuneConfig
from dasktune.space.tree import Variable
from dasktune.trial.metrics import flatten

logger = logging.getLogger(__name__)

#: Longer lists are not shown in a message.
_SHOWN = 60


def with_score_order(run_config: RunConfig, tune_config: TuneConfig) -> RunConfig:
    """Return a configuration that keeps the checkpoints with the best values of the metric.

    The default of ``checkpoint_score_order`` is ``"max"``. If ``checkpoint_score_attribute`` is the
    metric to minimise, the order becomes ``"min"``, with a warning.

    Parameters
    ----------
    run_config : RunConfig
        The configuration that says which checkpoints are kept.
    tune_config : TuneConfig
        The configuration with the metric and its mode.
    """
    (metric, mode), kept = tune_config.single_goal, run_config.checkpoint_config
    attribute, order = kept.checkpoint_score_attribute, kept.checkpoint_score_order
    if attribute is None or attribute != metric or mode is None or mode == order:
        return run_config
    logger.warning(
        "checkpoint_score_order is %r, but mode=%r for the same metric %r: the checkpoints with the best "
        "values are kept. Write CheckpointConfig(checkpoint_score_order=%r)",
        order,
        mode,
        metric,
        mode,
    )
    return replace(run_config, checkpoint_config=replace(kept, checkpoint_score_order=mode))


def warn_of_constants(param_space: Mapping[str, Any], tune_config: TuneConfig) -> None:
    """Warn about values of a search space that look like domains, but are constants.

    A list is often a constant on purpose, such as the sizes of hidden layers. It is named only if
    all trials would be equal.

    Parameters
    ----------
    param_space : mapping
        The search space.
    tune_config : TuneConfig
        The configuration with the number of trials.
    """
    varies, lists = False, ""
    for name, value in flatten(param_space).items():
        varies = varies or isinstance(value, Variable) or name.endswith("grid_search") or _may_vary(value)
        if callable(getattr(value, "rvs", None)):
            remedy = "Use tune.sample_from(lambda config: distribution.rvs()) or a domain of dasktune"
            logger.warning("param_space[%r] is a scipy distribution, which is a constant. %s", name, remedy)
        elif getattr(value, "__name__", "") == "<lambda>":
            remedy = "Write tune.sample_from(...) if it is to be called"
            logger.warning("param_space[%r] is a function, which is a constant. %s", name, remedy)
        elif not lists and _looks_like_choices(value):
            shown = repr(value) if len(repr(value)) < _SHOWN else "[...]"
            lists = f". A list is a constant, too: write {{{name!r}: tune.choice({shown})}} to try its values"
    default = tune_config.search_alg is None and tune_config.scheduler is None
    if param_space and not varies and default and tune_config.num_samples > 1:
        logger.warning(
            "param_space has constants only (%s), so all %d trials are equal. Write domains such as "
            "tune.uniform(0, 1), tune.choice([...]) or tune.grid_search([...])%s",
            ", ".join(flatten(param_space)),
            tune_config.num_samples,
            lists,
        )


def _looks_like_choices(value: object) -> bool:
    return isinstance(value, list | tuple | range) and len(value) > 1


def _may_vary(value: object) -> bool:
    # A list may contain domains.
    inside = value if isinstance(value, list | tuple) else ()
    return any(isinstance(item, Variable | Mapping) for item in inside)
