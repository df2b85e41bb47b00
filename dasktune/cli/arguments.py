"""Arguments that several subcommands take, and what they mean."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dasktune.config import DEFAULT_STORAGE_PATH
from dasktune.errors import ConfigError, check
from dasktune.storage.experiment_store import SPEC_FILE
from dasktune.storage.location import Storage

__all__ = [
    "add_address",
    "add_experiment",
    "add_format",
    "add_storage_options",
    "pairs",
    "storage_options",
    "storage_of",
    "value_of",
]


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Let a subcommand be told of an experiment."""
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="its directory, a URL such as s3://bucket/exp, or its name as ls lists it",
    )
    add_storage_options(parser)


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Let a subcommand be told what fsspec needs."""
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what fsspec needs for the URL; secrets are better left to its configuration",
    )


def add_address(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Let a subcommand be told of a cluster."""
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help=f"a Dask scheduler, as tcp://host:8786, or its scheduler file; {otherwise}",
    )


def add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Let a subcommand be told in which form to answer."""
    parser.add_argument("--format", choices=formats, default=formats[0], help="form of the output")


def storage_of(arguments: argparse.Namespace) -> Storage:
    """Return the experiment that was named: its place, or its name as ``dasktune ls`` lists it."""
    given = Path(arguments.experiment)
    listed = Path(DEFAULT_STORAGE_PATH).expanduser() / given
    is_name = not given.is_absolute() and "://" not in arguments.experiment and not given.exists()
    if is_name and (listed / SPEC_FILE).is_file():
        return Storage(str(listed))
    return Storage(arguments.experiment, storage_options(arguments))


def storage_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what fsspec needs."""
    return pairs("--storage-option", arguments.storage_option)


def pairs(flag: str, given: Iterable[str]) -> dict[str, Any]:
    """Return what was given as ``KEY=VALUE``, values being JSON where they are, else texts.

    Parameters
    ----------
    flag : str
        What it was given to.
    given : iterable of str
        One pair each.

    Raises
    ------
    ConfigError
        If one is no pair, or a key comes twice.

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
    """Return what a text means as JSON, and the text itself if it means nothing.

    Examples
    --------
    >>> value_of("1e-3"), value_of("adam"), value_of("[1, 2]")
    (0.001, 'adam', [1, 2])
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"a value must be flat enough to be read, got {text[:40]!r}") from None
    except ValueError:
        return text
