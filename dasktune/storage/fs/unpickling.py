"""Reads pickles that name dasktune's code by what it was called when they were written.

Directories of experiments hold pickles: schedulers and searchers in ``tuner.json``, configurations
in ``params.pkl``, values that user code saved as a checkpoint. A pickle names a class by its
module. Moving or renaming a class or function that such a pickle may hold needs a line in the table
of migrations here; a test restores the experiment in ``tests/fixtures`` to prove it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, Final

#: Old and new names below ``dasktune``: of modules, and of ``module:class`` where more has changed.
MOVED: Final = {"trial.nested_metrics": "trial.metrics"}

_PACKAGE: Final = "dasktune."
_FIRST: Final = {new: old for old, new in MOVED.items()}


def _translate(names: Mapping[str, str], module: str, name: str) -> tuple[str, str]:
    """Return the other module and name of a class or function; the same if it has no other."""
    if not module.startswith(_PACKAGE):
        return module, name
    short = module.removeprefix(_PACKAGE)
    other = names.get(f"{short}:{name}") or f"{names.get(short, short)}:{name}"
    short, _, name = other.partition(":")
    return _PACKAGE + short, name


class _MovedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find a class or function, under its present name if it has moved."""
        return super().find_class(*_translate(MOVED, module, name))


def loads(content: bytes) -> Any:
    r"""Return the value of a pickle that this or an earlier version wrote.

    Parameters
    ----------
    content : bytes
        What ``pickle`` or ``cloudpickle`` made. It can run any code: it must come from a place that
        only trusted people can write to.

    Raises
    ------
    Exception
        Whatever unpickling raises, e.g. ModuleNotFoundError for code that is gone.

    Examples
    --------
    >>> loads(pickle.dumps({"lr": 0.1}))
    {'lr': 0.1}
    >>> loads(b"cdasktune.trial.nested_metrics\nwith_nested_names\n.").__module__
    'dasktune.trial.metrics'
    """
    return _MovedUnpickler(io.BytesIO(content)).load()


def first_name(kind: Any) -> tuple[str | None, str]:
    """Return the module and the qualified name under which a class or function was first known.

    A fingerprint of these names does not change when dasktune moves or renames its code.

    Examples
    --------
    >>> first_name(dict)
    ('builtins', 'dict')
    """
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")
    return _translate(_FIRST, module, name) if module else (module, name)
