"""Reads the secrets of configurations from the environment of the driver."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from dasktune.errors import ConfigError
from dasktune.space.secret import credential_names, reveal, secrets_in

logger = logging.getLogger(__name__)


def check_secrets(param_space: Mapping[str, Any]) -> None:
    """Check that the driver has all secrets, and warn of credentials that will be stored.

    Parameters
    ----------
    param_space : mapping
        The search space.

    Raises
    ------
    ConfigError
        If a variable is missing.
    """
    for one in secrets_in(param_space):
        _value_of(one.name)
    if names := sorted(set(credential_names(param_space))):
        logger.warning(
            "param_space has values that are called like credentials: %s. They are stored in plain text "
            "in the experiment's directory. Use tune.secret() to store only the name of a variable.",
            ", ".join(names),
        )


def with_secrets(config: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's configuration with the values of its secrets, for the trial alone.

    Parameters
    ----------
    config : dict
        The configuration.

    Raises
    ------
    ConfigError
        If a variable is missing.
    """
    revealed: dict[str, Any] = reveal(config, _value_of)
    return revealed


def names_by_value(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the value and the name of each secret in a configuration.

    Parameters
    ----------
    config : mapping
        The configuration.
    """
    return tuple((_value_of(one.name), one.name) for one in secrets_in(config))


def _value_of(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigError(
            f"secret({name!r}) must be a variable in the environment of the driver, which is on this "
            "machine. Set it before the experiment starts or resumes."
        ) from None
