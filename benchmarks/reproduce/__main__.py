"""``python -m benchmarks.reproduce [name...]`` prints tables; by default all of them."""

from __future__ import annotations

import argparse

from benchmarks.reproduce import (
    brackets,
    correlations,
    fronts,
    median,
    networks,
    stragglers,
    table,
    toys,
)

_MODULES = {
    "brackets": brackets,
    "table": table,
    "fronts": fronts,
    "stragglers": stragglers,
    "toys": toys,
    "networks": networks,
    "correlations": correlations,
    "median": median,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(_MODULES)} (all)")
    names = parser.parse_args().names or list(_MODULES)
    unknown = set(names) - set(_MODULES)
    if unknown:
        parser.error(f"name must be one of {', '.join(_MODULES)}, got {sorted(unknown)}")
    for name in names:
        print(f"\n## {name}")
        _MODULES[name].main()


if __name__ == "__main__":
    main()
