"""Load the objects that a command line names: trainables and search spaces."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dasktune.errors import ConfigError, TuneError
from dasktune.space import primitives
from dasktune.space.json_form import from_json
from dasktune.trainable.api.script_import import importing_script

#: The domains by name; `sample_from` needs a function, which JSON lacks.
_DOMAINS: Final[Mapping[str, Callable[..., Any]]] = {
    name: getattr(primitives, name) for name in primitives.__all__ if name != "sample_from"
}


def load_object(named: str, flag: str) -> Any:
    """Import and return the object ``script.py:name`` or ``package.module:name``.

    The directory of the script, or the working directory, becomes the first entry of ``sys.path``,
    as with ``python script.py``.

    Parameters
    ----------
    named : str
        The script or module, a colon, and a name, which may be dotted.
    flag : str
        The argument, for messages.

    Raises
    ------
    ConfigError
        If there is no such object, or its module cannot be imported.

    Examples
    --------
    >>> load_object("math:pi", "TRAINABLE")
    3.141592653589793
    """
    # A drive letter or a directory name may contain a colon.
    where, colon, name = named.rpartition(":")
    if not (where and colon and name):
        rule = "script.py:name or package.module:name"
        raise ConfigError(f"{flag} must be {rule}, got {named!r}")
    found: Any = _module(where, flag)
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(found).items() if _is_own(found, key, value)]
            listed = f" (it has {', '.join(sorted(known)[:20])})" if known else ""
            raise ConfigError(f"{flag} must name what {where} defines{listed}, got {name!r}")
        found = getattr(found, part)
    return found


def load_space(text: str | None) -> dict[str, Any]:
    """Return a search space that is given as JSON, as a file, or as the name of an object.

    Parameters
    ----------
    text : str or None
        JSON; the path of a ``.json``, ``.yaml`` or ``.yml`` file; ``script_or_module:name``.

    Raises
    ------
    ConfigError
        If `text` is none of these.

    Examples
    --------
    >>> load_space('{"lr": ["loguniform", 1e-4, 0.1], "layers": 2}')
    {'lr': Float(lower=0.0001, upper=0.1, sampler=LogUniform()), 'layers': 2}
    """
    if text is None:
        return {}
    if text.lstrip().startswith("{"):
        return space_of(_parsed(json.loads, text, "--space"))
    suffix = Path(text).suffix.lower()
    if suffix == ".json":
        return space_of(_parsed(json.loads, _content(text), text))
    if suffix in (".yaml", ".yml"):
        return space_of(_parsed(_yaml(), _content(text), text))
    if ":" not in text:
        rule = "a JSON object, a .json or .yaml file, or script_or_module:name"
        raise ConfigError(f"--space must be {rule}, got {text!r}")
    space = load_object(text, "--space")
    space = space() if callable(space) else space
    if not isinstance(space, Mapping):
        raise ConfigError(f"--space must name a mapping, or a function that returns one: {text!r}")
    return dict(space)


def space_of(data: Any) -> dict[str, Any]:
    """Return the search space that JSON or YAML describes.

    A list that begins with the name of a domain is that domain: ``["uniform", 0, 1]``, ``["choice",
    ["a", "b"]]``. Any other value is a constant, in the encoding of the journal.

    Parameters
    ----------
    data : object
        The parsed JSON or YAML.

    Raises
    ------
    ConfigError
        If `data` is not a mapping, or an argument of a domain breaks its rule.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"--space must be an object of names and values, got {data!r}")
    try:
        space: dict[str, Any] = from_json(data)
        return {name: _domains(value, str(name)) for name, value in space.items()}
    except RecursionError:
        raise ConfigError("--space must be nested less deeply") from None


def _domains(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return {key: _domains(item, f"{path}/{key}") for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if not value or not isinstance(value[0], str) or value[0] not in _DOMAINS:
        return [_domains(item, f"{path}/{at}") for at, item in enumerate(value)]
    kind, *arguments = value
    if kind in ("choice", "grid_search"):
        arguments = [
            [_domains(item, f"{path}/{at}") for at, item in enumerate(one)] if isinstance(one, list) else one
            for one in arguments
        ]
    try:
        return _DOMAINS[kind](*arguments)
    except (TypeError, TuneError) as error:
        raise ConfigError(f"--space: {path} is not a valid {kind}: {error}") from error


def _module(where: str, flag: str) -> ModuleType:
    is_script = where.endswith(".py")
    place = os.path.dirname(os.path.abspath(where)) if is_script else os.getcwd()
    if place not in sys.path:
        sys.path.insert(0, place)
    if is_script and not os.path.isfile(where):
        raise ConfigError(f"{flag} must name an existing script, got {where!r}")
    try:
        return _script(where) if is_script else importlib.import_module(where)
    except Exception as error:  # the user's code may raise any exception
        raise ConfigError(
            f"{flag} must be importable, got {type(error).__name__}: {error} from {where}"
        ) from error


def _script(where: str) -> ModuleType:
    """Import a script as a module with the script's name, so that its functions can be pickled."""
    name = Path(where).stem
    if name in sys.modules:
        module = sys.modules[name]
        if os.path.realpath(getattr(module, "__file__", None) or "") == os.path.realpath(where):
            return module
        raise ImportError(f"another module has the name {name}: rename the script")
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise ImportError(f"{where} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with importing_script(where):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_own(module: Any, name: str, value: Any) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def _content(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--space must be a readable file, got {path!r}: {error}") from error


def _parsed(parse: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return parse(text)
    except Exception as error:  # each parser has its own exceptions
        raise ConfigError(f"--space must be well-formed, got {what!r}: {error}") from error


def _yaml() -> Callable[[str], Any]:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            "a space in YAML needs PyYAML, which is not installed. "
            "Run: pip install pyyaml, or write the space as JSON."
        ) from error
    loaded: Callable[[str], Any] = yaml.safe_load
    return loaded
