"""What the Python of a page says about dasktune, read and not run."""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.relative_to(ROOT).parts[1] not in ("_build", "generated")
    ),
)


def blocks(page: str) -> list[str]:
    """Return the Python of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Instance:
    """An object of a class of dasktune."""

    kind: type


class Reader:
    """Follows the names of a page through its blocks, as far as they are dasktune's."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.wrong: list[str] = []
        self.calls = 0

    def read(self, block: str) -> None:
        """Read a block after those before it."""
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in ast.parse(block).body:
            self._visit(node)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call | ast.Attribute):
            self.value(node)
            if isinstance(node, ast.Call):
                for part in (*node.args, *node.keywords):
                    self._visit(part)
            return
        for child in ast.iter_child_nodes(node):
            self._visit(child)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.known[node.targets[0].id] = self.value(node.value, quiet=True)
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            self.known[node.optional_vars.id] = self.value(node.context_expr, quiet=True)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for one in node.names:
            if isinstance(node, ast.Import):
                if one.name.split(".")[0] == "dasktune":
                    self.known[one.asname or "dasktune"] = import_module(one.name)
            elif (node.module or "").split(".")[0] == "dasktune":
                found = attribute(import_module(str(node.module)), one.name)
                if found is None:
                    self.wrong.append(f"there is no {node.module}.{one.name}")
                self.known[one.asname or one.name] = found

    def value(self, node: ast.AST, *, quiet: bool = False) -> Any:
        """Return what an expression is, None if it is not dasktune's."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            of = self.value(node.value, quiet=quiet)
            found = attribute(of, node.attr)
            if of is not None and found is None and not quiet:
                self.wrong.append(f"there is no {ast.unparse(node)}")
            return None if isinstance(found, _Unknown) else found
        if isinstance(node, ast.Call):
            called = self.value(node.func, quiet=quiet)
            if not callable(called):
                return None
            if not quiet:
                self._check(node, called)
            return result_of(called)
        return None

    def _check(self, node: ast.Call, called: Any) -> None:
        self.calls += 1
        starred = any(isinstance(one, ast.Starred) for one in node.args)
        names = [one.arg for one in node.keywords if one.arg is not None]
        try:
            given = () if starred else node.args
            inspect.signature(called).bind_partial(*given, **dict.fromkeys(names))
        except TypeError as error:
            self.wrong.append(f"{ast.unparse(node)}: {error}")
        except ValueError:  # no signature
            pass


class _Unknown:
    """What is there, and of an unknown type."""


def attribute(of: Any, name: str) -> Any:
    """Return an attribute, `_Unknown` if only its name is known, None if there is none."""
    if of is None:
        return None
    if not isinstance(of, Instance):
        try:
            return getattr(of, name)
        except AttributeError:
            try:
                return import_module(f"{of.__name__}.{name}")
            except (ImportError, AttributeError):
                return None
    hint = hints(of.kind).get(name)
    member = inspect.getattr_static(of.kind, name, None)
    if member is None:
        # Attributes that a constructor or ``fit()`` sets are not those of the class.
        told = rf"""self\.{name}\b|["']{name}["']"""
        plain = any(re.search(told, source) for source in sources(of.kind))
        return instance_of(hint) if hint is not None else (_Unknown() if plain else None)
    if isinstance(member, property):
        return instance_of(hints(member.fget).get("return"))
    if inspect.isfunction(member):
        return types.MethodType(member, of)
    return _Unknown() if not isinstance(member, classmethod) else getattr(of.kind, name)


def sources(kind: type) -> Iterator[str]:
    """Yield the text of what a class is made of, as far as it is ours."""
    for one in kind.__mro__:
        if one.__module__.startswith("dasktune"):
            yield inspect.getsource(one)


def result_of(called: Any) -> Any:
    """Return what a call gives."""
    if inspect.isclass(called):
        return Instance(called) if called.__module__.startswith("dasktune") else None
    found = instance_of(hints(called).get("return"))
    return None if isinstance(found, _Unknown) else found


def instance_of(hint: Any) -> Any:
    for one in (hint, *typing.get_args(hint)):
        if inspect.isclass(one) and one.__module__.startswith("dasktune"):
            return Instance(one) if one is hint or type(None) in typing.get_args(hint) else _Unknown()
    return _Unknown()


def hints(of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of)
    except (NameError, TypeError):  # names that only type checkers import
        return {}


#: Groups of entry points, which look like modules.
GROUPS = ("dasktune.searchers", "dasktune.schedulers")

#: Where the names of prose are looked for.
HOMES = ("", ".schedulers", ".search", ".stopper", ".logger", ".sklearn", ".testing", ".callback")


def told(page: str) -> Iterator[tuple[str, bool]]:
    """Yield what prose says in code of ours, ``tune.x`` and ``Name(argument=``, and if it holds."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    for code in re.findall(r"`([^`\n]+)`", text):
        dotted = re.match(r"(?:tune|dasktune)((?:\.\w+)+)", code)
        if dotted is not None and code not in GROUPS:
            found: Any = import_module("dasktune")
            for name in dotted[1].split(".")[1:]:
                found = attribute(found, name)
            yield code, found is not None
        called = re.match(r"(?:tune\.)?([A-Za-z_]\w*)\((\w+)=", code)
        if called is not None:
            homes = (import_module(f"dasktune{home}") for home in HOMES)
            objects = [getattr(home, called[1]) for home in homes if hasattr(home, called[1])]
            if objects:
                parameters = inspect.signature(objects[0]).parameters
                takes = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
                yield code, takes or called[2] in parameters
