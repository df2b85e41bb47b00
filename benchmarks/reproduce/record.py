"""Record sets of learning curves: ``python -m benchmarks.reproduce.record [name...]``.

Trains the configurations of each named set (by default of all sets) with three seeds, in one
thread, and saves the validation curves in ``benchmarks/reproduce/recorded``. What the sets are
stands in `benchmarks.reproduce.recipes`, and which half of them is sealed, too. It needs
scikit-learn, and LightGBM for sets of its family. The configurations of a family are drawn once
and saved, so that new sets have the same ones.

``--rows N`` trains only the first N configurations, prints the seconds, and saves nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from importlib.metadata import version
from itertools import islice

import numpy as np
from numpy.random import default_rng

from benchmarks.reproduce.curves import EPOCHS, config_path, load_configs, save
from benchmarks.reproduce.data_sets import load_halves
from benchmarks.reproduce.recipes import FAMILIES, POOL, SEEDS, SETS
from benchmarks.reproduce.training import TRAINERS

__all__ = ["draw_configs", "record"]


def draw_configs(family: str) -> None:
    """Draw the configurations of a family and save them."""
    columns = {
        name: np.array(domain.sample(size=POOL, random_state=default_rng([index, 5])))
        for index, (name, domain) in enumerate(FAMILIES[family].items())
    }
    small = {
        name: values.astype({"f": "f4", "i": "u2"}.get(values.dtype.kind, values.dtype))
        for name, values in columns.items()
    }
    config_path(family).parent.mkdir(exist_ok=True)
    np.savez_compressed(config_path(family), **small)


def record(name: str, rows: int | None = None) -> None:
    """Train the models of a set and save the curves; or only the first `rows`, and save nothing."""
    recipe = SETS[name]
    if not config_path(recipe.family).exists():
        draw_configs(recipe.family)
    halves = load_halves(recipe.data)
    if recipe.family != "lightgbm":
        halves = halves.standardised()
    count, train = rows or recipe.rows, TRAINERS[recipe.family]
    loss, error = np.empty((2, count, SEEDS, EPOCHS))
    begun = time.process_time()
    for row, config in enumerate(islice(load_configs(recipe.family), count)):
        loss[row], error[row] = train(config, halves, range(SEEDS))
        if row % 100 == 99:
            print(f"{name}: {row + 1} of {count}, {time.process_time() - begun:.0f} s", flush=True)
    seconds = time.process_time() - begun
    final = loss[..., -1]
    print(f"{name}: {count} rows, {seconds:.1f} s, final loss {final.min():.4g} to {np.median(final):.4g}")
    if rows is None:
        save(name, loss, error, validation_rows=len(halves.validation_labels), about=_about(recipe.family))


def _about(family: str) -> str:
    packages = ["numpy", "scikit-learn", *(["lightgbm"] if family == "lightgbm" else [])]
    return ", ".join(f"{name} {version(name)}" for name in packages)


def main(arguments: list[str] | None = None) -> None:
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce.record", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *SETS], metavar="name", help=f"{', '.join(SETS)} (all)"
    )
    parser.add_argument("--rows", type=int, help="train only so many configurations, and save nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(SETS):
        parser.error(f"name must be one of {', '.join(SETS)}, got {sorted(unknown)}")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.names or SETS:
            record(name, options.rows)


if __name__ == "__main__":
    main()
