"""The public names and their parameters are those of public_names.txt.

``python tests/unit/test_public_names.py`` writes that file again.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import pkgutil
import re
import typing
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("public_names.txt")

#: The packages whose ``__all__`` is public.
PUBLIC = [
    "dasktune",
    "dasktune.callback",
    "dasktune.control",
    "dasktune.dashboard",
    "dasktune.dashboard.figures",
    "dasktune.errors",
    *(
        module.name
        for module in pkgutil.iter_modules(
            import_module("dasktune.integration").__path__, "dasktune.integration."
        )
        # What the modules for several packages have in common.
        if module.name.rpartition(".")[2] not in ("reporting", "tracked_run")
    ),
    "dasktune.logger",
    "dasktune.schedulers",
    "dasktune.search",
    "dasktune.sklearn",
    "dasktune.stopper",
    "dasktune.testing",
    "dasktune.testing.problems",
]

#: What packages of ours take from each other.
INTERNAL = {
    "CallbackList",
    "KINDS",
    "MissedEvents",
    "TrackedRun",
    "TrialStorage",
    "check",
    "check_callbacks",
    "run_key",
    "without_passwords",
}

#: Public names of packages whose other names are private.
SINGLE = [
    ("dasktune.dashboard.model.experiment_projection", "ExperimentProjection"),
    ("dasktune.dashboard.model.load", "load_projection"),
    ("dasktune.dashboard.report", "to_html"),
    ("dasktune.dashboard.server.web", "WebServer"),
    ("dasktune.placement", "WorkerCapacity"),
]

#: Classes that users only pass on: here from `load_projection` to a figure.
OPAQUE = {"ExperimentProjection"}

#: Defaults that look the same in every version of Python.
PLAIN = (type(None), bool, int, float, str)


def default(value: Any) -> str:
    is_plain = isinstance(value, PLAIN) and not isinstance(value, enum.Enum)
    is_plain |= isinstance(value, tuple) and all(isinstance(one, PLAIN) for one in value)
    return repr(value) if is_plain else "..."


def parameters(function: Any) -> str:
    """Return a signature without types; they may become wider at any time."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(...)"
    shown = [
        one.replace(
            annotation=one.empty,
            default=one.empty if one.default is one.empty else _Shown(default(one.default)),
        )
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    return str(inspect.Signature(shown))


class _Shown:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def fields(cls: type) -> set[str]:
    """Return the fields of a dataclass that its signature shows."""
    return {name for name, one in getattr(cls, "__dataclass_fields__", {}).items() if one.init}


def constructor(cls: type) -> str:
    """Return the signature of a class, if dasktune and not Python defines it."""
    ours = (one for one in cls.__mro__ if one.__module__.partition(".")[0] == "dasktune")
    has_own = any({"__init__", "__new__"} & set(vars(one)) for one in ours)
    is_plain = has_own and not isinstance(cls, enum.EnumMeta) and not typing.is_typeddict(cls)
    return parameters(cls) if is_plain else ""


def own_members(cls: type, public: Collection[object]) -> dict[str, Any]:
    """Return the attributes that a class does not have from a public base."""
    if isinstance(cls, enum.EnumMeta):
        return dict(cls.__members__)
    if typing.is_typeddict(cls):
        return dict.fromkeys(typing.get_type_hints(cls))
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        is_ours = base.__module__.partition(".")[0] == "dasktune"
        if is_ours and (base is cls or base not in public):
            found |= vars(base)
    return found


def shown_member(name: str, value: Any) -> str:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return f".{name}{parameters(value)}" if inspect.isfunction(value) else f".{name}"


def members(cls: type, public: Collection[object]) -> Iterator[str]:
    """Yield the public methods and attributes of a class, less what its public bases show."""
    bases = [base for base in cls.__mro__[1:] if base in public]
    inherited = {
        shown_member(name, value) for base in bases for name, value in own_members(base, public).items()
    }
    found = own_members(cls, public)
    for name in sorted(set(found) - fields(cls)):
        shown = shown_member(name, found[name])
        if not name.startswith("_") and shown not in inherited:
            yield shown


def lines() -> list[str]:
    exported = {(module, name) for module in PUBLIC for name in import_module(module).__all__}
    names = sorted({one for one in exported if one[1] not in INTERNAL} | set(SINGLE))
    values = {(module, name): getattr(import_module(module), name) for module, name in names}
    classes = {value for value in values.values() if inspect.isclass(value)}
    homes: dict[int, str] = {}
    shown = []
    for (module, name), value in values.items():
        path = f"{module}.{name}"
        if not inspect.isclass(value) and not inspect.isfunction(value):
            shown.append(path)
        elif id(value) in homes:
            shown.append(f"{path} is {homes[id(value)]}")
        else:
            homes[id(value)] = path
            is_class = inspect.isclass(value)
            if name in OPAQUE:
                shown.append(path)
                continue
            shown.append(f"{path}{constructor(value) if is_class else parameters(value)}")
            shown += [f"{path}{member}" for member in members(value, classes)] if is_class else []
    return shown


@pytest.fixture(scope="module")
def now() -> list[str]:
    pytest.importorskip("sklearn")
    return lines()


def test_the_public_names_and_their_parameters_are_those_of_the_list(now: list[str]) -> None:
    """Adding is free; removing or renaming needs a deprecation first: docs/stability.md."""
    listed = LIST.read_text(encoding="utf-8").splitlines()
    changes = [
        line
        for line in difflib.unified_diff(listed, now, "listed", "now", n=0, lineterm="")
        if line.startswith(("+d", "-d"))
    ]
    lost = [line for line in changes if line.startswith("-")]
    if changes:
        pytest.fail(
            "the public names are not those of tests/unit/public_names.txt:\n"
            + "\n".join(changes)
            + (f"\n{len(lost)} lines are gone or changed. {DEPRECATE}" if lost else "")
            + "\nIf the change is meant, run: python tests/unit/test_public_names.py",
            pytrace=False,
        )


DEPRECATE = (
    "What users may call must not disappear at once: keep the old name or parameter for one minor "
    "version with a DeprecationWarning that names the new one (docs/stability.md)."
)


def test_a_signature_shows_names_kinds_and_plain_defaults() -> None:
    def example(a: int, b: float = 0.5, *c: str, d: object = PLAIN, e: object = LIST, f: Any = ()) -> None:
        del a, b, c, d, e, f

    assert parameters(example) == "(a, b=0.5, *c, d=..., e=..., f=())"


def test_the_list_has_methods_fields_and_constants(now: list[str]) -> None:
    names = {re.split(r"[( ]", line)[0] for line in now}
    assert names >= {
        "dasktune.Tuner",
        "dasktune.Tuner.fit",
        "dasktune.ResultGrid.num_errors",
        "dasktune.schedulers.CheckpointKind.MEMORY",
        "dasktune.control.TrialSnapshot.trial_id",
        "dasktune.search.FINISHED",
        "dasktune.integration.wandb.setup_wandb",
        "dasktune.sklearn.TuneSearchCV",
    }
    # What a public base shows is not repeated.
    assert "dasktune.schedulers.TrialScheduler.state_dict" in names
    assert "dasktune.schedulers.ASHAScheduler.state_dict" not in names
    assert len(now) > 600


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_stands_in_the_api_documentation(package: str) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   (?:\w+\.)*(\w+)$", page, re.MULTILINE))
    # What autosummary cannot show, such as a union, is named in a sentence.
    named = set(re.findall(r"`(\w+)`", page))
    names = set(import_module(package).__all__) - {"__version__"} - INTERNAL
    assert sorted(names - listed - named) == []


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
    print(f"wrote {LIST.relative_to(ROOT)}: git diff shows what changed")
