"""Whether worker processes could start: each of them imports the user's script first.

Without ``if __name__ == "__main__":`` it comes by the same line again, dies of that, and its death
is all that the user would hear of. So the script is looked at before the first process is started,
and refused only where there is no doubt.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import tokenize
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final

import dask

from dasktune.errors import ClusterError

__all__ = ["check_main"]

#: Names of somebody who tells processes apart, or lives with what a worker raises.
_MINDFUL: Final = frozenset(
    {"__name__", "multiprocessing", "parent_process", "current_process", "suppress"}
)

#: What is always done, and by every process that comes there.
_UNCONDITIONAL: Final = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)


def check_main() -> None:
    """Refuse if every worker process would come by here while it imports the user's script.

    Raises
    ------
    ClusterError
        If so; the message has the line, and what to do about it.
    """
    # A fork imports nothing.
    if dask.config.get("distributed.worker.multiprocessing-method", "spawn") == "fork":
        return
    script, line = _imported_again()
    statement = None if script is None else _unguarded(script, line)
    if script is None or statement is None:
        return
    raise ClusterError(
        f'the top-level code of {script.name} must stand under `if __name__ == "__main__":`, got '
        f"line {statement.lineno} without it. Every worker process imports the script, and would "
        "come there again:\n\n"
        '    if __name__ == "__main__":\n'
        f"        {_shown(script, statement)}\n\n"
        "Put all that must run only once below that line. Else give client= a cluster that runs."
    )


def _imported_again() -> tuple[Path | None, int]:
    """Return the script that worker processes import, and the line of it that is being run."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    frame = None if main is None or file is None else _bottom(main)
    if frame is None:
        return None, 0
    # Of `python -m package` they do not import the file.
    name = getattr(getattr(main, "__spec__", None), "name", None) or ""
    same = os.path.realpath(frame.f_code.co_filename) == os.path.realpath(str(file))
    if name.endswith("__main__") or not same:
        return None, 0
    return Path(str(file)), frame.f_lineno


def _bottom(main: ModuleType) -> FrameType | None:
    """Return the frame of a module's own code in the main thread, which may wait for another."""
    ident = threading.main_thread().ident
    frame = None if ident is None else sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            return frame
        frame = frame.f_back
    return None


def _unguarded(script: Path, line: int) -> ast.stmt | None:
    """Return the statement at a line if every process that imports the script comes by there."""
    try:
        tree = ast.parse("\n".join(_lines(script)))
    except (OSError, SyntaxError, ValueError):
        return None
    if any(map(_is_mindful, ast.walk(tree))):
        return None
    for statement in tree.body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            return statement if isinstance(statement, _UNCONDITIONAL) else None
    return None


def _is_mindful(node: ast.AST) -> bool:
    names = {getattr(node, name, None) for name in ("id", "attr", "name", "module")}
    # `try` or `try ... except*`, which older versions of Python do not have.
    return type(node).__name__ in ("Try", "TryStar") or not _MINDFUL.isdisjoint(names)


def _shown(script: Path, statement: ast.stmt) -> str:
    """Return a statement's first line."""
    first = _lines(script)[statement.lineno - 1].strip()
    return first if statement.end_lineno == statement.lineno else f"{first} ..."


def _lines(script: Path) -> list[str]:
    with tokenize.open(script) as file:
        return file.read().splitlines()
