"""The spans of an experiment, as OpenTelemetry's SDK exports them."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
from test_callbacks import Once, stumbling

from dasktune.config import FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError
from dasktune.integration.opentelemetry import OpenTelemetryCallback
from dasktune.schedulers import ASHAScheduler
from dasktune.space import grid_search
from dasktune.testing import simulate

trace_api = pytest.importorskip("opentelemetry.trace", reason="opentelemetry-sdk is not installed")
trace_sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


class Traced:
    """A simulated experiment and the spans that it has exported."""

    def __init__(self, trainable: Any, *, failure: FailureConfig | None = None, **settings: Any) -> None:
        exporter = in_memory.InMemorySpanExporter()
        self.provider = trace_sdk.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(exporter))
        self.callback = OpenTelemetryCallback(self.provider)
        tune = {name: settings.pop(name) for name in ("scheduler", "num_samples") if name in settings}
        simulate(
            trainable,
            tune_config=TuneConfig(metric="loss", mode="min", seed=1, **tune),
            run_config=RunConfig(callbacks=[self.callback], failure_config=failure or FailureConfig()),
            **settings,
        )
        self.spans = exporter.get_finished_spans()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def events(span: Any) -> list[str]:
    return [event.name for event in span.events]


def test_an_experiment_has_spans_of_its_trials_and_of_their_stays():
    traced = Traced(stumbling(), scheduler=Once(), failure=FailureConfig(max_failures=1))
    [experiment], [trial] = traced.named("experiment"), traced.named("trial")
    stays = traced.named("stay")
    assert experiment.parent is None
    assert trial.parent.span_id == experiment.context.span_id
    assert {stay.parent.span_id for stay in stays} == {trial.context.span_id}
    assert len({span.context.trace_id for span in traced.spans}) == 1
    assert [stay.attributes["dasktune.stay"] for stay in stays] == [1, 2, 3]
    assert all(span.start_time <= span.end_time for span in traced.spans)
    assert experiment.attributes["dasktune.trials.terminated"] == 1
    assert trial.attributes["dasktune.status"] == "TERMINATED"
    assert trial.attributes["dasktune.training_iteration"] == 4


def test_a_trial_has_events_of_its_checkpoints_failures_and_its_end():
    traced = Traced(stumbling(), scheduler=Once(), failure=FailureConfig(max_failures=1))
    [trial] = traced.named("trial")
    saved, resumed = "saved a checkpoint", "resumed from a checkpoint"
    assert events(trial) == [
        saved,
        "left its worker",
        resumed,
        saved,
        "failed",
        resumed,
        saved,
        saved,
        "ended",
    ]
    _, after_pause, last = traced.named("stay")
    assert "stumbled" in after_pause.attributes["dasktune.reason"]
    assert after_pause.status.status_code.name == "ERROR"
    assert last.status.status_code.name == "UNSET"
    assert trial.status.status_code.name == "UNSET"


def test_a_lost_trial_has_an_event_and_another_stay():
    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range((checkpoint or 0) + 1, 6):
            yield {"loss": 1.0 / step}, 1.0, step

    traced = Traced(train, lose={2.5: 0}, slots=1)
    [trial] = traced.named("trial")
    assert "lost" in events(trial)
    first, second = traced.named("stay")
    assert first.status.status_code.name == "ERROR"
    assert second.status.status_code.name == "UNSET"


def test_a_decision_of_the_scheduler_is_the_reason_of_the_end():
    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        for _ in range(9):
            yield {"loss": float(config["x"])}, 1.0, None

    traced = Traced(
        train,
        param_space={"x": grid_search([1, 2, 3, 4, 5, 6]), "name": "a", "more": {"deep": True}, "none": None},
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        slots=1,
    )
    stopped = [span for span in traced.named("trial") if events(span)[-1] == "stopped"]
    assert stopped
    assert all(span.events[-1].attributes["dasktune.reason"] for span in stopped)
    [stay, *_] = traced.named("stay")
    config = {name: value for name, value in stay.attributes.items() if ".config." in name}
    assert config["dasktune.config.name"] == "a"
    assert config["dasktune.config.more/deep"] is True
    assert "dasktune.config.none" not in config


def test_a_trial_that_fails_is_an_error():
    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        yield {"loss": 1.0}, 1.0, None
        raise ValueError("no " + "x" * 2000)

    [trial] = Traced(train).named("trial")
    assert trial.status.status_code.name == "ERROR"
    assert trial.status.description.startswith("ValueError: no xxx")
    assert len(trial.status.description) == 1000
    assert trial.attributes["dasktune.status"] == "ERROR"


def test_the_callback_is_stored_without_its_provider_and_its_spans():
    traced = Traced(stumbling(), failure=FailureConfig(max_failures=1))
    stored = pickle.dumps(traced.callback)
    assert b"TracerProvider" not in stored
    copy = pickle.loads(stored)
    copy.setup()
    copy.on_experiment_end([])


def test_the_trace_of_a_later_driver_names_the_earlier_one():
    exporter = in_memory.InMemorySpanExporter()
    provider = trace_sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    killed, later = OpenTelemetryCallback(provider), OpenTelemetryCallback(provider)
    assert killed.get_state() is None
    killed.setup()
    state = killed.get_state()
    later.setup()
    later.set_state(state)
    later.set_state({"trace": 3})
    later.on_experiment_end([])
    [experiment] = exporter.get_finished_spans()  # the span of the killed driver is lost
    assert experiment.attributes["dasktune.earlier_trace"] == state["trace"]
    assert f"{experiment.context.trace_id:032x}" != state["trace"]
    killed.on_experiment_end([])
    _, second = exporter.get_finished_spans()
    assert f"{second.context.trace_id:032x}" == state["trace"]
    # The last snapshot is taken after the end, and the experiment may be restored even then.
    assert killed.get_state() == state


def test_without_a_provider_there_is_no_trace_to_name():
    callback = OpenTelemetryCallback(trace_api.NoOpTracerProvider())
    callback.setup()
    assert callback.get_state() is None
    callback.on_experiment_end([])


def test_without_opentelemetry_the_callback_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-sdk"):
        OpenTelemetryCallback()
