"""Whatever record was the last one: state and decisions continue as if nothing had happened."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.experiment import ExperimentMachine
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import event_of, replay
from dasktune.schedulers import (
    PB2,
    ASHAScheduler,
    DistributeResourcesToTopJob,
    FIFOScheduler,
    FunctionScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    MultiObjectiveASHAScheduler,
    PopulationBasedTraining,
    PromotingASHAScheduler,
    ResourceChangingScheduler,
    SuccessiveHalvingScheduler,
)
from dasktune.search import FINISHED, BasicVariantGenerator, ConcurrencyLimiter, Searcher
from dasktune.space import choice, grid_search, loguniform
from dasktune.stopper import MaximumIterationStopper
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.testing import MemoryStore, simulate
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.journal_codec import journal_record

#: The first three come too soon after each other for anybody to have made progress.
LOSE = {70.0: 1, 80.0: 1, 90.0: 1, 200.0: 4, 201.0: 0, 330.0: 2}


class Descent(Searcher):
    """Suggests a step from the best so far, with noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.best = (float("inf"), 0.5)
        self.open: dict[str, float] = {}

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        self.rng = __import__("numpy").random.default_rng(spec["seed"])
        super().set_search_properties(metric, mode, config, **spec)
        return True

    def suggest(self, trial_id: str) -> Any:
        if len(self.open) > 30:
            return FINISHED
        self.open[trial_id] = float(self.best[1] + 0.1 * self.rng.normal())
        return {"lr": self.open[trial_id]}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        if result:
            self.best = min(self.best, (result["loss"], self.open[trial_id]))

    def state_dict(self) -> dict[str, Any]:
        rng = self.rng.bit_generator.state
        return {"best": list(self.best), "open": dict(self.open), "rng": rng}

    def load_state_dict(self, state: Any) -> None:
        self.best = tuple(state["best"])
        self.open = dict(state["open"])
        self.rng.bit_generator.state = state["rng"]


def better_half(history: dict[str, Any]) -> dict[str, int]:
    best = sorted(history, key=lambda name: history[name][-1]["loss"])
    return dict.fromkeys(best[: len(best) // 2], 2)


SCHEDULERS = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHAScheduler(max_t=9, reduction_factor=3, brackets=2),
    "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "bohb": lambda: HyperBandForBOHB(max_t=7, reduction_factor=2.5),
    "halving": lambda: SuccessiveHalvingScheduler(max_t=8, reduction_factor=2, n_trials=7),
    "promoting": lambda: PromotingASHAScheduler(max_t=9, reduction_factor=3, brackets=2),
    "fronts": lambda: MultiObjectiveASHAScheduler(
        metrics=["loss", "rate"], modes="min", max_t=9, reduction_factor=2
    ),
    "median": lambda: MedianStoppingRule(grace_period=90, min_time_slice=50),
    "soft-median": lambda: MedianStoppingRule(
        time_attr="training_iteration", grace_period=3, hard_stop=False
    ),
    "median-at-rungs": lambda: MedianStoppingRule(time_attr="training_iteration", check_at=[2, 4]),
    "function": lambda: FunctionScheduler(better_half),
    "resizing": ResourceChangingScheduler,
    "resizing-halving": lambda: ResourceChangingScheduler(
        HyperBandScheduler(max_t=9, reduction_factor=3), DistributeResourcesToTopJob()
    ),
    "pbt": lambda: PopulationBasedTraining(
        perturbation_interval=60,
        hyperparam_mutations={"lr": loguniform(1e-3, 1.0), "layer": ["a", "b"]},
        quantile_fraction=0.4,
    ),
    "synch-pbt": lambda: PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": loguniform(1e-3, 1.0), "drawn": [1, 2]},
        synch=True,
    ),
    "pb2": lambda: PB2(
        perturbation_interval=60,
        hyperparam_bounds={"lr": loguniform(1e-3, 1.0), "drawn": [1, 9]},
        quantile_fraction=0.4,
    ),
    "synch-pb2": lambda: PB2(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_bounds={"lr": loguniform(1e-3, 1.0)},
        synch=True,
    ),
}
SEARCHES = {
    "variants": BasicVariantGenerator,
    "searcher": Descent,
    "limited": lambda: ConcurrencyLimiter(Descent(), 3),
    "batches": lambda: ConcurrencyLimiter(Descent(), 3, batch=True),
}
#: Two of the schedulers with every search, the others with one that is patient and one that waits.
CASES = [
    (scheduler, search)
    for scheduler in SCHEDULERS
    for search in SEARCHES
    if scheduler in ("fifo", "asha") or search in ("variants", "limited")
]

#: Without a limit the schedulers have more trials at a time, which takes longer.
SLOW = [
    (scheduler, search)
    for scheduler, search in CASES
    if search == "variants" and scheduler not in ("fifo", "asha")
]


def marks(case: tuple[str, str]) -> Any:
    return [pytest.mark.slow] if case in SLOW else []


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    for epoch in range(checkpoint or 0, 9):
        if config["lr"] > 0.9 and epoch == 4:
            raise ValueError("diverged")
        loss = config["depth"] * config["lr"] / (epoch + 1)
        yield {"loss": loss, "rate": -config["lr"]}, 30.0 + epoch, epoch + 1


def configs(scheduler: str, search: str) -> dict[str, Any]:
    grid = search == "variants"
    return {
        "tune_config": TuneConfig(
            metric="loss",
            mode="min",
            num_samples=12,
            seed=7,
            scheduler=SCHEDULERS[scheduler](),
            search_alg=SEARCHES[search](),
        ),
        "run_config": RunConfig(
            stop=[MaximumIterationStopper(8), lambda trial_id, result: result["loss"] < 1e-4],
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss"),
            failure_config=FailureConfig(max_failures=1),
        ),
        "param_space": {
            "lr": loguniform(1e-3, 1.0),
            "depth": grid_search([1, 2]) if grid else 2,
            "layers": (3, 4),
            "layer": choice(["a", "b"]) if grid else "a",
        },
    }


class Recorder(MemoryStore):
    """Keeps the state after each record, too."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def append(self, record: Any) -> int:
        position = super().append(record)
        self.records.append(decode(encode(record)))
        return position


def fresh(scheduler: str, search: str) -> ExperimentMachine:
    parts = configs(scheduler, search)
    return build_experiment(parts["tune_config"], parts["run_config"], parts["param_space"])


@pytest.fixture(scope="module", params=[pytest.param(one, marks=marks(one)) for one in CASES], ids="-".join)
def lived(request: pytest.FixtureRequest, quick_bandit: None) -> tuple[tuple[str, str], Recorder]:
    store = Recorder()
    simulate(
        curve,
        **configs(*request.param),
        workers=[2, 2],
        start_overhead=1.5,
        lose=LOSE,
        store=store,
    )
    assert len(store.records) > 50
    done = {action["do"] for record in store.records for action in record.get("actions", ())}
    assert "AdmitOthers" in done or request.param[0] not in ("fifo", "asha")
    return request.param, store


def state(experiment: ExperimentMachine) -> str:
    return encode(experiment.state_dict()).decode()


#: After how many records two experiments are compared. A difference in one state shows in the next
#: ones, too.
LOOKS = (1, 2, 3, 5, 8, 13, 21, 40)


def followed(experiment: ExperimentMachine, records: list[dict[str, Any]]) -> list[str]:
    """Replay what had happened; return states that were reached, the last one among them."""
    states = []
    for begin, end in pairwise((0, *LOOKS)):
        replay(experiment, records[begin:end], lambda trial_id: {})
        states.append(state(experiment))
    return states


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_state_that_was_written_down_behaves_like_one_that_was_not(lived: Any, data: Any):
    case, store = lived
    cut = data.draw(st.integers(0, len(store.records)))
    live = fresh(*case)
    replay(live, store.records[:cut], lambda trial_id: {})
    restored = fresh(*case)
    restored.load_state_dict(decode(encode(live.state_dict())))
    assert state(restored) == state(live)
    rest = store.records[cut : cut + max(LOOKS)]
    assert followed(restored, rest) == followed(live, rest)


def test_a_replayed_journal_leads_to_where_the_experiment_was(lived: Any):
    case, store = lived
    assert len(store.snapshots) > 3
    experiment, done = fresh(*case), 0
    for position, snapshot in sorted(store.snapshots.items()):
        replay(experiment, store.records[done:position], lambda trial_id: {})
        done = position
        assert decode(encode(experiment.state_dict())) == decode(snapshot)


def test_checkpoints_that_were_deleted_come_again(lived: Any):
    case, store = lived
    deleted = [one for one in store.deleted if one.kind is CheckpointKind.PERSISTENT]
    assert deleted
    assert replay(fresh(*case), store.records, lambda trial_id: {}) == deleted


def test_each_record_gives_its_event_back(lived: Any):
    for record in lived[1].records:
        event = event_of(record)
        again = decode(encode(journal_record(event, (), None)))
        assert again == {k: v for k, v in record.items() if k not in ("status", "actions")}
