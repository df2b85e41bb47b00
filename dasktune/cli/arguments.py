"""Command-line arguments that several subcommands share, and their values."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from dasktune.config import DEFAULT_STORAGE_PATH
from dasktune.config.validation import normalised_name
from dasktune.errors import ConfigError, StorageError, TuneError, check
from dasktune.storage.experiment.experiment_store import SPEC_FILE
from dasktune.storage.experiment.experiments_below import experiments_below
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage

#: The address of a page that a browser shows.
_PAGE: Final = re.compile(r"https?://", re.IGNORECASE)


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


def add_goal(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the metric by which to compare trials, and its mode."""
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="the metric to compare (default: the one that the experiment optimises)",
    )
    parser.add_argument(
        "--mode",
        choices=("min", "max"),
        help="whether the lowest or the highest value is best (default: the experiment's mode)",
    )


def storage_of(arguments: argparse.Namespace) -> Storage:
    """Return the experiment's directory, given as a path, a URL or a name from ``dasktune ls``.

    Raises
    ------
    ConfigError
        If an HTTP URL is that of a page, such as a dashboard.
    StorageError
        If a relative path is neither a directory here nor a name in the results directory. The
        message offers the names there that are most like it.
    """
    text = arguments.experiment
    if _PAGE.match(text) is not None:
        return _published(text, storage_options(arguments))
    named = named_directory(text)
    return Storage(text, storage_options(arguments)) if named is None else Storage(named)


def named_directory(text: str) -> str | None:
    """Return the directory of an experiment that is given by its name in the results directory.

    Parameters
    ----------
    text : str
        What the user has given.

    Returns
    -------
    str or None
        None if it is a path that exists, an absolute path or a URL.

    Raises
    ------
    StorageError
        If no experiment has the name. The message offers the names that are most like it.
    """
    given, results = Path(text), Path(DEFAULT_STORAGE_PATH).expanduser()
    if given.is_absolute() or "://" in text or given.exists():
        return None
    listed = results / normalised_name(text)
    if (listed / SPEC_FILE).is_file():
        return str(listed)
    raise StorageError(
        f"no experiment is stored at {Storage(text)}, and none in {DEFAULT_STORAGE_PATH} is called {text!r}. "
        f"{_nearest(normalised_name(text), results)}"
    )


def _published(url: str, options: dict[str, Any]) -> Storage:
    """Return the directory at an HTTP URL, if an experiment is there and not a page for people."""
    with suppress(TuneError):
        place = Storage(url, options)
        with reading(SPEC_FILE, place):
            if place.exists(SPEC_FILE):
                return place
    raise ConfigError(
        f"EXPERIMENT must be a directory, a URL of a store such as s3://bucket/exp, or a name, got {url!r}, "
        "where no experiment is stored. If it is the address of a dashboard, give the directory that its "
        "pages show, or a name from `dasktune ls`."
    )


def _nearest(name: str, results: Path) -> str:
    """Return a sentence with the experiments whose names are most like `name`."""
    with suppress(StorageError):
        place = Storage(str(results))
        names = [one.url.removeprefix(place.url).strip("/") for one in experiments_below(place, 2)]
        # The last part of a name in a subdirectory may be all that somebody remembers.
        by_part = {one.rpartition("/")[2].lower(): one for one in names} | {one.lower(): one for one in names}
        close = get_close_matches(name.lower(), by_part, n=3, cutoff=0.5)
        offered = list(dict.fromkeys(by_part[one] for one in close))
        if offered:
            return f"Did you mean {' or '.join(map(repr, offered))}?"
        if names:
            return "`dasktune ls` lists those that there are."
    return "No experiment is there: give the directory, which was printed after 'Results:'."


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
