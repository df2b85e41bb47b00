"""The table of all trials, with a filter and the details of one; it works without a server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from math import nan
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
    ScientificFormatter,
    StringFormatter,
    TableColumn,
    TextInput,
)

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.sketch import Sketch
from dasktune.dashboard.figures.theme import CONTRAST, goal_name, new_figure
from dasktune.dashboard.parameters import Parameter, names_of, parameters_of
from dasktune.dashboard.report.failures import failed_last
from dasktune.dashboard.report.trial_detail import detail, trial_text
from dasktune.dashboard.report.trial_filter import FILTER, SELECT, TYPING
from dasktune.dashboard.rows import rows_of
from dasktune.dashboard.text import shown, value_text
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["MOST_ROWS", "table_sketch", "trial_table"]

#: Trials in the table: those that failed last, the best, and the newest of the others.
MOST_ROWS: Final = 2_000
#: Of them, the share of those that failed.
_ERRORS: Final = 0.15
#: Parameters that have a column; the filter knows the others, too.
_MOST_PARAMETERS: Final = 8
_POINTS: Final = 50

#: What the command line calls the columns.
_ALIASES: Final = (
    ("trial_id", "trial"),
    ("training_iteration", "iteration"),
    ("runtime_s", "seconds"),
    ("reason", "why"),
    ("error", "why"),
)


def trial_table(chronicle: Chronicle, *, live: bool = False, most: int | None = None) -> Any:
    """Return the table, its filter and the details of the trial that is selected.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    live : bool, default=False
        Whether there is a server, which changes the rows, and shows the details itself: then only
        the filter is there, and a column ``place`` says which trial a row is.
    most : int, optional
        The most rows; `MOST_ROWS` by default.
    """
    return table_sketch(chronicle, live=live, most=most).drawn()


def table_sketch(chronicle: Chronicle, *, live: bool = False, most: int | None = None) -> Sketch:
    """Return what :func:`trial_table` shows, with the same parameters."""
    most = MOST_ROWS if most is None else most
    logs = _seated(chronicle, most) if live else _chosen(chronicle, most)
    # Columns must not come and go while somebody looks.
    wanted, fixed = _lasting_names(chronicle) if live else (None, ())
    parameters = parameters_of(chronicle, logs, wanted)
    data = _data(chronicle, logs, parameters)
    if live:
        data["place"] = [log.index for log in logs]
    else:
        data["detail"] = [trial_text(chronicle, log) for log in logs]
    left_out = len(chronicle.trials) - len(logs)
    columns = tuple(
        (one.name, _kind(one) if place < _MOST_PARAMETERS else "")
        for place, one in enumerate(parameters)
    )
    settings = {}
    if left_out:
        settings["left out", "text"] = (
            f"{left_out:,} of {len(chronicle.trials):,} trials are left out, to keep this small: "
            f"there are those that failed (the last {int(most * _ERRORS)} of them), the best and "
            "the newest."
        )
    return Sketch(
        draw=lambda sketch: _draw(sketch, chronicle, () if live else logs),
        form=(live, _goals(chronicle), columns, fixed, left_out > 0, live or len(logs)),
        sources={"trials": data},
        settings=settings,
    )


def _kind(parameter: Parameter) -> str:
    """Return how the values of a parameter are written."""
    if parameter.categories:
        return "text"
    values = parameter.values[np.isfinite(parameter.values)]
    return "whole" if (values == np.round(values)).all() else "real"


def _goals(chronicle: Chronicle) -> tuple[str, ...]:
    """Return the names of the goals; there is one column at least."""
    return tuple(chronicle.metrics) or (goal_name(chronicle),)


def _lasting_names(chronicle: Chronicle) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the parameters that need columns, and the values of those that would fill a column.

    Where there is room, those that are the same in all trials have columns, too: at the beginning
    all are.
    """
    names, common = names_of(chronicle)
    if len(names) > _MOST_PARAMETERS:
        names.sort(key=lambda name: name in common)
    varying = len(names) - len(common)
    columns = max(varying, _MOST_PARAMETERS)
    return names[:columns], tuple((name, value_text(common[name])) for name in names[columns:])


def _draw(sketch: Sketch, chronicle: Chronicle, logs: Sequence[TrialLog]) -> Any:
    live, goals, parameters, fixed, _, _ = sketch.form
    source, view = sketch.source("trials"), CDSView(filter=AllIndices())
    table = DataTable(
        source=source,
        view=view,
        columns=_columns(goals, parameters[:_MOST_PARAMETERS]),
        index_position=None,
        # As wide as is needed; the table scrolls.
        autosize_mode="none",
        reorderable=False,
        height=420 if live else min(420, 60 + 26 * max(3, len(logs))),
        sizing_mode="stretch_width",
    )
    parts = [_filter(source, view, _fields(goals, parameters), fixed, live), table]
    if not live:
        parts.append(_details(chronicle, logs, source))
    text = sketch.settings.get(("left out", "text"))
    if text is not None:
        parts.insert(1, Paragraph(text=text, name="left out", sizing_mode="stretch_width"))
    return column(*parts, sizing_mode="stretch_width")


def _fields(goals: Sequence[str], parameters: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return by which names the filter knows which columns.

    Those of the command line are among them; that of a goal is its last value there.
    """
    own = ("trial", "status", "iteration", "best", "last", "seconds", "worker", "why")
    named = [(name, f"p{place}") for place, (name, _) in enumerate(parameters)]
    fields = {name: name for name in own}
    for name, column_name in (
        *((goal, _goal_column("best", place)) for place, goal in enumerate(goals)),
        *named,
        *((f"last {goal}", _goal_column("last", place)) for place, goal in enumerate(goals)),
        *_ALIASES,
    ):
        fields.setdefault(name, column_name)
    # A parameter that is called like something else.
    hidden = [(f"config/{name}", place) for name, place in named if fields[name] != place]
    return [*fields.items(), *hidden]


def _goal_column(what: str, goal: int) -> str:
    return f"{what}{goal}" if goal else what


def _filter(
    source: Any,
    view: Any,
    fields: Sequence[tuple[str, str]],
    fixed: Sequence[tuple[str, str]],
    live: bool,
) -> Any:
    """Return the box for conditions, and what tells how many trials meet them."""
    note = Paragraph(text=f"{len(source.data['trial']):,} trials", disable_math=True)
    box = TextInput(
        placeholder='status:ERROR   best > 0.9 and iteration >= 9   "any words"',
        sizing_mode="stretch_width",
        name="filter",
    )
    told = {"source": source, "view": view, "box": box, "note": note}
    told |= {"names": [list(one) for one in fields], "fixed": [list(one) for one in fixed]}
    box.js_on_change("value", CustomJS(args=told, code=FILTER))
    box.js_on_change("value_input", CustomJS(args=told, code=TYPING + FILTER))
    if live:
        for change in ("change:data", "patching", "streaming"):
            source.js_on_change(change, CustomJS(args=told, code=FILTER))
    return row(box, note, sizing_mode="stretch_width")


def _chosen(chronicle: Chronicle, most: int) -> list[TrialLog]:
    if len(chronicle.trials) <= most:
        return list(chronicle.trials)
    failed = sorted(
        (log for log in chronicle.trials if log.status == "ERROR"), key=failed_last, reverse=True
    )
    share = most // 2 // (len(chronicle.metrics) or 1)
    goals = range(len(chronicle.metrics))
    best = [log for goal in goals for log in chronicle.ranked(goal)[:share]]
    some = [*failed[: int(most * _ERRORS)], *best, *reversed(chronicle.trials)]
    chosen = list(dict.fromkeys(some))[:most]
    return sorted(chosen, key=lambda log: log.index)


def _seated(chronicle: Chronicle, most: int) -> list[TrialLog]:
    """Return the same trials as :func:`_chosen`; each stays in the row in which it was first."""
    logs = _chosen(chronicle, most)
    # Another page may show fewer of them.
    seats: list[int] = chronicle.memo.setdefault(f"seats of {most}", [])
    places = {log.index for log in logs}
    seated = set(seats)
    coming = iter([log.index for log in logs if log.index not in seated])
    for seat, place in enumerate(seats):
        if place not in places:
            seats[seat] = next(coming)
    seats.extend(coming)
    return [chronicle.trials[place] for place in seats]


def _data(
    chronicle: Chronicle, logs: Sequence[TrialLog], parameters: Sequence[Parameter]
) -> dict[str, Any]:
    goals = len(_goals(chronicle))
    # Whoever reports first may decide what the goal is.
    rows = rows_of(chronicle, f"trial table of {goals}", logs, partial(_row, goals=goals))
    names = ("trial", "status", "worker", "why", "all", "config", "numbers")
    told = (
        dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    )
    numbers = np.array(told.pop("numbers"), dtype=np.float64).reshape(len(rows), 3 + 2 * goals)
    configs = told.pop("config")
    data: dict[str, Any] = {name: list(column) for name, column in told.items()}
    data["iteration"] = numbers[:, 0]
    running = np.where(np.isnan(numbers[:, 2]), 0.0, chronicle.now - numbers[:, 2])
    data["seconds"] = np.round(numbers[:, 1] + running, 2)
    for goal in range(goals):
        data[_goal_column("best", goal)] = numbers[:, 3 + 2 * goal]
        data[_goal_column("last", goal)] = numbers[:, 4 + 2 * goal]
    for i, one in enumerate(parameters):
        texts = [config.get(one.name, "") for config in configs] if one.categories else []
        data[f"p{i}"] = texts or one.values
    return data


def _row(log: TrialLog, goals: int) -> tuple[Any, ...]:
    """Return what the table has of a trial, in the order of `_data`."""
    attempt = log.attempt
    closed = sum(one.end - one.start for one in log.attempts if one.end is not None)
    began = nan if attempt is None else attempt.start
    why = shown(log.error or log.reason, 160)
    values = [one for goal in range(goals) for one in (log.best_value(goal), log.last_value(goal))]
    config = {name: value_text(value) for name, value in log.config.items()}
    return (
        shown(log.trial_id, 60),
        log.outcome,
        shown(log.worker.rpartition("//")[2], 60),
        why,
        " ".join((log.trial_id, log.outcome, log.worker, *config.values(), why)),
        config,
        (log.iteration, closed, began, *values),
    )


def _columns(goals: Sequence[str], parameters: Sequence[tuple[str, str]]) -> list[Any]:
    text, whole = StringFormatter(), NumberFormatter(format="0,0")
    number, brief = NumberFormatter(format="0.[00000]"), NumberFormatter(format="0.00")
    small = ScientificFormatter(precision=4, power_limit_low=-3, power_limit_high=6)
    kinds = {"text": text, "whole": StringFormatter(), "real": small}
    made = [
        ("trial", "trial", text, 110),
        ("status", "status", text, 100),
        ("iteration", "iteration", whole, 70),
        *(
            (_goal_column(what, place), f"{what} {shown(goal)}", number, 100)
            for place, goal in enumerate(goals)
            for what in ("best", "last")
        ),
        ("seconds", "seconds", brief, 70),
        *(
            (f"p{i}", shown(name, 30), kinds[kind], 100)
            for i, (name, kind) in enumerate(parameters)
        ),
        ("worker", "worker", text, 130),
        ("why", "reason or error", text, 420),
    ]
    # Of all that a table shows, Bokeh takes the titles alone for HTML.
    return [
        TableColumn(field=field, title=escape(title), width=width, formatter=formatter)
        for field, title, formatter, width in made
    ]


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
    why = "Select a trial to see its configuration, its curve, and why it ended."
    text = detail(why, name="detail")
    told = {"source": source, "text": text, "curve": curve, "figure": figure}
    told |= {"xs": xs, "ys": ys, "offsets": offsets.tolist()}
    source.selected.js_on_change("indices", CustomJS(args=told, code=SELECT))
    return row(text, figure, sizing_mode="stretch_width")


def _piece(log: TrialLog) -> tuple[Any, Any]:
    if not log.curves:
        return np.empty(0), np.empty(0)
    xs, ys = log.curves[0].iterations, log.curves[0].values
    keep = np.arange(len(xs))[:: -(-len(xs) // _POINTS) or 1]
    return xs[keep], ys[keep]
