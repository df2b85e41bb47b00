"""OpenTelemetry: spans of an experiment, of its trials, and of each stay of a trial on a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dasktune.callback import Callback, TrialView, TrialViews
from dasktune.errors import ConfigError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trial.metrics import flatten
from dasktune.trial.status import PublicStatus
from dasktune.version import __version__

__all__ = ["OpenTelemetryCallback"]

#: Maximum number of characters of a text in an attribute.
_LONGEST: Final = 1000


class _TrialSpans:
    """The open spans of a trial."""

    def __init__(self, whole: Any, trial: TrialView) -> None:
        self.trial_id = trial.trial_id
        #: The span of the trial.
        self.whole = whole
        #: The span of its stay on a worker; None while it is on none.
        self.stay: Any = None
        self.stays = 0
        self.failures = trial.num_failures


class OpenTelemetryCallback(Callback):
    """Makes a span of the experiment, one of each trial, and one of each stay of it on a worker.

    A stay begins when the trial starts or resumes on a worker. It ends when the trial ends, is
    paused, fails, or loses its worker. The span of the trial has events for checkpoints, failures,
    losses, pauses and its end with the reason. Results make no events, because there may be too
    many. A later driver of a restored experiment begins a new trace, and its experiment span names
    the earlier one. OpenTelemetry exports a span when it ends, so spans that are open when a driver
    is killed are lost.

    Hooks run in the driver's loop, so the provider's processor must export from a thread, as
    OpenTelemetry's ``BatchSpanProcessor`` does. Needs ``pip install opentelemetry-sdk`` and an
    exporter.

    Parameters
    ----------
    tracer_provider : opentelemetry.trace.TracerProvider, optional
        The provider of the tracer; by default the global one. It is not stored with the experiment:
        a later driver uses its own global one.

    Raises
    ------
    ConfigError
        If OpenTelemetry is not installed.

    Examples
    --------
    >>> import dasktune as tune
    >>> run_config = tune.RunConfig(callbacks=[OpenTelemetryCallback()])  # doctest: +SKIP
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        _trace_api()
        self._provider = tracer_provider
        self._clear()

    def _clear(self) -> None:
        self._tracer: Any = None
        #: The span of the experiment; None while none is open.
        self._experiment: Any = None
        #: The ID of its trace, which the last snapshot needs after the span has ended.
        self._trace = ""
        self._spans: dict[str, _TrialSpans] = {}
        #: Those with an open stay: there may be many more trials that wait or are paused.
        self._staying: dict[str, _TrialSpans] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tracers and open spans cannot be pickled, and belong to this process.
        empty: dict[str, Any] = {"_provider": None, "_tracer": None, "_experiment": None, "_trace": ""}
        empty |= {"_spans": {}, "_staying": {}}
        return {**self.__dict__, **empty}

    def setup(self, *args: Any, **info: Any) -> None:
        """Begin the span of the experiment."""
        self._clear()
        self._tracer = _trace_api().get_tracer("dasktune", __version__, tracer_provider=self._provider)
        self._experiment = self._tracer.start_span("experiment")
        context = self._experiment.get_span_context()
        self._trace = f"{context.trace_id:032x}" if context.is_valid else ""  # without a provider

    def get_state(self) -> dict[str, Any] | None:
        """Return the trace, which the trace of a later driver names."""
        return {"trace": self._trace} if self._trace else None

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Name the trace of the earlier driver, whose open spans are lost if it was killed."""
        earlier = state.get("trace")
        if isinstance(earlier, str) and self._experiment is not None:
            self._experiment.set_attribute("dasktune.earlier_trace", earlier)

    def on_trial_start(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Begin the span of a stay, and before the first one that of the trial."""
        if self.replayed:
            return
        spans = self._spans.get(trial.trial_id)
        if spans is None:
            attributes = {"dasktune.trial_id": trial.trial_id, "dasktune.trainable": trial.trainable_name}
            whole = self._begin("trial", self._experiment, attributes)
            spans = self._spans[trial.trial_id] = _TrialSpans(whole, trial)
        # The trial may have been paused or resized and started again within one step of the loop.
        self._leave(spans, "another start")
        spans.stays += 1
        of_stay: dict[str, Any] = {
            "dasktune.trial_id": trial.trial_id,
            "dasktune.worker": trial.worker,
            "dasktune.stay": spans.stays,
            **_config_attributes(trial.config),
        }
        spans.stay = self._begin("stay", spans.whole, of_stay)
        self._staying[trial.trial_id] = spans

    def on_trial_restore(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Note that the trial resumes from a checkpoint."""
        self._note(trial, "resumed from a checkpoint")

    def on_checkpoint(
        self, iteration: int, trials: TrialViews, trial: TrialView, checkpoint: Checkpoint, **info: Any
    ) -> None:
        """Note a checkpoint."""
        at = trial.last_result.get("training_iteration", 0)
        self._note(trial, "saved a checkpoint", {"dasktune.training_iteration": at})

    def on_trial_recover(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """Note a failure or a loss, and end the span of the stay."""
        spans = self._spans.get(trial.trial_id)
        if spans is None or self.replayed:
            return
        has_failed = trial.num_failures > spans.failures
        spans.failures = trial.num_failures
        what = "failed" if has_failed else "lost"
        text = (trial.error_message or "") if has_failed else trial.worker
        self._note(trial, what, {"dasktune.error" if has_failed else "dasktune.worker": text})
        self._end_stay(spans, f"{what}: {text}" if text else what, is_error=True)

    def on_step_end(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """End the spans of stays that have ended without a hook of their own."""
        for trial_id, spans in list(self._staying.items()):
            status = trials.named(trial_id).status
            if status is not PublicStatus.RUNNING:
                self._leave(spans, status.value.lower())

    def on_trial_complete(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """End the spans of a trial that has not failed."""
        self._end_trial(trial, is_error=False)

    def on_trial_error(self, iteration: int, trials: TrialViews, trial: TrialView, **info: Any) -> None:
        """End the spans of a trial that has failed."""
        self._end_trial(trial, is_error=True)

    def on_experiment_end(self, trials: TrialViews, **info: Any) -> None:
        """End the span of the experiment and those of trials that have not ended."""
        for spans in self._spans.values():
            self._end_stay(spans, "the run ended")
            spans.whole.add_event("the run ended")
            spans.whole.end()
        self._spans = {}
        if self._experiment is not None:
            counts = dict.fromkeys(PublicStatus, 0)
            for trial in trials:
                counts[trial.status] += 1
            for status, count in counts.items():
                self._experiment.set_attribute(f"dasktune.trials.{status.value.lower()}", count)
            self._experiment.end()
            self._experiment = None

    def _end_trial(self, trial: TrialView, *, is_error: bool) -> None:
        if self.replayed:
            return
        spans = self._spans.pop(trial.trial_id, None)
        if spans is None:  # it has ended before it started
            return
        reason = (trial.error_message or trial.reason) if is_error else trial.reason
        self._end_stay(spans, reason, is_error=is_error)
        iteration = trial.last_result.get("training_iteration", 0)
        spans.whole.set_attribute("dasktune.status", trial.status.value)
        spans.whole.set_attribute("dasktune.training_iteration", iteration)
        name = "failed" if is_error else "stopped" if reason else "ended"
        spans.whole.add_event(name, {"dasktune.reason": reason[:_LONGEST]})
        if is_error:
            _mark_error(spans.whole, reason)
        spans.whole.end()

    def _begin(self, name: str, parent: Any, attributes: Mapping[str, Any]) -> Any:
        context = _trace_api().set_span_in_context(parent)
        return self._tracer.start_span(name, context=context, attributes=attributes)

    def _note(self, trial: TrialView, name: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Add an event to the span of a trial."""
        spans = self._spans.get(trial.trial_id)
        if spans is not None and not self.replayed:
            spans.whole.add_event(name, _cut(attributes or {}))

    def _leave(self, spans: _TrialSpans, reason: str) -> None:
        """End the span of a stay that a decision of the scheduler or the user has ended."""
        if spans.stay is not None:
            spans.whole.add_event("left its worker", {"dasktune.reason": reason})
            self._end_stay(spans, reason)

    def _end_stay(self, spans: _TrialSpans, reason: str, *, is_error: bool = False) -> None:
        """End the span of a trial's stay, if there is one."""
        stay, spans.stay = spans.stay, None
        self._staying.pop(spans.trial_id, None)
        if stay is not None:
            stay.set_attribute("dasktune.reason", reason[:_LONGEST])
            if is_error:
                _mark_error(stay, reason)
            stay.end()


def _trace_api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigError("OpenTelemetry is not installed: pip install opentelemetry-sdk") from error
    return trace


def _mark_error(span: Any, reason: str) -> None:
    api = _trace_api()
    span.set_status(api.Status(api.StatusCode.ERROR, reason[:_LONGEST]))


def _config_attributes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that attributes can have: numbers, texts and bools."""
    return _cut({f"dasktune.config.{name}": value for name, value in flatten(config).items()})


def _cut(attributes: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in attributes.items() if isinstance(value, bool | int | float | str)}
    return {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in plain.items()}
