"""Credentials in configurations: a name everywhere, the value in the trial alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.space.domain import Categorical

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
#: Names of parameters whose values are mostly credentials.
_CREDENTIAL: Final = re.compile(
    r"token|(?:.*[_.-])?(?:password|passwd|passphrase|secret|credentials?|"
    r"(?:secret|api|access|private)[_.-]?key|(?:auth|access|api|bearer|refresh|hf)[_.-]?token)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """The name of an environment variable of the driver, in place of its value.

    It has no value itself, so no journal, file, page or pickle of a configuration contains the
    value. Use :func:`secret` to make one.

    Parameters
    ----------
    name : str
        The name of the environment variable.
    """

    name: str

    def __repr__(self) -> str:
        return f"secret({self.name!r})"


def secret(name: str) -> Any:
    """Let trials read an environment variable of the driver, and store only its name.

    The trial's configuration has the variable's value, a str. The experiment's files, the
    dashboard, callbacks and `Result.config` have ``secret(name)``. A restored experiment reads the
    variable again.

    Parameters
    ----------
    name : str
        The name of the variable. The driver must have it when the experiment starts or resumes. A
        submitted driver reads the environment of the worker that it runs on.

    Raises
    ------
    ConfigError
        If it is no valid name of a variable.

    Examples
    --------
    >>> {"url": "https://data.example", "api_key": secret("DATA_API_KEY")}
    {'url': 'https://data.example', 'api_key': secret('DATA_API_KEY')}
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        # Without the argument, because it may be the credential itself.
        raise ConfigError(
            "name must be the name of an environment variable, got something else. Set the variable "
            "in the environment of the driver, and give only its name."
        )
    return Secret(name)


def reveal(config: Any, value_of: Callable[[str], str]) -> Any:
    """Return a configuration with the values in place of the secrets; others are not copied.

    Parameters
    ----------
    config : object
        A configuration, or a part of one.
    value_of : callable
        Returns the value of a variable.

    Examples
    --------
    >>> reveal({"lr": 0.1, "db": {"password": secret("DB")}}, {"DB": "hunter2"}.__getitem__)
    {'lr': 0.1, 'db': {'password': 'hunter2'}}
    """
    if isinstance(config, Secret):
        return value_of(config.name)
    if not any(True for _ in secrets_in(config)):
        return config
    if isinstance(config, Mapping):
        return {key: reveal(value, value_of) for key, value in config.items()}
    return type(config)(reveal(value, value_of) for value in config)


def conceal(config: Any, names: Mapping[str, str]) -> Any:
    """Return a configuration with ``secret('NAME')`` as text in place of the values of secrets.

    Parameters
    ----------
    config : object
        A trial's configuration, or any part or copy of it.
    names : mapping of str to str
        The name of the variable by its value.

    Examples
    --------
    >>> conceal({"lr": 0.1, "db": {"password": "hunter2"}}, {"hunter2": "DB"})
    {'lr': 0.1, 'db': {'password': "secret('DB')"}}
    """
    if isinstance(config, str):
        return repr(Secret(names[config])) if config in names else config
    if isinstance(config, Mapping):
        return {key: conceal(value, names) for key, value in config.items()}
    if type(config) in (list, tuple):
        return type(config)(conceal(value, names) for value in config)
    return config


def secrets_in(space: Any) -> Iterator[Secret]:
    """Yield the secrets in a search space or a configuration, in dicts, lists, tuples and choices.

    Parameters
    ----------
    space : object
        The space, or a part of one.
    """
    if isinstance(space, Secret):
        yield space
    elif isinstance(space, Mapping):
        for value in space.values():
            yield from secrets_in(value)
    elif type(space) in (list, tuple):
        for value in space:
            yield from secrets_in(value)
    elif isinstance(space, Categorical):
        yield from secrets_in(list(space.categories))


def credential_names(space: Any) -> Iterator[str]:
    """Yield the names of parameters that are texts and are called like credentials.

    Parameters
    ----------
    space : object
        A search space, or a part of one.

    Examples
    --------
    >>> list(credential_names({"api_key": "AKIA", "max_tokens": "9", "db": {"password": "x"}}))
    ['api_key', 'password']
    """
    if isinstance(space, Mapping):
        for name, value in space.items():
            if isinstance(name, str) and isinstance(value, str) and value and _CREDENTIAL.fullmatch(name):
                yield name
            yield from credential_names(value)
    elif type(space) in (list, tuple):
        for value in space:
            yield from credential_names(value)
