"""Searchers by name."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.schedulers import create_scheduler
from dasktune.search import (
    BasicVariantGenerator,
    QuasiRandomSearch,
    Searcher,
    create_searcher,
)


class Minimal(Searcher):
    def suggest(self, trial_id):
        return {}


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("random", BasicVariantGenerator),
        ("variant_generator", BasicVariantGenerator),
        ("quasi_random", QuasiRandomSearch),
    ],
)
def test_searchers_are_made_by_name(name, cls):
    assert type(create_searcher(name)) is cls


def test_arguments_reach_the_searcher_and_wrong_ones_are_refused():
    assert create_searcher("quasi_random", method="halton").method == "halton"
    with pytest.raises(ConfigError, match="the arguments of searcher 'random' must be among"):
        create_searcher("random", number="halton")


@pytest.fixture
def foreign(monkeypatch, tmp_path):
    """Another package that is installed and registers searchers."""
    installed = tmp_path / "other-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    lines = ["[dasktune.searchers]", f"mine = {__name__}:Minimal", "other = builtins:dict"]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)


def test_searchers_of_other_packages_are_found(foreign):
    assert type(create_searcher("mine")).__name__ == "Minimal"


def test_what_is_no_searcher_is_refused(foreign):
    with pytest.raises(ConfigError, match="must be a Searcher or a SearchAlgorithm, got 'dict'"):
        create_searcher("other")


def test_an_unknown_name_is_answered_with_the_known_ones(foreign):
    told = r"searcher must be one of .*, mine, other, got 'optuan'\. Did you mean 'optuna'"
    with pytest.raises(ConfigError, match=told):
        create_searcher("optuan")


@pytest.mark.parametrize(
    ("create", "name", "meant"),
    [
        (create_searcher, "TuneBOHB", "bohb"),
        (create_searcher, "OptunaSearch", "optuna"),
        (create_searcher, "QuasiRandomSearch", "quasi_random"),
        (create_scheduler, "ASHAScheduler", "asha"),
        (create_scheduler, "PromotingASHAScheduler", "promoting_asha"),
        (create_scheduler, "MedianStoppingRule", "median_stopping_rule"),
        (create_scheduler, "PopulationBasedTraining", "pbt"),
    ],
)
def test_the_name_of_a_class_is_answered_with_its_short_name(create, name, meant):
    with pytest.raises(ConfigError, match=rf"got '{name}'\. Did you mean '{meant}'\?"):
        create(name)
