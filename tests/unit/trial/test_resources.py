"""What a trial asks for: two spellings of the same request are the same request."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.trial.resources import (
    STRATEGIES,
    ElasticPlacement,
    HostPlacement,
    PlacementGroupFactory,
    Resources,
    as_placement_group,
    least_request,
    with_bundles,
)

AMOUNTS = st.integers(0, 64) | st.floats(0, 64)
BUNDLES = st.lists(
    st.dictionaries(st.sampled_from(["CPU", "memory", "TPU"]), AMOUNTS)
    | st.fixed_dictionaries({"GPU": st.integers(0, 8) | st.floats(0, 1)}),
    min_size=1,
    max_size=4,
)


def test_zeros_are_dropped_and_whole_floats_are_ints():
    request = PlacementGroupFactory([{"CPU": 1.0, "GPU": 0}, {}, {"GPU": 0.5, "TPU": 0.0}])
    assert request.bundles == [{"CPU": 1}, {}, {"GPU": 0.5}]
    assert request == PlacementGroupFactory(({"CPU": 1}, {"CPU": 0}, {"GPU": 0.5}))
    assert request.head_resources == {"CPU": 1}
    assert request.head_cpus == 1
    assert request.required_resources == {"CPU": 1, "GPU": 0.5}
    assert isinstance(request.head_cpus, int)


def test_a_part_of_a_gpu_is_a_part_of_one():
    PlacementGroupFactory([{"GPU": 0.5}, {"GPU": 1.0}, {"GPU": 3}, {"CPU": 1.5}])
    with pytest.raises(ConfigError) as refused:
        PlacementGroupFactory([{"CPU": 1}, {"GPU": 1.5}])
    assert str(refused.value) == (
        "bundles[1]['GPU'] must be a whole number of GPUs, got 1.5. Fractions are allowed up to 1."
    )


def test_the_head_may_be_empty():
    request = PlacementGroupFactory([{}, {"CPU": 2}])
    assert request.head_resources == {}
    assert request.head_cpus == 0
    assert request.required_resources == {"CPU": 2}


def test_ten_tenths_are_one():
    assert PlacementGroupFactory([{"CPU": 0.1}] * 10).required_resources == {"CPU": 1}
    assert PlacementGroupFactory([{"CPU": 0.25}] * 3).required_resources == {"CPU": 0.75}


def test_bytes_beyond_the_precision_of_a_float_are_kept():
    many = 2**60 + 1
    assert PlacementGroupFactory([{"memory": many}]).required_resources == {"memory": many}


def test_numpy_and_rational_amounts_are_plain_numbers_in_json():
    bundle = {"CPU": np.int64(2), "GPU": np.float32(0.5), "TPU": Fraction(3, 2)}
    request = PlacementGroupFactory([bundle])
    assert json.loads(json.dumps(request.to_json())) == {
        "bundles": [{"CPU": 2, "GPU": 0.5, "TPU": 1.5}],
        "strategy": "PACK",
    }


def test_no_one_can_change_a_request():
    given_bundle = {"CPU": 1}
    request = PlacementGroupFactory([given_bundle])
    before = hash(request)
    given_bundle["CPU"] = 7
    request.bundles[0]["CPU"] = 8
    request.head_resources["CPU"] = 9
    with pytest.raises(FrozenInstanceError):
        request.strategy = "SPREAD"
    assert request.required_resources == {"CPU": 1}
    assert hash(request) == before


@settings(max_examples=30)
@given(BUNDLES, st.sampled_from(STRATEGIES))
def test_a_request_survives_json_pickle_and_copy(bundles, strategy):
    request = PlacementGroupFactory(bundles, strategy)
    travelled = PlacementGroupFactory.from_json(json.loads(json.dumps(request.to_json())))
    for twin in (travelled, pickle.loads(pickle.dumps(request)), copy.deepcopy(request)):
        assert twin == request
        assert hash(twin) == hash(request)
        assert repr(twin) == repr(request)


def test_order_of_names_does_not_matter_but_order_of_bundles_does():
    left = PlacementGroupFactory([{"CPU": 1, "GPU": 2}, {"TPU": 1}])
    assert left == PlacementGroupFactory([{"GPU": 2, "CPU": 1}, {"TPU": 1}])
    assert left != PlacementGroupFactory([{"TPU": 1}, {"GPU": 2, "CPU": 1}])
    assert left != PlacementGroupFactory([{"GPU": 2, "CPU": 1}, {"TPU": 1}], "SPREAD")
    assert left != "PACK"


def test_its_repr_can_be_typed_in():
    packed, spread = (PlacementGroupFactory([{"CPU": 1}], s) for s in ("PACK", "SPREAD"))
    assert repr(packed) == "PlacementGroupFactory([{'CPU': 1}])"
    assert repr(spread) == "PlacementGroupFactory([{'CPU': 1}], strategy='SPREAD')"
    assert eval(repr(spread)) == spread


@pytest.mark.parametrize(
    ("bundles", "message"),
    [
        ([], "bundles must be a list of at least one dict, got"),
        ({"CPU": 1}, "bundles must be a list of at least one dict, got"),
        ("CPU", "bundles must be a list of at least one dict, got"),
        ([3], r"bundles\[0\] must be a dict of resource amounts, got 3"),
        ([{}, {"CPU": -1}], r"bundles\[1\]\['CPU'\] must be at least 0, got -1"),
        ([{"CPU": float("nan")}], "must be a finite number, got nan"),
        ([{"CPU": float("inf")}], "must be a finite number, got inf"),
        ([{"CPU": "1"}], "must be a finite number, got '1'"),
        ([{"CPU": None}], "must be a finite number, got None"),
        ([{"CPU": True}], "must be a finite number, got True"),
        ([{"cpu": 1}], "got 'cpu'. Write 'CPU'"),
        ([{"num_gpus": 1}], "got 'num_gpus'. Write 'GPU'"),
        ([{"": 1}], "must be a non-empty string, got ''"),
        ([{1: 1}], "must be a non-empty string, got 1"),
    ],
)
def test_a_wrong_bundle_is_refused_with_its_place(bundles, message):
    with pytest.raises(ConfigError, match=message):
        PlacementGroupFactory(bundles)


@pytest.mark.parametrize("strategy", ["pack", "", None, ["PACK"]])
def test_an_unknown_strategy_is_refused(strategy):
    with pytest.raises(ConfigError, match="strategy must be one of PACK, SPREAD, STRICT_PACK"):
        PlacementGroupFactory([{"CPU": 1}], strategy)


def test_resources_count_what_is_reserved_too():
    resources = Resources(
        cpu=1,
        gpu=0.5,
        memory=2**30,
        object_store_memory=2**29,
        extra_cpu=2,
        extra_gpu=0.5,
        extra_memory=2**29,
        custom_resources={"TPU": 1},
        extra_custom_resources={"TPU": 2, "license": 1},
    )
    assert resources.cpu_total() == 3
    assert resources.gpu_total() == 1
    assert resources.memory_total() == 2**30 + 2**29
    assert resources.object_store_memory_total() == 2**29
    assert [resources.get_res_total(key) for key in ("TPU", "license", "none")] == [3, 1, 0]
    assert resources.summary_string() == "3 CPUs, 1 GPUs, 1.5 GiB heap, 0.5 GiB objects (3 TPU, 1 license)"
    assert resources.to_placement_group() == PlacementGroupFactory(
        [
            {"CPU": 1, "GPU": 0.5, "memory": 2**30 + 2**29, "TPU": 1},
            {"CPU": 2, "GPU": 0.5, "memory": 2**29, "TPU": 2, "license": 1},
        ]
    )


def test_resources_default_to_one_cpu():
    assert Resources().summary_string() == "1 CPUs, 0 GPUs"
    assert Resources().to_placement_group() == PlacementGroupFactory([{"CPU": 1}])
    assert Resources() == Resources(cpu=1.0)
    assert hash(Resources()) == hash(Resources(cpu=1.0))


def test_what_is_left_may_be_negative_but_cannot_be_asked_for():
    left = Resources.subtract(
        Resources(cpu=4, gpu=1, custom_resources={"TPU": 1}),
        Resources(cpu=1, gpu=2, custom_resources={"license": 1}),
    )
    assert left == Resources(cpu=3, gpu=-1, custom_resources={"TPU": 1, "license": -1})
    assert not left.is_nonnegative()
    assert Resources().is_nonnegative()
    assert not Resources(custom_resources={"TPU": -1}).is_nonnegative()
    with pytest.raises(ConfigError, match="must be at least 0, got -1"):
        left.to_placement_group()


def test_resources_travel_as_json():
    resources = Resources(cpu=2, custom_resources={"TPU": 1})
    assert Resources(**json.loads(json.dumps(resources.to_json()))) == resources


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cpu": "2"}, "cpu must be a finite number, got '2'"),
        ({"extra_gpu": float("nan")}, "extra_gpu must be a finite number, got nan"),
        ({"custom_resources": 3}, "custom_resources must be a dict of resource amounts, got 3"),
        ({"custom_resources": {"CPU": 3}}, "custom_resources must be free of CPU"),
        ({"custom_resources": {"cpu": 3}}, "got 'cpu'. Write 'CPU'"),
        ({"extra_custom_resources": {"TPU": None}}, "must be a finite number, got None"),
    ],
)
def test_wrong_resources_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Resources(**fields)


@pytest.mark.parametrize(
    ("written", "bundles"),
    [
        (None, [{"CPU": 1}]),
        ({}, [{"CPU": 1}]),
        ({"cpu": 2}, [{"CPU": 2}]),
        ({"CPU": 2, "GPU": 0.5}, [{"CPU": 2, "GPU": 0.5}]),
        ({"gpu": 1}, [{"GPU": 1}]),
        ({"cpu": 0}, [{}]),
        ({"cpu": 1, "extra_cpu": 3}, [{"CPU": 1}, {"CPU": 3}]),
        ({"memory": 2**20, "custom_resources": {"TPU": 1}}, [{"memory": 2**20, "TPU": 1}]),
        (
            {"CPU": 1, "TPU": 1, "custom_resources": {"license": 2}},
            [{"CPU": 1, "TPU": 1, "license": 2}],
        ),
        (Resources(cpu=3), [{"CPU": 3}]),
        (PlacementGroupFactory([{"CPU": 3}]), [{"CPU": 3}]),
    ],
)
def test_every_spelling_becomes_a_request(written, bundles):
    assert as_placement_group(written) == PlacementGroupFactory(bundles)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (2, "resources must be None, a dict, Resources or PlacementGroupFactory, got 2"),
        ([{"CPU": 1}], "resources must be None, a dict"),
        ({"cpu": 1, "CPU": 2}, "resources must be a dict with either cpu or CPU"),
        ({"TPU": 1, "custom_resources": {"TPU": 1}}, "resources must be a dict that names each"),
        ({"TPU": 1, "custom_resources": "TPU"}, "custom_resources must be a dict of resource"),
        ({"cpu": -1}, "must be at least 0, got -1"),
        ({3: 1}, "must be a non-empty string, got 3"),
    ],
)
def test_a_wrong_spelling_is_refused(written, message):
    with pytest.raises(ConfigError, match=message):
        as_placement_group(written)


def test_a_request_to_be_alone_is_another_one_and_survives_the_journal():
    shared = PlacementGroupFactory([{"CPU": 1}, {}], "SPREAD")
    alone = shared.exclusively()
    assert alone != shared
    assert alone.exclusively(False) == shared
    for request in (shared, alone):
        assert PlacementGroupFactory.from_json(request.to_json()) == request
        assert pickle.loads(pickle.dumps(request)) == request


def test_a_request_by_host_is_another_one_and_survives_the_journal():
    plain, packed = PlacementGroupFactory([{"CPU": 1}] * 4), HostPlacement([{"CPU": 1}] * 4)
    exact = HostPlacement([{"CPU": 1}] * 4, "SPREAD", per_host=2)
    assert len({plain, packed, exact, exact.exclusively()}) == 4
    assert exact.exclusively().exclusively(False) == exact
    for request in (packed, exact, exact.exclusively()):
        assert PlacementGroupFactory.from_json(request.to_json()) == request
        assert pickle.loads(pickle.dumps(request)) == request
        assert eval(repr(request)) == request


@pytest.mark.parametrize(
    ("bundles", "per_host", "message"),
    [
        ([{"CPU": 1}] * 3, 2, "per_host must be a divisor of the number of ranks, 3, got 2"),
        ([{"CPU": 1}] * 3, 0, "per_host must be a divisor of the number of ranks, 3, got 0"),
        ([{"CPU": 1}, {"CPU": 2}], None, "bundles must be equal"),
    ],
)
def test_bundles_on_hosts_are_equal_and_fill_hosts(bundles, per_host, message):
    with pytest.raises(ConfigError, match=message):
        HostPlacement(bundles, per_host=per_host)


def test_other_bundles_keep_the_layout():
    by_host = HostPlacement([{"CPU": 1}] * 4, "SPREAD", per_host=2)
    assert with_bundles(by_host, [{"CPU": 2}] * 2) == HostPlacement([{"CPU": 2}] * 2, "SPREAD", per_host=2)
    by_worker = PlacementGroupFactory([{"CPU": 1}], "SPREAD")
    assert with_bundles(by_worker, [{}], "PACK") == PlacementGroupFactory([{}])
    with pytest.raises(ConfigError, match="per_host must be a divisor"):
        with_bundles(by_host, [{"CPU": 1}] * 3)


def test_an_elastic_request_is_another_one_for_each_size_and_survives_the_journal():
    by_host = HostPlacement([{"GPU": 1}] * 6, "SPREAD", per_host=2)
    full = ElasticPlacement(by_host, 2, 6)
    assert full.sizes == (6, 4, 2)
    few = full.resized(2)
    assert (least_request(full), least_request(by_host)) == (few, by_host)
    assert (full.is_reduced, few.is_reduced) == (False, True)
    assert len({by_host, full, few, few.exclusively()}) == 4
    assert few.exclusively().resized(6) == full.exclusively()
    for request in (full, few, few.exclusively()):
        assert PlacementGroupFactory.from_json(request.to_json()) == request
        assert pickle.loads(pickle.dumps(request)) == request
        assert eval(repr(request)) == request
        assert request.exclusively(False).resized(6) == full


@pytest.mark.parametrize(
    ("least", "per_host", "message"),
    [
        (0, None, "min_ranks must be from 1 to the number of ranks, 4, got 0"),
        (5, None, "min_ranks must be from 1 to the number of ranks, 4, got 5"),
        (3, 2, "per_host must be a divisor of the number of ranks, 3, got 2"),
    ],
)
def test_an_elastic_request_must_be_possible_with_the_fewest_ranks(least, per_host, message):
    with pytest.raises(ConfigError, match=message):
        ElasticPlacement(HostPlacement([{"CPU": 1}] * 4, per_host=per_host), least, 4)
