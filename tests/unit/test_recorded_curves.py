"""Recorded learning curves: how they are trained, stored and loaded, and what is sealed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import dasktune as tune
from benchmarks import whatif
from benchmarks.reproduce import median, quantised
from benchmarks.reproduce.curves import NAMES, load, load_configs, load_curves, set_names, set_path
from benchmarks.reproduce.recipes import EPOCHS, FAMILIES, SEALED_ORDER, SEALED_SEED, SEEDS, SETS
from benchmarks.reproduce.training import Networks
from benchmarks.search_quality import full_trainings, peers, sealed_half
from benchmarks.search_quality.pool import Pool
from dasktune.errors import ConfigError
from dasktune.space import choice, lograndint, uniform
from dasktune.testing import simulate
from dasktune.testing.problems import PROBLEMS

OPEN = [name for name, recipe in SETS.items() if not recipe.sealed]
SEALED = [name for name, recipe in SETS.items() if recipe.sealed]


# Quantisation


def test_losses_come_back_with_an_error_of_at_most_five_in_ten_thousand() -> None:
    rng = default_rng(0)
    losses = np.exp(rng.uniform(math.log(1e-6), math.log(1e9), (4, 3, 81)))
    codes = quantised.loss_codes(losses)
    found = quantised.losses(quantised.unpack(quantised.pack(codes)))
    errors = abs(found / losses - 1)
    assert errors.max() <= 5.01e-4
    assert errors.mean() > 1e-4


def test_losses_at_and_beyond_the_limits_have_a_defined_code() -> None:
    given = np.array([[0.0, 1e-9, 1e-6, 1.0, 1e30, np.inf, np.nan, 2.0]])
    found = quantised.losses(quantised.unpack(quantised.pack(quantised.loss_codes(given))))[0]
    assert found[:3] == pytest.approx(1e-6)
    assert found[3] == pytest.approx(1, rel=5.01e-4)
    assert 1e22 < found[4] < np.inf
    assert (found[5:7] == np.inf).all()
    assert found[7] == pytest.approx(2, rel=5.01e-4)


def test_any_codes_can_be_packed_without_loss() -> None:
    codes = default_rng(1).integers(0, 2**16, (5, 2, 81), dtype=np.uint16)
    codes[0, 0, :4] = [0, 2**16 - 1, 0, 2**15]
    np.testing.assert_array_equal(quantised.unpack(quantised.pack(codes)), codes)


def test_neighbouring_codes_differ_in_the_low_byte_only() -> None:
    codes = np.array([[40000, 40100, 40000, 39900]], dtype=np.uint16)
    _, high = quantised.pack(codes)
    assert high[0].tolist()[1:] == [0, 0, 0]


# Training


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic"])
@pytest.mark.parametrize("classes", [0, 3])
def test_the_gradients_of_networks_are_those_of_their_loss(activation: str, classes: int) -> None:
    config = {"units": 5, "layers": 2, "activation": activation, "alpha": 0.05}
    networks = Networks(config, 4, classes, [default_rng(seed) for seed in range(2)])
    networks.weights = [one.astype("f8") for one in networks.weights]
    networks.biases = [one.astype("f8") for one in networks.biases]
    rng = default_rng(3)
    rows = rng.normal(size=(7, 4))
    labels = rng.integers(0, 3, 7) if classes else rng.normal(size=7)
    targets = np.eye(3)[labels] if classes else labels[:, None]

    def objective() -> Any:
        loss, _ = networks.evaluate(rows, labels)
        penalty = sum((one**2).sum(axis=(1, 2)) for one in networks.weights)
        return (loss if classes else loss / 2) + 0.05 / 2 * penalty

    gradients = networks.gradients(np.stack([rows, rows]), np.stack([targets, targets]))
    for parameter, gradient in zip((*networks.weights, *networks.biases), gradients, strict=True):
        for row, column in ((0, 0), (parameter.shape[1] - 1, parameter.shape[2] - 1)):
            losses = []
            for step in (1e-5, -2e-5):
                parameter[:, row, column] += step
                losses.append(objective())
            parameter[:, row, column] += 1e-5
            slope = (losses[0] - losses[1]) / 2e-5
            np.testing.assert_allclose(gradient[:, row, column], slope, rtol=1e-4, atol=1e-6)


def test_a_network_does_not_depend_on_those_beside_it() -> None:
    config = {"units": 6, "layers": 1, "activation": "tanh", "alpha": 0.01, "learning_rate": 0.1}
    config |= {"batch_size": 8, "friction": 0.1, "decay": 0.5}
    rng = default_rng(0)
    rows, labels = rng.normal(size=(40, 3)).astype("f4"), rng.integers(0, 2, 40)
    targets = np.eye(2, dtype="f4")[labels]
    found = []
    for seeds in ([0, 1], [1]):
        networks = Networks(config, 3, 2, [default_rng(seed) for seed in seeds])
        before, _ = networks.evaluate(rows, labels)
        for epoch in (1, 2, 3):
            networks.train(rows, targets, epoch)
        after, error = networks.evaluate(rows, labels)
        assert (after < before).all()
        found.append((after[-1], error[-1]))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


# Loading


@pytest.mark.parametrize("name", [name for name in OPEN if name.startswith("linear")])
def test_a_set_has_a_curve_for_each_configuration_and_open_seed(name: str) -> None:
    curves, recipe = load(name), SETS[name]
    assert curves.seeds == tuple(seed for seed in range(SEEDS) if seed != SEALED_SEED)
    assert len(curves.configs) == recipe.rows
    for values in curves.curves.values():
        assert values.shape == (recipe.rows, len(curves.seeds), EPOCHS)
    assert curves.metric == "loss"
    assert (curves.loss > 0).all()
    assert not np.isnan(curves.loss).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_configurations_are_points_of_the_search_space(family: str) -> None:
    space = FAMILIES[family]
    for config in load_configs(family):
        assert config.keys() == space.keys()
        assert all(domain.is_valid(config[name]) for name, domain in space.items())


def test_all_sets_have_a_file_and_configurations() -> None:
    for name, recipe in SETS.items():
        assert set_path(name).exists()
        assert name == f"{recipe.family}_{recipe.data}"
    assert set_names() == (*NAMES, *OPEN)
    assert set_names(sealed=True) == tuple(SETS)
    assert sum(path.stat().st_size for path in set_path(OPEN[0]).parent.iterdir()) < 6_000_000


def test_seeds_of_a_set_differ_and_final_losses_have_fewer_ties_than_errors() -> None:
    curves = load("linear_breast_cancer")
    one, other = curves.loss[:, 0], curves.loss[:, 1]
    assert (one[:, 0] != other[:, 0]).mean() > 0.9
    best = np.sort(one[:, -1])[:20]
    assert len(set(best.tolist())) >= 15
    errors = np.sort(curves.curves["error"][:, 0, -1])[:20]
    assert len(set(errors.tolist())) < 6


def test_the_first_tables_have_the_same_interface() -> None:
    curves, table = load("breast_cancer"), load_curves("breast_cancer")
    assert curves.metric == "error"
    np.testing.assert_array_equal(curves.loss, table.validation)
    np.testing.assert_array_equal(curves.curves["test_error"], table.test)
    assert curves.configs[7]["activation"] == table.configs["activation"][7]
    assert all(
        domain.is_valid(config[name])
        for config in curves.configs
        for name, domain in curves.param_space.items()
    )


def test_loaded_arrays_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="read-only"):
        load("linear_breast_cancer").loss[0] = 0


def test_a_set_is_replayed_in_virtual_time() -> None:
    curves = load("linear_diabetes")
    results = simulate(
        curves.trainable(seed=1, order=4),
        param_space={"row": tune.grid_search([3, 5])},
        tune_config=tune.TuneConfig(metric=curves.metric, mode="min"),
    )
    final = [result.metrics["loss"] for result in results]
    assert final == curves.loss[[3, 5], curves.axis(1), -1].tolist()
    steps = list(curves.trainable(seed=1, order=4)({"row": 3}, 80))
    assert [(metrics["loss"], epoch) for metrics, _, epoch in steps] == [(final[0], 81)]


# The seal


@pytest.mark.parametrize("name", SEALED)
def test_a_sealed_set_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"It is sealed: load\(name, sealed=True\)"):
        load(name)


def test_the_sealed_seed_of_an_open_set_is_refused() -> None:
    curves = load("linear_diabetes")
    with pytest.raises(ConfigError, match=r"seed must be one of \(0, 1\), got 2"):
        curves.axis(SEALED_SEED)


def test_sealed_curves_are_returned_on_explicit_request_and_alone() -> None:
    assert load("linear_diabetes", sealed=True).seeds == (SEALED_SEED,)
    assert load("linear_regression40", sealed=True).seeds == tuple(range(SEEDS))


def test_half_of_the_curves_are_sealed() -> None:
    total = sealed = 0
    for recipe in SETS.values():
        total += recipe.rows * SEEDS
        sealed += recipe.rows * (SEEDS if recipe.sealed else 1)
    assert 0.45 < sealed / total < 0.75
    assert {SETS[name].data for name in OPEN} & {SETS[name].data for name in SEALED} == set()


def test_the_benchmarks_of_methods_use_open_sets_that_exist() -> None:
    known = {*set_names(), *PROBLEMS}
    assert {*median.SETS, *full_trainings.PROBLEM_NAMES} == known
    assert {*median.SETS} == {*set_names(), "crossing"}


def test_the_final_table_uses_sealed_curves_and_seeds_only() -> None:
    sealed = {*set_names(sealed=True), *PROBLEMS}
    assert {*sealed_half.PROBLEM_NAMES} <= sealed
    assert {*whatif.SEALED_POOLS} <= sealed
    assert {*SEALED} <= {*sealed_half.PROBLEM_NAMES} & {*whatif.SEALED_POOLS}
    with pytest.raises(ConfigError, match="seed must be at least 1000, got 999"):
        sealed_half.regrets("hartmann3", "random", SEALED_ORDER - 1)
    for contender in sealed_half.CONTENDERS.values():
        assert contender()[0] is not contender()[0]


def test_a_pool_gives_the_nearest_configuration_that_is_left() -> None:
    configs = [{"x": 0.1, "kind": "a"}, {"x": 0.2, "kind": "b"}, {"x": 0.9, "kind": "a"}]
    pool = Pool({"x": uniform(0, 1), "kind": choice(["a", "b"])}, configs)
    # Another category is as far as the whole range of a number.
    assert [pool.take({"x": 0.2, "kind": "a"}) for _ in configs] == [0, 2, 1]
    assert pool.is_empty


def test_peers_and_dasktune_search_under_names_of_their_own() -> None:
    assert not {*peers.OURS} & {*peers.PEERS}
    assert peers.MOMENTS == full_trainings.MOMENTS


def test_peers_are_compared_by_pairs_of_set_and_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, other = "dasktune: promoting ASHA, random", "Ray Tune: ASHA, random"
    lines: list[Any] = [["lightgbm_wine", base, 4, seed, [0.5, 0.4, 0.3], 1.0] for seed in range(6)]
    lines += [["lightgbm_wine", other, 4, seed, [0.4, 0.4, 0.5], 2.0] for seed in range(7)]
    lines += [["mlp_digits", base, 4, 0, [0.5, 0.4, 0.1], 1.0], ["mlp_digits", other, 4, 0, [0, 0, 0], 2.0]]
    runs = tmp_path / "runs"
    runs.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    peers.main(["--minutes", "0", "--runs", str(runs)])
    shown = capsys.readouterr().out
    # The seventh search of the first set has no counterpart. 7:0 is p = 0.016, times three tests
    # 0.047; 1:6 is p = 0.125.
    pairs = "0.343 (0.400); **7:0** | 0.343 (0.400); 1:0 | 0.429 (0.500); 1:6 | 0.12 | 2.0 |"
    assert f"| {other} | 7 | {pairs}" in shown
    assert f"| {other} | 0.500; 0:6 | 0.000; 1:0 |" in shown
    peers.main(["--minutes", "0", "--runs", str(runs), "--problems", "mlp_digits"])
    assert f"| {other} | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(("suggested", "trained"), [(10, 20), (20, 20), (200, 200), (201, 200)])
def test_an_integer_that_a_peer_suggests_outside_of_its_range_is_moved_into_it(
    suggested: int, trained: int
) -> None:
    assert peers.inside(lograndint(20, 201), suggested) == trained
    assert peers.inside(uniform(0, 1), 0.5) == 0.5
    assert peers.inside(choice(["a", "b"]), "b") == "b"


def test_an_unknown_set_is_named_and_the_first_tables_have_no_seal() -> None:
    with pytest.raises(ConfigError, match="name must be one of digits, breast_cancer, lightgbm"):
        load("lightgbm_iris")
    with pytest.raises(ConfigError, match="The first tables have no sealed curves"):
        load("digits", sealed=True)
