"""The arguments of ``tune.run``: where each of them belongs, and what to write instead of others.

There are some forty, and nearly all are fields of the configurations that a `Tuner` takes. So they
are not listed a second time here: what a configuration learns, ``tune.run`` takes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError, check
from dasktune.trial.metrics import Mode

__all__ = ["HOMES", "OLDER", "OWN", "checked", "configs_of"]

#: What no configuration has a field for.
OWN: Final = ("config", "resources_per_trial")

_CONFIGS: Final = (TuneConfig, RunConfig, CheckpointConfig, FailureConfig)

#: ``{argument: the configuration that it is a field of}``
HOMES: Final = {
    one.name: kind for kind in _CONFIGS for one in fields(kind) if one.name != "failure_config"
}

#: Ray Tune's older names for fields.
OLDER: Final = {
    "checkpoint_freq": "checkpoint_frequency",
    "checkpoint_score_attr": "checkpoint_score_attribute",
    "global_checkpoint_period": "checkpoint_period",
    "keep_checkpoints_num": "num_to_keep",
    "local_dir": "storage_path",
    "upload_dir": "storage_path",
}

#: What is refused, and what to do.
_INSTEAD: Final = {
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


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of fields, without those that are left open.

    Parameters
    ----------
    options : mapping
        What the user gave by name.

    Raises
    ------
    ConfigError
        If there is no such argument, it makes no sense on Dask, or something is given twice.

    Examples
    --------
    >>> checked({"keep_checkpoints_num": 2, "checkpoint_score_attr": "min-loss", "loggers": None})
    {'num_to_keep': 2, 'checkpoint_score_attribute': 'loss', 'checkpoint_score_order': 'min'}
    """
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name in _INSTEAD:
            check(not value, name, "left out", value, _INSTEAD[name])
        elif name == "checkpoint_score_attr" and value is not None:
            attribute, order = _score(value)
            _give(given, "checkpoint_score_attribute", attribute)
            _give(given, "checkpoint_score_order", order)
        elif name in HOMES or name in OWN or name in OLDER:
            _give(given, OLDER.get(name, name), value)
        else:
            raise ConfigError(_unknown(name))
    return given


def _give(given: dict[str, Any], name: str, value: Any) -> None:
    # None is "the default" in all of them.
    if value is None or (name == "max_concurrent_trials" and value == 0):
        return
    old = [older for older, newer in OLDER.items() if newer == name]
    twice = f"{name} must be given once, got it as {' or '.join(old)}, too. Remove one of them."
    if name in given:
        raise ConfigError(twice)
    given[name] = value


def _score(given: object) -> tuple[str, Mode]:
    rule, hint = "the name of a metric", "'min-loss' keeps those with the lowest loss."
    check(isinstance(given, str) and given != "", "checkpoint_score_attr", rule, given, hint)
    name = str(given)
    return (name[4:], "min") if name.startswith("min-") else (name, "max")


def _unknown(name: str) -> str:
    known = [*OWN, *HOMES, *OLDER]
    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "See TuneConfig and RunConfig for all."
    return f"an argument of tune.run must be one that it knows, got {name!r}. {hint}"


def configs_of(options: Mapping[str, Any]) -> tuple[TuneConfig, RunConfig]:
    """Return the configurations that arguments stand for.

    Parameters
    ----------
    options : mapping
        What :func:`checked` gave; `OWN` is passed over.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or checkpoints are told of in two ways.
    """
    parts: dict[type[Any], dict[str, Any]] = {kind: {} for kind in _CONFIGS}
    for name, value in options.items():
        if name not in OWN:
            parts[HOMES[name]][name] = value
    run = parts[RunConfig]
    loose, whole = parts[CheckpointConfig], run.get("checkpoint_config")
    told = f"left out with {', '.join(loose)}"
    check(not loose or whole is None, "checkpoint_config", told, whole, "Choose one.")
    if isinstance(whole, Mapping):
        loose = dict(whole)
    if loose:
        run["checkpoint_config"] = CheckpointConfig(**loose)
    failure = FailureConfig(**parts[FailureConfig])
    return TuneConfig(**parts[TuneConfig]), RunConfig(**run, failure_config=failure)
