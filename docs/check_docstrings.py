"""Check that what the docstrings say of parameters is what the signatures say.

``numpydoc lint`` reads source text, where a dataclass has no constructor. This asks numpydoc about
the living objects, whose signatures are known. Run by ``make lint``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator

from numpydoc.validate import validate

import dasktune

#: Unknown parameters, parameters in another order, a type that ends in a full stop.
CHECKS = frozenset({"PR02", "PR03", "PR05"})


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


def main() -> int:
    """Print what is wrong; return how much."""
    findings = [
        f"{report['file']}:{report['file_line']}: {name}: {code} {text}"
        for name in documented_objects(dasktune.__name__)
        for report in [validate(name)]
        for code, text in report["errors"]
        if code in CHECKS
    ]
    print("\n".join(findings) or "docstrings: parameters agree with signatures")
    return min(len(findings), 1)


if __name__ == "__main__":
    sys.exit(main())
