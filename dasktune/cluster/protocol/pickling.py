"""Pickles user code once on the driver, by value where the workers cannot import it.

Local modules (not installed, not the standard library) are pickled by value, so workers that join
late have them, too, and no file must be uploaded. An error names the object that cannot be pickled
and the path to it, because pickle's own errors name only the innermost object.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import cloudpickle
from distributed import Client

from dasktune.errors import ConfigError, check
from dasktune.trainable.data.shared_objects import dumps_without

#: Modules that are never registered to be pickled by value: cloudpickle always pickles `__main__`
#: by value, and the workers have the others.
_KNOWN_EVERYWHERE: Final = frozenset({"__main__", "dasktune", "dask", "distributed", "cloudpickle"})

#: Largest depth of the search for an object that cannot be pickled.
_MAX_DEPTH: Final = 12

_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})

_registry = threading.RLock()

_CLIENT_REMEDY: Final = "Get one inside the function, on the worker, with dasktune.get_client()."

_REMEDY: Final = "Create it inside the function, on the worker, instead of sending it there."


def dumps_user_code(
    objects: Mapping[str, Any], *, code: str = "auto", by_name: Mapping[str, Any] | None = None
) -> bytes:
    """Pickle objects for the trials.

    Parameters
    ----------
    objects : mapping
        The objects, by their names for the user, such as ``"trainable"``.
    code : {"auto", "installed"}, default="auto"
        Whether functions and classes of local modules are pickled by value, or are imported on the
        workers, where the modules must be installed then.
    by_name : mapping, optional
        Objects that are pickled by name only, for :func:`~.shared_objects.loads_with`.

    Returns
    -------
    bytes
        Unpickles with the standard library and cloudpickle to a dict like `objects`.

    Raises
    ------
    ConfigError
        If something cannot be pickled; the message names it.

    Examples
    --------
    >>> import pickle
    >>> pickle.loads(dumps_user_code({"trainable": len}))
    {'trainable': <built-in function len>}
    """
    check(code in ("auto", "installed"), "code", "'auto' or 'installed'", code)
    things = dict(objects)
    # A configuration is pickled for each trial, and mostly contains no code. Registering the local
    # modules would then only cost time.
    if code == "auto" and not _is_plain(things):
        with modules_by_value(local_modules()):
            blob = _try_dumps(things, by_name)
        if blob is not None:
            return blob
    # A local module with a lock cannot be pickled by value, but the workers may have it installed.
    blob = _try_dumps(things, by_name)
    if blob is not None:
        return blob
    raise ConfigError(_explain(things))


def missing_module(name: str, *, code: str = "auto") -> str:
    """Return advice about a module that the workers cannot import.

    Parameters
    ----------
    name : str
        The module's name.
    code : {"auto", "installed"}, default="auto"
        How code is pickled in this experiment.
    """
    top = name.partition(".")[0]
    sentences = [f"the workers cannot import the module {name!r}."]
    is_local = any(module.__name__ == name for module in local_modules())
    if is_local and code == "installed":
        sentences.append("code='auto' would let it travel with the trainable.")
    elif is_local:
        sentences.append(
            "It could not travel with the trainable, because it holds something that cannot be "
            "pickled, such as a lock or an open file: create that inside the function."
        )
    package = _package_of(top)
    if package:
        pip = f"client.register_plugin(distributed.PipInstall(packages=[{package!r}]))"
        sentences.append(f"Install {package} in the workers' image or environment, or with {pip}.")
    else:
        sentences.append(
            "Put it into the workers' image or environment, or send it with "
            f"client.upload_file({top + '.py'!r}), a package as a .zip file."
        )
    return " ".join(sentences)


def _package_of(module: str) -> str:
    """Return the installed package that has a top-level module; empty if pip may not find it.

    Pip would find a stranger's package with the name of a module beside the script, or of a package
    that was installed from a directory (its ``direct_url.json``).
    """
    if any(one.__name__.partition(".")[0] == module for one in local_modules()):
        return ""
    names = set(metadata.packages_distributions().get(module, ()))
    with suppress(metadata.PackageNotFoundError, ValueError):  # damaged metadata, or several packages
        (name,) = names
        if not metadata.distribution(name).read_text("direct_url.json"):
            return name
    return ""


def local_modules() -> list[ModuleType]:
    """Return the imported modules that other machines are not expected to have.

    They are Python source files outside the standard library and site-packages.
    """
    # Another thread may import something meanwhile.
    loaded: dict[str, Any] = sys.modules.copy()
    names = _local_names(tuple(loaded))
    return [loaded[name] for name in names if isinstance(loaded.get(name), ModuleType)]


# There are thousands of modules, and each launch asks several times.
@functools.lru_cache(maxsize=1)
def _local_names(loaded: tuple[str, ...]) -> list[str]:
    return sorted(
        name
        for name in loaded
        if isinstance(module := sys.modules.get(name), ModuleType)
        # Leave out an alias: cloudpickle would look the module up by its `__name__`.
        and module.__name__ == name
        and name.partition(".")[0] not in _KNOWN_EVERYWHERE
        and _is_local(getattr(module, "__file__", None))
    )


@functools.cache
def _is_local(file: object) -> bool:
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    if "site-packages" in file or "dist-packages" in file:
        return False
    return not os.path.realpath(file).startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the directories of the standard library and installed packages, links resolved."""
    return tuple(os.path.realpath(path) for path in sysconfig.get_paths().values())


@contextmanager
def modules_by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Make cloudpickle pickle modules by value; modules that the user registered stay registered.

    Parameters
    ----------
    modules : iterable of module
        Their functions and classes are pickled by value inside the ``with`` block.
    """
    # The registry belongs to the process. The lock keeps other experiments, in other threads, from
    # removing this registration before the block ends.
    with _registry:
        before = cloudpickle.list_registry_pickle_by_value()
        ours = [module for module in modules if module.__name__ not in before]
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)


def _is_plain(thing: Any) -> bool:
    """Whether a value contains only plain data, and no object of a module."""
    if type(thing) is dict:
        return all(_is_plain(key) and _is_plain(value) for key, value in thing.items())
    if type(thing) in (list, tuple):
        return all(map(_is_plain, thing))
    return type(thing) in _PLAIN


def _try_dumps(thing: Any, apart: Mapping[str, Any] | None = None) -> bytes | None:
    try:
        return dumps_without(thing, apart or {})
    except Exception:  # an object's own __reduce__ may raise anything
        return None


def _explain(things: Mapping[str, Any]) -> str:
    """Return which argument cannot be pickled, and which object in it is the cause."""
    for name, thing in things.items():
        if _try_dumps(thing) is None:
            return _explain_failure(name, thing)
    names = ", ".join(things)
    return f"{names} must be picklable together; each alone is, so look for what they share"


def _explain_failure(name: str, thing: Any) -> str:
    trail, culprit = _find_unpicklable(thing)
    remedy = _CLIENT_REMEDY if isinstance(culprit, Client) else _REMEDY
    kind = f"a {type(culprit).__module__}.{type(culprit).__qualname__}".replace("builtins.", "")
    if all(step.startswith("[") for step in trail):
        path = name + "".join(trail)
        return f"{path} must be picklable, got {_short(culprit)} ({kind}). {remedy}"
    return (
        f"{name} must be picklable, got {_short(thing)}: {_in_words(name, trail)} ({kind}) cannot "
        f"be pickled. {remedy}"
    )


def _in_words(name: str, trail: list[str]) -> str:
    """Return the path to an object in words, the innermost step first."""
    place = "it"
    for step in trail:
        if step.startswith("["):
            place = (name if place == "it" else place) + step
        else:
            place = f"its {step}" if place == "it" else f"{step} of {place}"
    return place


def _short(thing: Any, width: int = 80) -> str:
    if isinstance(thing, FunctionType | type):
        kind = "class" if isinstance(thing, type) else "function"
        return f"<{kind} {thing.__qualname__}>"
    try:
        text = repr(thing)
    except Exception:
        text = object.__repr__(thing)
    return text if len(text) <= width else text[: width - 3] + "..."


def _find_unpicklable(thing: Any) -> tuple[list[str], Any]:
    """Return the path to the innermost part that cannot be pickled, and the part."""
    trail: list[str] = []
    seen = {id(thing)}
    for _ in range(_MAX_DEPTH):
        if isinstance(thing, Client):  # its inner objects explain nothing
            break
        for step, part in _parts(thing):
            if id(part) not in seen and _try_dumps(part) is None:
                seen.add(id(part))
                trail.append(step)
                thing = part
                break
        else:
            break
    return trail, thing


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:  # noqa: C901, PLR0912 - one branch for each kind of container
    """Yield the parts of an object that pickle would pickle, each after its step in the path."""
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield f"[{key!r}]", value
    elif isinstance(thing, list | tuple | set | frozenset):
        for index, value in enumerate(thing):
            yield f"[{index}]", value
    elif isinstance(thing, FunctionType):
        yield from _function_parts(thing)
    elif isinstance(thing, MethodType):
        yield "object", thing.__self__
    elif isinstance(thing, functools.partial):
        yield "function", thing.func
        for index, value in enumerate(thing.args):
            yield f"argument {index}", value
        for name, value in thing.keywords.items():
            yield f"argument {name!r}", value
    elif isinstance(thing, type):
        for name, value in vars(thing).items():
            yield f"class attribute {name!r}", _unwrapped(value)
    else:
        for name, value in _state(thing).items():
            yield f"attribute {name!r}", value
        yield "class", type(thing)


def _function_parts(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            yield f"variable {name!r} of the enclosing function", cell.cell_contents
    for name in _globals_of(function.__code__):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield f"default of {name!r}", parameter.default
    for name, value in vars(function).items():
        yield f"attribute {name!r}", value


def _globals_of(code: CodeType) -> list[str]:
    """Return the names of the globals that a function and its inner functions use."""
    own = [step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _globals_of(part)]
    return list(dict.fromkeys(own + inner))


def _unwrapped(value: Any) -> Any:
    """Return the function behind a descriptor of a class body."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _state(thing: Any) -> dict[str, Any]:
    """Return an object's attributes, with slots or without."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {f.name: getattr(thing, f.name, None) for f in dataclasses.fields(thing)}
    return dict(getattr(thing, "__dict__", {}))
