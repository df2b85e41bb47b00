from __future__ import annotations

import enum
import math
import threading
from collections import OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest

from dasktune.errors import ConfigError
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.trainable.reporting.plain_metrics import plain_metrics
from dasktune.trial.metrics import lookup, number


def test_numpy_scalars_become_python_numbers_at_every_depth():
    given = {
        "a": np.float64(1.5),
        "b": {"c": [np.int32(2), (np.bool_(True),)]},
        "d": np.array(3.0),
        "e": np.longdouble(0.5),
    }
    plain = plain_metrics(given)
    assert plain == {"a": 1.5, "b": {"c": [2, (True,)]}, "d": 3.0, "e": 0.5}
    assert type(plain["a"]) is type(plain["d"]) is type(plain["e"]) is float
    assert type(plain["b"]["c"][0]) is int


def test_the_users_dict_is_not_the_one_that_is_kept():
    given = {"a": {"b": 1}}
    plain = plain_metrics(given)
    given["a"]["b"] = 2
    assert plain == {"a": {"b": 1}}


def test_what_pickles_passes():
    point = namedtuple("point", "x y")(1, 2)
    array = np.arange(3)
    plain = plain_metrics({"p": point, "o": OrderedDict(k=1), "array": array, "none": None})
    assert plain["p"] == (1, 2)
    assert plain["o"] == {"k": 1}
    assert plain["array"] is array


@pytest.mark.parametrize("metrics", [None, 0.5, [("loss", 1)], "loss"])
def test_metrics_must_be_a_dict(metrics):
    with pytest.raises(ConfigError, match="metrics must be a dict"):
        plain_metrics(metrics)


def test_keys_must_be_strings():
    with pytest.raises(ConfigError, match=r"a key of metrics\['eval'\] must be a string, got int"):
        plain_metrics({"eval": {1: 0.5}})


def test_a_tensor_is_refused_with_its_name_and_the_remedy():
    tensor = type("Tensor", (), {"__module__": "torch"})()
    with pytest.raises(ConfigError, match=r"metrics\['loss'\] .* torch.Tensor. Report its .item\(\)"):
        plain_metrics({"loss": tensor})


def test_what_does_not_pickle_is_refused_with_its_name():
    with pytest.raises(ConfigError, match=r"metrics\['a'\]\[1\] must be plain data .* _thread.lock"):
        plain_metrics({"a": [1, threading.Lock()]})


class Grade(enum.Enum):
    GOOD = 0.5


class Scalar:
    """An array without dimensions of a library that dasktune does not know."""

    ndim = 0

    def item(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    "value", [Fraction(1, 2), Decimal("0.5"), Grade.GOOD, Scalar(), np.float16(0.5), 10**3000, -(10**3000)]
)
def test_a_number_ranks_alike_before_and_after_the_journal_has_stored_it(value):
    plain = plain_metrics({"loss": value, "all": [value]})
    expected = value if isinstance(value, int) else 0.5
    assert number(plain["loss"]) == number(expected)
    assert plain["all"] == [plain["loss"]]
    assert decode(encode(plain)) == plain
    assert type(plain["loss"]) is float


@pytest.mark.parametrize("value", [True, np.bool_(True), 3, np.int64(3), 2**1000])
def test_truths_and_integers_stay_what_they_are(value):
    plain = plain_metrics({"n": value})
    assert plain == {"n": value}
    assert type(plain["n"]) in (bool, int)
    assert decode(encode(plain)) == plain


def test_an_undefined_decimal_is_undefined():
    assert math.isnan(plain_metrics({"loss": Decimal("sNaN")})["loss"])


def test_any_mapping_becomes_a_dict_so_that_its_metrics_are_found_after_a_restore():
    plain = plain_metrics({"eval": MappingProxyType({"loss": 0.5})})
    assert type(plain["eval"]) is dict
    assert lookup(decode(encode(plain)), "eval/loss") == 0.5


def test_metrics_that_contain_themselves_are_refused_with_the_key():
    metrics = {"loss": 0.5, "eval": {"all": []}}
    metrics["eval"]["all"].append(metrics["eval"])
    with pytest.raises(ConfigError, match=r"metrics\['eval'\]\['all'\]\[0\] .* got metrics\['eval'\],"):
        plain_metrics(metrics)
