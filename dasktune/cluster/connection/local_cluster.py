"""The local cluster that an experiment starts if the user names none, and the check before it.

Each worker process imports the user's script first. Without ``if __name__ == "__main__":`` each
would execute the line that starts workers again, and die with an error that does not name the
cause. So the script is checked before the first process starts. It is refused only if the failure
is certain.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
import tokenize
import warnings
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

import dask
from distributed import LocalCluster

from dasktune.errors import ClusterError

#: Longer than any experiment takes.
_NEVER: Final = "1000 days"

#: Names in scripts that distinguish processes, or that handle an error of a worker process.
_PROCESS_AWARE_NAMES: Final = frozenset(
    {"__name__", "multiprocessing", "parent_process", "current_process", "suppress"}
)

#: Statements that every process which reaches them executes.
_UNCONDITIONAL: Final = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)


class StartedLocalCluster(LocalCluster):  # type: ignore[misc]
    """A local cluster that never abandons its workers.

    The nannies restart the workers however often they die. But 15 s after each loss Dask's
    ``LocalCluster`` checks whether the worker is there. If not, because the worker is still
    starting or has died again, the cluster closes the nanny. If trials kill their workers, no
    worker would be left in the end.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            # The dashboard then gets another port, which the user is shown in any case.
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            super().__init__(*args, **kwargs)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # Only this method reads the setting. The user's own clusters keep the user's value.
        with dask.config.set({"distributed.deploy.lost-worker-timeout": _NEVER}):
            super()._update_worker_status(op, msg)


def check_main() -> None:
    """Refuse to start workers if each of them would reach this code while it imports the script.

    Raises
    ------
    ClusterError
        If each worker would reach this code; the message contains the line and the remedy.
    """
    # A forked process does not import the script.
    if dask.config.get("distributed.worker.multiprocessing-method", "spawn") == "fork":
        return
    script, line = _imported_again()
    statement = None if script is None else unguarded_statement(script, line)
    if script is None or statement is None:
        return
    raise ClusterError(
        f'the top-level code of {script.name} must be under `if __name__ == "__main__":`, got '
        f"line {statement.lineno} without it. Every worker process imports the script, and would "
        "execute that line again. Write:\n\n"
        '    if __name__ == "__main__":\n'
        f"        {_first_line(script, statement)}\n\n"
        "Move everything that must run only once into that block, or pass client= a running cluster."
    )


def _imported_again() -> tuple[Path | None, int]:
    """Return the script that worker processes import, and its line that is running now."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    frame = None if main is None or file is None else _module_frame(main)
    if frame is None:
        return None, 0
    # Under `python -m package` worker processes do not import the file.
    name = getattr(getattr(main, "__spec__", None), "name", None) or ""
    same = os.path.realpath(frame.f_code.co_filename) == os.path.realpath(str(file))
    if name.endswith("__main__") or not same:
        return None, 0
    return Path(str(file)), frame.f_lineno


def _module_frame(main: ModuleType) -> FrameType | None:
    """Return the frame of a module's top-level code in the main thread, None if it has ended."""
    ident = threading.main_thread().ident
    frame = None if ident is None else sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            return frame
        frame = frame.f_back
    return None


def unguarded_statement(script: Path, line: int) -> ast.stmt | None:
    """Return the statement at a line, if every process that imports the script executes it.

    Parameters
    ----------
    script : Path
        The script, which may be unreadable.
    line : int
        A line of its top-level code.
    """
    try:
        tree = ast.parse("\n".join(_lines(script)))
    except (OSError, SyntaxError, ValueError):
        return None
    if any(map(_is_process_aware, ast.walk(tree))):
        return None
    for statement in tree.body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            return statement if isinstance(statement, _UNCONDITIONAL) else None
    return None


def _is_process_aware(node: ast.AST) -> bool:
    names = {getattr(node, name, None) for name in ("id", "attr", "name", "module")}
    # `try` or `try ... except*`, which old versions of Python lack.
    return type(node).__name__ in ("Try", "TryStar") or not _PROCESS_AWARE_NAMES.isdisjoint(names)


def _first_line(script: Path, statement: ast.stmt) -> str:
    """Return a statement's first line."""
    first = _lines(script)[statement.lineno - 1].strip()
    return first if statement.end_lineno == statement.lineno else f"{first} ..."


def _lines(script: Path) -> list[str]:
    with tokenize.open(script) as file:
        return file.read().splitlines()
