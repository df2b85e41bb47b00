"""The arguments of ``tune.run``: the configuration class of each, and hints for refused ones.

Nearly all of some forty arguments are fields of the `Tuner`'s configurations. They are derived from
these classes, so that a new field is an argument of ``tune.run`` at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError, check
from dasktune.trial.metrics import Mode

#: Arguments that are not fields of a configuration.
EXTRA_OPTIONS: Final = ("config", "resources_per_trial")

_CONFIGS: Final = (TuneConfig, RunConfig, CheckpointConfig, FailureConfig)

#: ``{argument: the configuration class with this field}``
FIELD_CONFIGS: Final = {
    one.name: kind for kind in _CONFIGS for one in fields(kind) if one.name != "failure_config"
}

#: ``{Ray Tune's older name: name of the field}``
OLD_NAMES: Final = {
    "checkpoint_freq": "checkpoint_frequency",
    "checkpoint_score_attr": "checkpoint_score_attribute",
    "global_checkpoint_period": "checkpoint_period",
    "keep_checkpoints_num": "num_to_keep",
    "local_dir": "storage_path",
    "upload_dir": "storage_path",
}

#: ``{refused argument: what to do instead}``
REFUSED_OPTIONS: Final = {
    "loggers": "Use callbacks.",
    "ray_auto_init": "Name the Dask cluster by client=, or leave it out for one on this machine.",
    "search_alg_state": "Use resume=True: an experiment keeps the state of its search.",
    "storage_filesystem": "Give storage_path a URL of fsspec, with storage_options.",
    "sync_config": "Leave it out: workers write to storage_path themselves.",
    "sync_to_cloud": "Give storage_path a URL; workers write there themselves.",
    "sync_to_driver": "Leave it out: workers write to storage_path themselves.",
    "trial_executor": "Name the Dask cluster by client=.",
    "with_server": "Use RunConfig(server_port=...) and TuneClient.",
}


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of fields, without those that are None.

    Parameters
    ----------
    options : mapping
        The user's arguments by name.

    Raises
    ------
    ConfigError
        If an argument does not exist, is not supported on Dask, or is given twice.

    Examples
    --------
    >>> given = {"keep_checkpoints_num": 2, "checkpoint_score_attr": "min-loss", "loggers": None}
    >>> normalize_options(given)
    {'num_to_keep': 2, 'checkpoint_score_attribute': 'loss', 'checkpoint_score_order': 'min'}
    """
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name in REFUSED_OPTIONS:
            check(not value, name, "left out", value, REFUSED_OPTIONS[name])
        elif name == "checkpoint_score_attr" and value is not None:
            attribute, order = _score(value)
            _set_once(given, "checkpoint_score_attribute", attribute)
            _set_once(given, "checkpoint_score_order", order)
        elif name in FIELD_CONFIGS or name in EXTRA_OPTIONS or name in OLD_NAMES:
            _set_once(given, OLD_NAMES.get(name, name), value)
        else:
            raise ConfigError(_unknown(name))
    return given


def _set_once(given: dict[str, Any], name: str, value: Any) -> None:
    # None means the default for all arguments.
    if value is None or (name == "max_concurrent_trials" and value == 0):
        return
    old = [older for older, newer in OLD_NAMES.items() if newer == name]
    if name in given:
        raise ConfigError(
            f"{name} must be given once, got it as {' or '.join(old)}, too. Remove one of them."
        )
    given[name] = value


def _score(given: object) -> tuple[str, Mode]:
    rule, hint = "the name of a metric", "'min-loss' keeps those with the lowest loss."
    check(isinstance(given, str) and given != "", "checkpoint_score_attr", rule, given, hint)
    name = str(given)
    return (name[4:], "min") if name.startswith("min-") else (name, "max")


def _unknown(name: str) -> str:
    known = [*EXTRA_OPTIONS, *FIELD_CONFIGS, *OLD_NAMES]
    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "See TuneConfig and RunConfig for all."
    return f"tune.run must get known arguments only, got {name!r}. {hint}"


def build_configs(options: Mapping[str, Any]) -> tuple[TuneConfig, RunConfig]:
    """Return the configurations with the given arguments.

    Parameters
    ----------
    options : mapping
        Arguments, as :func:`normalize_options` returns them; those of `EXTRA_OPTIONS` are ignored.

    Raises
    ------
    ConfigError
        If an argument is invalid, or both ``checkpoint_config`` and one of its fields are given.
    """
    parts: dict[type[Any], dict[str, Any]] = {kind: {} for kind in _CONFIGS}
    for name, value in options.items():
        if name not in EXTRA_OPTIONS:
            parts[FIELD_CONFIGS[name]][name] = value
    run = parts[RunConfig]
    loose, whole = parts[CheckpointConfig], run.get("checkpoint_config")
    rule = f"left out with {', '.join(loose)}"
    check(not loose or whole is None, "checkpoint_config", rule, whole, "Choose one.")
    if isinstance(whole, Mapping):
        loose = dict(whole)
    if loose:
        run["checkpoint_config"] = CheckpointConfig(**loose)
    failure = FailureConfig(**parts[FailureConfig])
    return TuneConfig(**parts[TuneConfig]), RunConfig(**run, failure_config=failure)
