"""Shipping user code: pickled once on the driver, by value where the workers cannot import it.

Local modules (not installed, not the standard library) travel by value, so a worker that joins
late gets them as well and no file has to be uploaded. What cannot be pickled is looked for and
named, because pickle's own errors name the innermost object only.
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
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import cloudpickle
from distributed import Client

from dasktune.errors import ConfigError, check
from dasktune.trainable.shared_objects import dumps_without

__all__ = ["by_value", "local_modules", "missing_module", "pack"]

#: Not to be registered: cloudpickle sends `__main__` along anyway, workers have the others.
_EVERYWHERE: Final = frozenset({"__main__", "dasktune", "dask", "distributed", "cloudpickle"})

#: How many steps into an object are looked for what cannot be pickled.
_MAX_DEPTH: Final = 12

_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})

_registry = threading.RLock()

_CLIENT_REMEDY: Final = "Ask for one inside the function, on the worker, by dasktune.get_client()."

_REMEDY: Final = "Create it inside the function, on the worker, instead of carrying it there."


def pack(
    objects: Mapping[str, Any], *, code: str = "auto", apart: Mapping[str, Any] | None = None
) -> bytes:
    """Pickle what the trials need.

    Parameters
    ----------
    objects : mapping
        What to pickle, by the name that the user knows it by, such as ``"trainable"``.
    code : {"auto", "installed"}, default="auto"
        Whether functions and classes of local modules travel by value, or are imported on the
        workers, where the module must be installed then.
    apart : mapping, optional
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
    >>> pickle.loads(pack({"trainable": len}))
    {'trainable': <built-in function len>}
    """
    check(code in ("auto", "installed"), "code", "'auto' or 'installed'", code)
    things = dict(objects)
    # One configuration is packed for each trial, and mostly it has no code in it.
    if code == "auto" and not _is_plain(things):
        with by_value(local_modules()):
            blob = _dumped(things, apart)
        if blob is not None:
            return blob
    # A local module may hold what cannot travel, such as a lock, and yet be there on the workers.
    blob = _dumped(things, apart)
    if blob is not None:
        return blob
    raise ConfigError(_explain(things))


def missing_module(name: str, *, code: str = "auto") -> str:
    """Say what to do about a module that the workers cannot import.

    Parameters
    ----------
    name : str
        The module's name.
    code : {"auto", "installed"}, default="auto"
        How code is shipped in this experiment.
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
    sentences.append(
        "Otherwise put it into the workers' image or environment, install it with "
        f"client.register_plugin(distributed.PipInstall(packages=[{top!r}])), or send a single "
        f"file with client.upload_file({top + '.py'!r})."
    )
    return " ".join(sentences)


def local_modules() -> list[ModuleType]:
    """Return the imported modules that only this machine can be expected to have.

    That is Python source outside the standard library and site-packages.
    """
    loaded: dict[str, Any] = sys.modules.copy()
    # There are thousands, few of them local, and every launch asks several times.
    local: dict[str, ModuleType] = {
        name: module
        for name, module in loaded.items()
        if isinstance(module, ModuleType)
        # An alias would be looked up by its own name, and not be found.
        and module.__name__ == name
        and _is_local(getattr(module, "__file__", None))
    }
    return [
        module
        for name, module in sorted(local.items())
        if name.partition(".")[0] not in _EVERYWHERE
    ]


@functools.cache
def _is_local(file: object) -> bool:
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    if "site-packages" in file or "dist-packages" in file:
        return False
    return not os.path.realpath(file).startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return where the standard library and installed packages are, links followed."""
    return tuple(os.path.realpath(path) for path in sysconfig.get_paths().values())


@contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Have cloudpickle send modules along for a while; what the user registered stays registered.

    Parameters
    ----------
    modules : iterable of module
        Their functions and classes are pickled by value inside the ``with`` block.
    """
    # The registry is the process's: another experiment must not end our registration half-way.
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
    """Whether a value is data through and through, so that no module matters."""
    if type(thing) is dict:
        return all(_is_plain(key) and _is_plain(value) for key, value in thing.items())
    if type(thing) in (list, tuple):
        return all(map(_is_plain, thing))
    return type(thing) in _PLAIN


def _dumped(thing: Any, apart: Mapping[str, Any] | None = None) -> bytes | None:
    try:
        return dumps_without(thing, apart or {})
    except Exception:  # an object's own __reduce__ may raise anything
        return None


def _explain(things: Mapping[str, Any]) -> str:
    """Name the argument that cannot be pickled, and what in it is to blame."""
    for name, thing in things.items():
        if _dumped(thing) is None:
            return _blame(name, thing)
    names = ", ".join(things)
    return f"{names} must be picklable together; each alone is, so look for what they share"


def _blame(name: str, thing: Any) -> str:
    trail, culprit = _culprit(thing)
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
    """Say where something is: the innermost first, as English has it."""
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


def _culprit(thing: Any) -> tuple[list[str], Any]:
    """Descend into what cannot be pickled for as long as one of its parts is the reason."""
    trail: list[str] = []
    seen = {id(thing)}
    for _ in range(_MAX_DEPTH):
        if isinstance(thing, Client):  # what is inside of it says nothing to anybody
            break
        for step, part in _parts(thing):
            if id(part) not in seen and _dumped(part) is None:
                seen.add(id(part))
                trail.append(step)
                thing = part
                break
        else:
            break
    return trail, thing


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickling `thing` would have to pickle, each with the way there."""
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
    """Return the names of the globals that a function uses, those of its inner ones included."""
    own = [step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
    inner = [
        name for part in code.co_consts if isinstance(part, CodeType) for name in _globals_of(part)
    ]
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
