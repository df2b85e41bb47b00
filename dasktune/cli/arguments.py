"""Command-line arguments that several subcommands share, and their values."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dasktune.config import DEFAULT_STORAGE_PATH
from dasktune.config.validation import normalised_name
from dasktune.errors import ConfigError, check
from dasktune.storage.experiment.experiment_store import SPEC_FILE
from dasktune.storage.fs.storage import Storage

__all__ = [
    "add_address",
    "add_experiment",
    "add_format",
    "add_storage_options",
    "pairs",
    "storage_of",
    "storage_options",
    "value_of",
]


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Add the argument for an experiment."""
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="its directory, its URL such as s3://bucket/exp, or its name as 'dasktune ls' lists it",
    )


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Add the argument for options of fsspec."""
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=(
            "an option of fsspec for a URL, such as anon=true; may be repeated (default: none). "
            "Put secrets into fsspec's configuration: other users can see command lines"
        ),
    )


def add_address(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add the argument for a cluster.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        The parser of the subcommand.
    default : str
        The cluster that is used without the argument, as text for the help.
    """
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help=(
            "the cluster: the address of its Dask scheduler, such as tcp://host:8786, or a "
            f"scheduler file (default: {default})"
        ),
    )


def add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Add the argument for the output format."""
    parser.add_argument(
        "--format", choices=formats, default=formats[0], help="the output format (default: %(default)s)"
    )


def storage_of(arguments: argparse.Namespace) -> Storage:
    """Return the experiment's directory, given as a path, a URL or a name from ``dasktune ls``."""
    given = Path(arguments.experiment)
    listed = Path(DEFAULT_STORAGE_PATH).expanduser() / normalised_name(arguments.experiment)
    is_name = not given.is_absolute() and "://" not in arguments.experiment and not given.exists()
    if is_name and (listed / SPEC_FILE).is_file():
        return Storage(str(listed))
    return Storage(arguments.experiment, storage_options(arguments))


def storage_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of fsspec."""
    return pairs("--storage-option", arguments.storage_option)


def pairs(flag: str, given: Iterable[str]) -> dict[str, Any]:
    """Return ``KEY=VALUE`` arguments as a dict; a value that is not JSON is a text.

    Parameters
    ----------
    flag : str
        The flag, for messages.
    given : iterable of str
        The arguments, one pair each.

    Raises
    ------
    ConfigError
        If an argument is not a pair, or a key is given twice.

    Examples
    --------
    >>> pairs("--stop", ["training_iteration=10", "mode=fast", "on=true"])
    {'training_iteration': 10, 'mode': 'fast', 'on': True}
    """
    found: dict[str, Any] = {}
    for one in given:
        key, equals, text = one.partition("=")
        check(bool(key and equals), flag, "KEY=VALUE", one)
        check(key not in found, flag, "given once for each key", one)
        found[key] = value_of(text)
    return found


def value_of(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is not JSON.

    Examples
    --------
    >>> value_of("1e-3"), value_of("adam"), value_of("[1, 2]")
    (0.001, 'adam', [1, 2])
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"a value must be nested less deeply, got {text[:40]!r}") from None
    except ValueError:
        return text
