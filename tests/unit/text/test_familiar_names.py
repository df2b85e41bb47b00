"""What the package says of names that people bring from other libraries."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest

import dasktune as tune
from dasktune.text.familiar_names import CLASSES, FUNCTIONS, MODULES, name_hint


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("normal", "did you mean randn?"),
        ("suggest_float", "did you mean uniform?"),
        ("suggest_int", "did you mean randint?"),
        ("log_int", "did you mean lograndint?"),
        ("int", "did you mean randint?"),
        ("Categorical", "did you mean choice?"),
        ("ASHAScheduler", "did you mean dasktune.schedulers.ASHAScheduler?"),
        ("AshaScheduler", "did you mean dasktune.schedulers.ASHAScheduler?"),
        ("sklearn", "import dasktune.sklearn"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(name, meant, monkeypatch):
    # Another test may have imported the package.
    monkeypatch.delattr(tune, name, raising=False)
    with pytest.raises(AttributeError) as found:
        getattr(tune, name)
    assert str(found.value) == f"module 'dasktune' has no attribute '{name}'; {meant}"
    # Python would add a suggestion of its own.
    assert found.value.obj is None


def test_an_unknown_name_is_left_to_the_suggestions_of_python():
    with pytest.raises(AttributeError) as found:
        tune.Tunr  # noqa: B018
    assert str(found.value) == "module 'dasktune' has no attribute 'Tunr'"
    assert found.value.obj is tune
    assert not hasattr(tune, "_normal")


def test_each_hint_names_something_that_exists():
    for name, ours in FUNCTIONS.items():
        assert ours in tune.__all__
        assert name not in tune.__all__
    for package, names in CLASSES.items():
        assert set(names) <= set(import_module(f"dasktune.{package}").__all__)
        assert name_hint(names[0]) == f"did you mean dasktune.{package}.{names[0]}?"
    for module in MODULES:
        assert find_spec(f"dasktune.{module}") is not None
        assert name_hint(module) == f"import dasktune.{module}"
