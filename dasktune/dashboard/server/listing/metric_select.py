"""The choice of a metric that an experiment's pages show instead of its goal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

from bokeh.models import CustomJS, InlineStyleSheet, Select

from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.report.style import INPUT
from dasktune.results.result import is_auto_filled
from dasktune.trial.metrics import Mode, flatten, number

#: Maximum number of metrics offered, of trials whose last results are read for their names, and of
#: characters of a name.
_MOST_METRICS: Final = 60
_MOST_TRIALS: Final = 20
_MAX_NAME: Final = 500

_OWN: Final = ("", "the goal of the experiment")

#: Opens the pages of the chosen metric. Arguments: `choice`.
_OPEN: Final = """
const address = new URLSearchParams(window.location.search)
for (const name of ["metric", "mode"]) address.delete(name)
if (choice.value) {
  const [metric, mode] = JSON.parse(choice.value)
  address.set("metric", metric)
  address.set("mode", mode)
}
window.location.search = "?" + address
"""


def chosen_metric(arguments: Mapping[str, Sequence[bytes]]) -> tuple[str, Mode] | None:
    """Return the metric and the mode in an address; None without a valid pair.

    Parameters
    ----------
    arguments : mapping of str to sequence of bytes
        The arguments of the address, which any browser may send.
    """
    metric, mode = (arguments.get(name, [b""])[0].decode("utf-8", "replace") for name in ("metric", "mode"))
    if not 0 < len(metric) <= _MAX_NAME or mode not in ("min", "max"):
        return None
    return metric, cast("Mode", mode)


class MetricSelect:
    """A drop-down list of the metrics that trials have reported, for one viewer.

    Parameters
    ----------
    shown : tuple of str, optional
        The metric and the mode that the pages show instead of the goal.

    Attributes
    ----------
    root : Model
        The list.
    """

    def __init__(self, shown: tuple[str, str] | None) -> None:
        self._value = json.dumps(list(shown)) if shown else ""
        self._names: list[str] | None = None
        options = [_OWN, *([(self._value, _text(*shown))] if shown else [])]
        # Bokeh shows options as plain text, never as HTML.
        self.root: Any = Select(
            title="Metric shown",
            value=self._value,
            options=options,
            name="metric",
            width=320,
            stylesheets=[InlineStyleSheet(css=INPUT)],
        )
        self.root.js_on_change("value", CustomJS(args={"choice": self.root}, code=_OPEN))

    def update(self, projection: ExperimentProjection) -> None:
        """Offer the metrics of the last results of some trials.

        Parameters
        ----------
        projection : ExperimentProjection
            The experiment.
        """
        names = dict.fromkeys(
            name
            for trial in islice(projection.changed_since(0), _MOST_TRIALS)
            for name, value in flatten(trial.metrics).items()
            if not is_auto_filled(name) and len(name) <= _MAX_NAME and number(value) is not None
        )
        # Metrics are added, not removed: trials may report different ones.
        known = list(dict.fromkeys([*(self._names or ()), *names]))[:_MOST_METRICS]
        if known == self._names:
            return
        self._names = known
        pairs = [(name, mode) for name in known for mode in ("min", "max")]
        options = [_OWN, *((json.dumps(list(one)), _text(*one)) for one in pairs)]
        if self._value and self._value not in [value for value, _ in options]:
            options.insert(1, (self._value, _text(*json.loads(self._value))))
        self.root.options = options


def _text(metric: str, mode: str) -> str:
    better = "lower" if mode == "min" else "higher"
    return f"{label(metric, 60)}, {better} is better"
