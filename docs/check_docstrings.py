"""Check that docstrings agree with signatures, have whole sections, and show examples.

``numpydoc lint`` reads source text, where a dataclass has no constructor. This script passes the
imported objects to numpydoc, which have signatures. A section whose title is not a line of its own
is text to numpydoc, so the source is searched for such titles. ``make lint`` runs the script.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

from numpydoc.validate import validate

import dasktune

#: The packages whose classes and functions must each have an example, where `__all__` names them.
SHOWN = ("", ".callback", ".errors", ".logger", ".registry", ".schedulers", ".search", ".sklearn")
SHOWN += (".stopper", ".testing", ".testing.problems", ".control", ".dashboard")
SHOWN += (".dashboard.figures", ".dashboard.report")
SHOWN += tuple(
    f".integration.{package}"
    for package in (
        "keras",
        "lightgbm",
        "mlflow",
        "pytorch_lightning",
        "torch",
        "transformers",
        "wandb",
        "xgboost",
    )
)

#: Names for use between dasktune's packages, and types that users only read.
UNSHOWN = frozenset({"Location", "MissedEvents", "SimulatedTrialExecutor", "TrialStorage", "check_callbacks"})

#: Unknown parameters, parameters in another order, a type that ends in a full stop.
CHECKS = frozenset({"PR02", "PR03", "PR05"})

_TITLE = (
    "(Parameters|Other Parameters|Attributes|Methods|Returns|Yields|Receives|Raises|Warns|Warnings|See Also"
    "|Notes|References|Examples)"
)

#: A title with its line of dashes beside it, after other text, or below text without an empty line.
SPLIT_TITLE = re.compile(
    rf"\b{_TITLE}[ \t]+-{{3,}}"
    rf"|\S[ \t]+{_TITLE}[ \t]*\n[ \t]*-{{3,}}[ \t]*$"
    rf"|\S[ \t]*\n[ \t]*{_TITLE}[ \t]*\n[ \t]*-{{3,}}[ \t]*$",
    re.MULTILINE,
)


def documented_objects(package: str) -> Iterator[str]:
    """Yield the dotted names of all public classes, methods and functions below `package`."""
    for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if info.name.endswith(".__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != info.name:
                continue
            if inspect.isclass(value):
                yield f"{info.name}.{name}"
                for attribute, member in vars(value).items():
                    if not attribute.startswith("_") and inspect.isroutine(member):
                        yield f"{info.name}.{name}.{attribute}"
            elif inspect.isfunction(value):
                yield f"{info.name}.{name}"


def without_example(package: str) -> Iterator[str]:
    """Yield the names in a package's `__all__` that have no example."""
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        is_ours = getattr(value, "__module__", "").startswith(f"{dasktune.__name__}.")
        if is_ours and (inspect.isfunction(value) or inspect.isclass(value)):
            shows = "\nExamples\n--------\n" in (inspect.getdoc(value) or "")
            if not shows and name not in UNSHOWN and not typing.is_typeddict(value):
                yield f"{package}.{name}"


def misplaced_titles(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each section title in a docstring that is not a line of its own."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            text = ast.get_source_segment(source, statement) or ""
            for match in SPLIT_TITLE.finditer(text):
                line = statement.lineno + text.count("\n", 0, match.start())
                yield line, " ".join(match.group().split())


def main() -> int:
    """Print the findings; return 1 if there are any."""
    bare = {name for part in SHOWN for name in without_example(f"{dasktune.__name__}{part}")}
    findings = [f"{name}: its docstring has no Examples section" for name in sorted(bare)]
    findings += [
        f"{report['file']}:{report['file_line']}: {name}: {code} {text}"
        for name in documented_objects(dasktune.__name__)
        for report in [validate(name)]
        for code, text in report["errors"]
        if code in CHECKS
    ]
    findings += [
        f"{path}:{line}: a section title must be a line of its own below an empty line, got {text!r}"
        for path in sorted(Path(dasktune.__path__[0]).rglob("*.py"))
        for line, text in misplaced_titles(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(findings) or "docstrings: they agree with signatures and show examples")
    return min(len(findings), 1)


if __name__ == "__main__":
    sys.exit(main())
