"""Shipping user code: what travels, and what is said of what cannot."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from distributed import Client

from dasktune.cluster.protocol.pickling import (
    dumps_user_code,
    local_modules,
    missing_module,
    modules_by_value,
)
from dasktune.errors import ConfigError

LOCK = threading.Lock()


def uses_a_lock(config: dict[str, Any]) -> None:
    with LOCK:
        pass


def calls_it(config: dict[str, Any]) -> None:
    uses_a_lock(config)


def has_an_inner_function(config: dict[str, Any]) -> Any:
    return lambda: LOCK


def with_default(config: dict[str, Any], lock: Any = LOCK) -> None:
    pass


class WithMethod:
    def setup(self) -> None:
        uses_a_lock({})

    @staticmethod
    def static() -> None:
        pass


class Holder:
    def __init__(self) -> None:
        self.connection = LOCK

    def method(self) -> None:
        pass


@dataclass(slots=True)
class SlottedHolder:
    lock: Any = field(default_factory=threading.Lock)


class Unshowable:
    def __init__(self) -> None:
        self.lock = LOCK

    def __repr__(self) -> str:
        raise ValueError("no")


def closure() -> Any:
    lock = threading.Lock()
    return lambda config: lock


def attributed() -> Any:
    def train(config: dict[str, Any]) -> None:
        pass

    train.lock = LOCK  # type: ignore[attr-defined]
    return train


@pytest.fixture
def by_value_here() -> Any:
    """Pickle this test module by value, as a user's ``__main__`` is."""
    with modules_by_value([sys.modules[__name__]]):
        yield


@pytest.mark.usefixtures("by_value_here")
@pytest.mark.parametrize(
    ("trainable", "blame"),
    [
        (uses_a_lock, "got <function uses_a_lock>: its global 'LOCK' (a _thread.lock)"),
        (calls_it, "got <function calls_it>: global 'LOCK' of its global 'uses_a_lock'"),
        (has_an_inner_function, "its global 'LOCK'"),
        (with_default, "its default of 'lock'"),
        (closure(), "its variable 'lock' of the enclosing function"),
        (attributed(), "its attribute 'lock'"),
        (functools.partial(len, LOCK), "its argument 0"),
        (functools.partial(len, lock=LOCK), "its argument 'lock'"),
        (functools.partial(uses_a_lock), "global 'LOCK' of its function"),
        (WithMethod, "got <class WithMethod>: global 'LOCK' of global 'uses_a_lock' of its class"),
        (Holder(), "its attribute 'connection'"),
        (Holder().method, "attribute 'connection' of its object"),
        (SlottedHolder(), "its attribute 'lock'"),
        (Unshowable(), "Unshowable object at"),
        (LOCK, "trainable must be picklable, got <unlocked _thread.lock"),
    ],
)
def test_what_cannot_be_pickled_is_named(trainable: Any, blame: str) -> None:
    with pytest.raises(ConfigError, match="trainable must be picklable, got") as caught:
        dumps_user_code({"param_space": {"x": 1}, "trainable": trainable}, code="installed")
    assert blame in str(caught.value)
    assert "Create it inside the function" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "path"),
    [
        ({"a": {"b": LOCK}}, "param_space['a']['b'] must be picklable, got <unlocked"),
        ({"a": [1, (LOCK,)]}, "param_space['a'][1][0] must be picklable"),
        ({"a": [closure()]}, "variable 'lock' of the enclosing function of param_space['a'][0]"),
    ],
)
def test_the_path_in_a_search_space_is_named(space: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dumps_user_code({"trainable": len, "param_space": space})
    assert path in str(caught.value)


class _OnceOnly:
    """Cannot be pickled the first two times, those of the attempts to send everything."""

    count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        type(self).count += 1
        if type(self).count < 3:
            raise TypeError("not yet")
        return int, ()


def test_what_pickles_only_alone_is_reported_as_such() -> None:
    with pytest.raises(ConfigError, match="first, second must be picklable together"):
        dumps_user_code({"first": _OnceOnly(), "second": 1})


def test_code_must_be_one_of_two_words() -> None:
    with pytest.raises(ConfigError, match="code must be 'auto' or 'installed'"):
        dumps_user_code({}, code="by value")


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    source = "import threading\nlock = threading.Lock()\n\n\ndef plain(x):\n    return x + 1\n\n\n"
    source += "def locked(x):\n    with lock:\n        return x\n"
    (tmp_path / "a_local_helper.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_local_helper", raising=False)
    module = __import__("a_local_helper")
    monkeypatch.setitem(sys.modules, "a_local_helper", module)
    return module


def test_a_local_module_that_is_imported_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> set[str]:
        return {module.__name__ for module in local_modules()}

    (tmp_path / "a_later_helper.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "a_later_helper" not in names()
    monkeypatch.setitem(sys.modules, "a_later_helper", __import__("a_later_helper"))
    assert "a_later_helper" in names()
    # Something else has its name now.
    monkeypatch.setitem(sys.modules, "a_later_helper", object())
    assert "a_later_helper" not in names()


def test_local_modules_are_neither_installed_nor_dasktune(helper: ModuleType) -> None:
    names = {module.__name__ for module in local_modules()}
    assert {"a_local_helper", __name__} <= names
    assert not {name for name in names if name.split(".")[0] in ("dasktune", "pytest", "json")}


def test_installed_code_is_only_referred_to(helper: ModuleType) -> None:
    blob = dumps_user_code({"trainable": helper.plain}, code="installed")
    assert pickle.loads(blob)["trainable"] is helper.plain


def test_a_local_module_that_cannot_travel_is_referred_to(helper: ModuleType) -> None:
    assert pickle.loads(dumps_user_code({"trainable": helper.locked}))["trainable"] is helper.locked
    assert "It could not travel" in missing_module("a_local_helper")
    assert "code='auto' would let it" in missing_module("a_local_helper", code="installed")


def test_what_the_user_registered_stays_registered(helper: ModuleType) -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    cloudpickle.register_pickle_by_value(helper)
    try:
        dumps_user_code({"trainable": helper.plain})
        assert cloudpickle.list_registry_pickle_by_value() == before | {"a_local_helper"}
    finally:
        cloudpickle.unregister_pickle_by_value(helper)
    dumps_user_code({"trainable": helper.plain})
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_pip_is_named_only_for_what_an_index_has(
    helper: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, package, files in (
        ("public", "its-package", {}),
        ("from_a_directory", "mine", {"direct_url.json": "{}"}),
        ("a_local_helper", "of-a-stranger", {}),
        ("of_no_name", "", {}),
    ):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        for file, text in {"METADATA": f"Name: {package}", "top_level.txt": name, **files}.items():
            (info / file).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    text = missing_module("public.part")
    assert "cannot import the module 'public.part'" in text
    assert "PipInstall(packages=['its-package'])" in text
    for name in ("from_a_directory", "a_local_helper", "of_no_name", "not_here"):
        assert "PipInstall" not in missing_module(name)
        assert f"client.upload_file('{name}.py')" in missing_module(name)


class _OfNoCluster(Client):  # type: ignore[misc]
    def __init__(self) -> None:
        """Connect to nothing."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_asyncio.Task' object")

    def __repr__(self) -> str:
        return "<Client>"

    def __del__(self) -> None:
        """Close nothing."""


def test_a_client_is_named_and_not_what_is_inside_of_it() -> None:
    client = _OfNoCluster.__new__(_OfNoCluster)
    with pytest.raises(ConfigError) as caught:
        dumps_user_code({"trainable": lambda config: client.submit(len, "a")})
    told = str(caught.value)
    assert "its variable 'client' of the enclosing function (a test_pickling._OfNoCluster)" in told
    assert "with dasktune.get_client()" in told
