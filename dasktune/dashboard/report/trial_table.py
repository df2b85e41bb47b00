"""The table of all trials, with a filter and the details of one; it works without a server."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import (
    AllIndices,
    CDSView,
    ColumnDataSource,
    CustomJS,
    DataTable,
    NumberFormatter,
    Paragraph,
    PreText,
    StringFormatter,
    TableColumn,
    TextInput,
)

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.theme import CONTRAST, goal_name, new_figure
from dasktune.dashboard.parameters import Parameter, parameters_of
from dasktune.dashboard.text import printable, shown, value_text
from dasktune.dashboard.trial_log import TrialLog
from dasktune.result import is_auto_filled
from dasktune.trial.metrics import flatten

__all__ = ["DETAIL", "MOST_ROWS", "trial_table", "trial_text"]

#: Trials in the table: the failed ones, the best, and the newest of the others.
MOST_ROWS: Final = 2_000
_MOST_ERRORS: Final = 300
_MOST_PARAMETERS: Final = 8
_POINTS: Final = 50
_MOST_DETAIL: Final = 4_000

#: How the details look.
DETAIL: Final = {"white-space": "pre-wrap", "overflow-wrap": "anywhere", "font-size": "12px"}

#: Shows the rows that meet all conditions. Nothing of a user's is ever run.
_FILTER: Final = """
const fields = new Map(names)
const number = (value) => typeof value === "string" && value.trim() === "" ? NaN : Number(value)
const compare = {
  ">": (a, b) => number(a) > number(b),
  "<": (a, b) => number(a) < number(b),
  ">=": (a, b) => number(a) >= number(b),
  "<=": (a, b) => number(a) <= number(b),
  "=": (a, b) => String(a).toLowerCase() === b.toLowerCase() || number(a) === number(b),
  "!=": (a, b) => !compare["="](a, b),
}
compare[":"] = compare["="]
const tests = [], unknown = []
for (const word of box.value.split(/\\s+/).filter((part) => part !== "")) {
  const found = word.match(/^(.+?)(>=|<=|!=|>|<|=|:)(.*)$/)
  if (found === null) {
    tests.push((i) => source.data.all[i].toLowerCase().includes(word.toLowerCase()))
  } else if (!fields.has(found[1])) {
    unknown.push(found[1])
  } else {
    const values = source.data[fields.get(found[1])]
    tests.push((i) => compare[found[2]](values[i], found[3]))
  }
}
const indices = []
for (let i = 0; i < source.data.trial.length; i++) {
  if (tests.every((test) => test(i))) indices.push(i)
}
view.filter = new (Bokeh.Models.get("IndexFilter"))({indices})
source.change.emit()
note.text = unknown.length > 0
  ? "There is no field " + unknown.join(", ") + ". Fields: " + [...fields.keys()].join(", ")
  : indices.length + " of " + source.data.trial.length + " trials"
"""

#: Shows the trial that is selected.
_SELECT: Final = """
const i = source.selected.indices[0]
if (i === undefined) return
text.text = source.data.detail[i]
const begin = offsets[i], end = offsets[i + 1]
curve.data = {x: xs.slice(begin, end), y: ys.slice(begin, end)}
figure.title.text = source.data.trial[i]
"""


def trial_table(chronicle: Chronicle, *, live: bool = False) -> Any:
    """Return the table, its filter and the details of the trial that is selected.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    live : bool, default=False
        Whether there is a server, which changes the rows, and shows the details itself: then only
        the filter is there, and a column ``place`` says which trial a row is.
    """
    logs = _chosen(chronicle)
    # Columns must not come and go while somebody looks.
    wanted = list(dict.fromkeys(n for log in logs[:50] for n in log.config)) if live else None
    parameters = parameters_of(chronicle, logs, wanted)[:_MOST_PARAMETERS]
    data = _data(chronicle, logs, parameters)
    if live:
        data["place"] = [log.index for log in logs]
    else:
        data["detail"] = [trial_text(chronicle, log) for log in logs]
    source = ColumnDataSource(data)
    view = CDSView(filter=AllIndices())
    table = DataTable(
        source=source,
        view=view,
        columns=_columns(chronicle, parameters),
        index_position=None,
        reorderable=False,
        height=420 if live else min(420, 60 + 26 * max(3, len(logs))),
        sizing_mode="stretch_width",
    )
    left_out = len(chronicle.trials) - len(logs)
    note = Paragraph(text=f"{len(logs):,} of {len(chronicle.trials):,} trials", disable_math=True)
    box = TextInput(
        placeholder="status:ERROR  best>0.9  iteration>=9  any word; a space means and",
        sizing_mode="stretch_width",
        name="filter",
    )
    names = [["trial", "trial"], ["status", "status"], ["iteration", "iteration"], ["best", "best"]]
    names += [["last", "last"], ["seconds", "seconds"], ["worker", "worker"]]
    names += [[one.name, f"p{i}"] for i, one in enumerate(parameters)]
    told = {"source": source, "view": view, "box": box, "note": note, "names": names}
    box.js_on_change("value", CustomJS(args=told, code=_FILTER))
    box.js_on_change("value_input", CustomJS(args=told, code=_LIVE + _FILTER))
    parts = [row(box, note, sizing_mode="stretch_width"), table]
    if live:
        for change in ("change:data", "patching", "streaming"):
            source.js_on_change(change, CustomJS(args=told, code=_FILTER))
    else:
        parts.append(_details(chronicle, logs, source))
    if left_out:
        text = (
            f"{left_out:,} of {len(chronicle.trials):,} trials are left out, to keep this small: "
            f"there are those that failed (at most {_MOST_ERRORS}), the best and the newest."
        )
        parts.insert(1, Paragraph(text=text, sizing_mode="stretch_width"))
    return column(*parts, sizing_mode="stretch_width")


#: While somebody types, the value is not there yet.
_LIVE: Final = "if (box.value !== box.value_input) { box.value = box.value_input; return }\n"


def _chosen(chronicle: Chronicle) -> list[TrialLog]:
    if len(chronicle.trials) <= MOST_ROWS:
        return list(chronicle.trials)
    failed = [log for log in chronicle.trials if log.status == "ERROR"][-_MOST_ERRORS:]
    best = chronicle.ranked()[: MOST_ROWS // 2]
    chosen = list(dict.fromkeys([*failed, *best, *reversed(chronicle.trials)]))[:MOST_ROWS]
    return sorted(chosen, key=lambda log: log.index)


def _data(
    chronicle: Chronicle, logs: Sequence[TrialLog], parameters: Sequence[Parameter]
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "trial": [shown(log.trial_id, 60) for log in logs],
        "status": [log.outcome for log in logs],
        "iteration": [log.iteration for log in logs],
        "best": [log.best_value() for log in logs],
        "last": [log.last_value() for log in logs],
        "seconds": [log.runtime(chronicle.now) for log in logs],
        "worker": [shown(log.worker.rpartition("//")[2], 60) for log in logs],
        "why": [shown(log.error or log.reason, 160) for log in logs],
    }
    for i, one in enumerate(parameters):
        values = [log.config.get(one.name, "") for log in logs]
        data[f"p{i}"] = [value_text(v) for v in values] if one.categories else one.values
    data["all"] = [
        " ".join((log.trial_id, log.outcome, *map(value_text, log.config.values()), why))
        for log, why in zip(logs, data["why"], strict=True)
    ]
    return data


def _columns(chronicle: Chronicle, parameters: Sequence[Parameter]) -> list[Any]:
    text, whole = StringFormatter(), NumberFormatter(format="0,0")
    number, brief = NumberFormatter(format="0.[00000]"), NumberFormatter(format="0.00")
    metric = goal_name(chronicle)
    made = [
        ("trial", "trial", text, 120),
        ("status", "status", text, 90),
        ("iteration", "iteration", whole, 65),
        ("best", f"best {metric}", number, 90),
        ("last", f"last {metric}", number, 90),
        ("seconds", "seconds", brief, 65),
        *(
            (f"p{i}", shown(one.name, 30), text if one.categories else _SCIENTIFIC, 95)
            for i, one in enumerate(parameters)
        ),
        ("worker", "worker", text, 120),
        ("why", "reason or error", text, 320),
    ]
    # Of all that a table shows, Bokeh takes the titles alone for HTML.
    return [
        TableColumn(
            field=field,
            title=escape(title),
            width=width,
            formatter=StringFormatter() if formatter is _SCIENTIFIC else formatter,
        )
        for field, title, formatter, width in made
    ]


_SCIENTIFIC: Final = object()


def trial_text(chronicle: Chronicle, log: TrialLog) -> str:
    """Return all that there is to say of a trial, as text.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    log : TrialLog
        The trial.
    """
    lines = [
        f"{log.trial_id}: {log.outcome}, iteration {log.iteration}",
        *([f"why: {log.reason}"] if log.reason else []),
        f"{log.starts} starts, {log.restores} from a checkpoint, {log.pauses} pauses, "
        f"{log.failures} failures, {log.losses} lost workers, {log.checkpoints} checkpoints",
        *([f"checkpoint: {log.checkpoint}"] if log.checkpoint else []),
        *([f"clone of: {chronicle.trials[log.parent].trial_id}"] if log.parent >= 0 else []),
        "",
        "configuration",
        *(f"  {shown(name, 60)} = {value_text(value, 120)}" for name, value in log.config.items()),
        "",
        "last result",
        *(
            f"  {shown(name, 60)} = {value_text(value, 120)}"
            for name, value in flatten(log.metrics).items()
            if not is_auto_filled(name)
        ),
    ]
    head = "\n".join(printable(line) for line in lines)[:_MOST_DETAIL]
    error = printable(log.traceback or log.error)[-_MOST_DETAIL:]
    return f"{head}\n\nerror\n{error}" if error else head


def _details(chronicle: Chronicle, logs: Sequence[TrialLog], source: ColumnDataSource) -> Any:
    pieces = [_piece(log) for log in logs]
    offsets = np.cumsum([0, *(len(xs) for xs, _ in pieces)])
    xs = np.concatenate([np.empty(0), *(xs for xs, _ in pieces)]).astype(np.float32)
    ys = np.concatenate([np.empty(0), *(ys for _, ys in pieces)]).astype(np.float32)
    curve = ColumnDataSource({"x": [], "y": []})
    figure = new_figure(
        "learning curve", "training iteration", goal_name(chronicle), height=300, tools="save,reset"
    )
    figure.line("x", "y", source=curve, line_width=2, color=CONTRAST[0])
    figure.scatter("x", "y", source=curve, size=4, color=CONTRAST[0])
    text = PreText(
        text="Select a trial to see its configuration, its curve, and why it ended.",
        disable_math=True,
        sizing_mode="stretch_width",
        styles=DETAIL,
        name="detail",
    )
    told = {"source": source, "text": text, "curve": curve, "figure": figure}
    told |= {"xs": xs, "ys": ys, "offsets": offsets.tolist()}
    source.selected.js_on_change("indices", CustomJS(args=told, code=_SELECT))
    return row(text, figure, sizing_mode="stretch_width")


def _piece(log: TrialLog) -> tuple[Any, Any]:
    if not log.curves:
        return np.empty(0), np.empty(0)
    xs, ys = log.curves[0].iterations, log.curves[0].values
    keep = np.arange(len(xs))[:: -(-len(xs) // _POINTS) or 1]
    return xs[keep], ys[keep]
