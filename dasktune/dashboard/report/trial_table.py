"""The table of trials with its filter and the details of one trial; it needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from math import inf, nan
from typing import Any, Final

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import (
    AllIndices,
    Button,
    CDSView,
    ColumnDataSource,
    CustomJS,
    CustomJSFilter,
    DataTable,
    HTMLTemplateFormatter,
    InlineStyleSheet,
    NumberFormatter,
    Paragraph,
    ScientificFormatter,
    StringFormatter,
    TableColumn,
    TextInput,
)

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.figures.theme import CONTRAST, goal_name, new_figure
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.filter_columns import (
    RESERVED_NAMES,
    filter_text,
    message_text,
    searchable_text,
    trial_name,
    worker_names,
)
from dasktune.dashboard.model.parameter_axis import ParameterAxis, parameter_axes, parameter_names
from dasktune.dashboard.model.row_cache import rows_of
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.dashboard.report.failed_trials import failure_order
from dasktune.dashboard.report.style import INPUT, TABLE
from dasktune.dashboard.report.table_scripts import (
    DOWNLOAD_CSV,
    FILTER_TABLE,
    FILTER_WHILE_TYPING,
    FIRST_FILTER,
    KEEP_FOCUS,
    SHOW_SELECTED,
)
from dasktune.dashboard.report.trial_detail import text_box, trial_text
from dasktune.text.formatting import plural
from dasktune.trial.metrics import number

#: Maximum number of rows: the newest failures, the best trials, and the newest other trials.
MOST_ROWS: Final = 2_000
#: The share of rows for failures.
_ERRORS: Final = 0.15
#: Maximum number of parameters with a visible column. The filter accepts all parameters.
_MOST_PARAMETERS: Final = 8
_POINTS: Final = 50
#: Pixels of a row and of the heading with the scroll bar, and the most rows that get a height.
_ROW_HEIGHT: Final = 25
_HEAD_HEIGHT: Final = 48
_MOST_SHOWN: Final = 60

#: Cells as HTML. `<%- %>` escapes the value.
_STATUS_CELL: Final = '<span class="dt-status dt-<%- value %>"><%- value %></span>'
_LONG_CELL: Final = '<span title="<%- value %>"><%- value %></span>'
#: Larger integers are not exact as 64-bit floating-point numbers.
_MAX_EXACT: Final = 2**53

#: Columns of the source, by their names on the command line and by other names.
_FIELDS: Final = {
    "trial_id": "trial",
    "status": "status",
    "iteration": "iteration",
    "best": "best",
    "runtime_s": "seconds",
    "reason": "reason",
    "error": "error",
    "worker": "worker",
}
_ALIASES: Final = {
    "trial": "trial",
    "seconds": "seconds",
    "training_iteration": "iteration",
    "last": "last",
    "rank": "rank",
    "why": "why",
}


def trial_table(projection: ExperimentProjection, *, live: bool = False, most: int | None = None) -> Any:
    """Return the table, its filter and the details of the selected trial.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    live : bool, default=False
        Whether a server updates the rows and shows the details itself. The result then has no
        details, and the rows have a column ``place`` with the index of the trial.
    most : int, optional
        Maximum number of rows; `MOST_ROWS` by default.
    """
    return table_spec(projection, live=live, most=most).build()


def table_spec(
    projection: ExperimentProjection, *, live: bool = False, most: int | None = None
) -> FigureSpec:
    """Return the spec of :func:`trial_table`; the parameters are the same."""
    most = MOST_ROWS if most is None else most
    trials = (
        _stable_rows(projection, most)
        if live
        else _best_first(projection, _selected_trials(projection, most))
    )
    # Columns must not appear and disappear while a viewer reads the table.
    wanted, fixed = _stable_columns(projection) if live else (None, ())
    parameters = parameter_axes(projection, trials, wanted)
    if not live:
        shown = {one.name for one in parameters}
        common = parameter_names(projection)[1]
        fixed = tuple((name, filter_text(common[name])) for name in common if name not in shown)
    data = _data(projection, trials, parameters)
    if live:
        data["place"] = [trial.index for trial in trials]
    else:
        data["detail"] = [trial_text(projection, trial) for trial in trials]
    left_out = len(projection.trials) - len(trials)
    columns = tuple(
        (one.name, _kind(one) if place < _MOST_PARAMETERS else "") for place, one in enumerate(parameters)
    )
    settings: dict[tuple[str, str], Any] = {("table frame", "styles"): frame_styles(len(trials))}
    if left_out:
        settings["left out", "text"] = (
            f"{left_out:,} of {len(projection.trials):,} trials are left out to limit the "
            f"size. The table has the failed trials (the last {int(most * _ERRORS)}), the best and "
            "the newest."
        )
    return FigureSpec(
        draw=lambda spec: _draw(spec, projection, () if live else trials),
        structure=(live, _goals(projection), columns, fixed, left_out > 0, live or len(trials)),
        sources={"trials": data},
        settings=settings,
    )


def frame_styles(rows: int) -> dict[str, str]:
    """Return the style of a frame that is as high as its table, if the window is high enough.

    Parameters
    ----------
    rows : int
        The number of rows.
    """
    height = _HEAD_HEIGHT + _ROW_HEIGHT * min(max(rows, 3), _MOST_SHOWN)
    return {"height": f"min({height}px, max(62vh, 220px))"}


def _kind(parameter: ParameterAxis) -> str:
    """Return the kind of a parameter's values: text, whole or real."""
    if parameter.categories:
        return "text"
    values = parameter.values[np.isfinite(parameter.values)]
    return "whole" if (values == np.round(values)).all() else "real"


def _goals(projection: ExperimentProjection) -> tuple[str, ...]:
    """Return the names of the goals; at least one, as the table needs a column."""
    return tuple(projection.metrics) or (goal_name(projection),)


def _stable_columns(projection: ExperimentProjection) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the parameters with columns, and the values of constant ones without a column.

    Constant parameters fill the remaining columns: at the beginning, all parameters are constant.
    """
    names, common = parameter_names(projection)
    if len(names) > _MOST_PARAMETERS:
        names.sort(key=lambda name: name in common)
    varying = len(names) - len(common)
    columns = max(varying, _MOST_PARAMETERS)
    return names[:columns], tuple((name, filter_text(common[name])) for name in names[columns:])


def _draw(spec: FigureSpec, projection: ExperimentProjection, trials: Sequence[TrialProjection]) -> Any:
    live, goals, parameters, fixed, _, _ = spec.structure
    source = spec.source("trials")
    first: Any = CustomJSFilter(code=FIRST_FILTER) if live else AllIndices()
    view = CDSView(filter=first)
    table = DataTable(
        source=source,
        view=view,
        columns=_columns(goals, parameters[:_MOST_PARAMETERS]),
        index_position=None,
        # The columns keep their widths; the table scrolls.
        autosize_mode="none",
        reorderable=False,
        # A viewer who reads a row must not be taken to another one by each update.
        scroll_to_selection=False,
        sizing_mode="stretch_both",
        stylesheets=[InlineStyleSheet(css=TABLE)],
    )
    if live:
        first.args = {"table": table}
    # The height belongs to the frame: a change of the table itself would build it again.
    frame = column(
        table, name="table frame", sizing_mode="stretch_width", styles=spec.settings["table frame", "styles"]
    )
    source.selected.js_on_change("indices", CustomJS(args={"table": table}, code=KEEP_FOCUS))
    heads = [
        (title, field)
        for field, title, _ in _titles(goals, [name for name, _ in parameters], whole_names=True)
    ]
    parts = [_filter(table, *_fields(goals, parameters, fixed), live, heads), frame]
    if not live:
        parts.append(_details(projection, trials, source))
    text = spec.settings.get(("left out", "text"))
    if text is not None:
        parts.insert(1, Paragraph(text=text, name="left out", sizing_mode="stretch_width"))
    return column(*parts, sizing_mode="stretch_width")


def _fields(
    goals: Sequence[str], parameters: Sequence[tuple[str, str]], fixed: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return columns of the source and fixed values by the names that a filter accepts.

    Names have the same precedence as on the command line: fields, metrics, parameters, other names.
    """
    fields = dict(_FIELDS)
    for place, goal in enumerate(goals):
        if goal not in RESERVED_NAMES:
            fields[goal] = _goal_column("last", place)
    values: dict[str, str] = {}
    for place, (name, _) in enumerate(parameters):
        fields[f"config/{name}"] = f"p{place}"
        if name not in RESERVED_NAMES:
            fields.setdefault(name, f"p{place}")
    for name, value in fixed:
        values[f"config/{name}"] = value
        if name not in RESERVED_NAMES and name not in fields:
            values[name] = value
    others = [
        (f"{what} {goal}", _goal_column(what, place))
        for what in ("best", "last")
        for place, goal in enumerate(goals)
    ]
    for name, column_name in (*others, *_ALIASES.items()):
        if name not in values:
            fields.setdefault(name, column_name)
    return list(fields.items()), list(values.items())


def _goal_column(what: str, goal: int) -> str:
    return f"{what}{goal}" if goal else what


def _filter(
    table: Any,
    fields: Sequence[tuple[str, str]],
    fixed: Sequence[tuple[str, str]],
    live: bool,
    heads: Sequence[tuple[str, str]],
) -> Any:
    """Return the box of the filter with a button, and below it the number of matching trials."""
    source = table.source
    count = len(source.data["trial"])
    note = Paragraph(text=f"{count:,} {plural('trial', count)}", disable_math=True, name="filter note")
    box = TextInput(
        title="Filter the trials",
        placeholder='status:ERROR   best > 0.9 and iteration >= 9   "any words"',
        sizing_mode="stretch_width",
        name="filter",
        stylesheets=[_input_style()],
    )
    arguments = {"source": source, "table": table, "view": table.view, "box": box, "note": note}
    arguments |= {"names": [list(one) for one in fields], "fixed": [list(one) for one in fixed]}
    arguments |= {"noun": "trial", "sort": ["rank", True]}
    box.js_on_change("value", CustomJS(args=arguments, code=FILTER_TABLE))
    box.js_on_change("value_input", CustomJS(args=arguments, code=FILTER_WHILE_TYPING))
    if live:
        for change in ("change:data", "patching", "streaming"):
            source.js_on_change(change, CustomJS(args=arguments, code=FILTER_TABLE))
    download = Button(
        label="Download CSV", width=120, align="end", name="download", stylesheets=[_input_style()]
    )
    saved = {"source": source, "view": table.view, "filename": "trials.csv"}
    download.js_on_click(CustomJS(args={**saved, "heads": [list(one) for one in heads]}, code=DOWNLOAD_CSV))
    head = row(box, download, sizing_mode="stretch_width")
    return column(head, note, sizing_mode="stretch_width")


def _selected_trials(projection: ExperimentProjection, most: int) -> list[TrialProjection]:
    if len(projection.trials) <= most:
        return list(projection.trials)
    failed = sorted(
        (trial for trial in projection.trials if trial.status == "ERROR"), key=failure_order, reverse=True
    )
    share = most // 2 // (len(projection.metrics) or 1)
    goals = range(len(projection.metrics))
    best = [trial for goal in goals for trial in projection.ranked(goal)[:share]]
    some = [*failed[: int(most * _ERRORS)], *best, *reversed(projection.trials)]
    chosen = list(dict.fromkeys(some))[:most]
    return sorted(chosen, key=lambda trial: trial.index)


def _best_first(projection: ExperimentProjection, trials: Sequence[TrialProjection]) -> list[TrialProjection]:
    """Return trials in the order of their ranks; those without a value come last."""
    ranks = _ranks(projection)
    return sorted(trials, key=lambda trial: ranks.get(trial.index, inf))


def _ranks(projection: ExperimentProjection) -> dict[int, int]:
    """Return the rank of each trial with a value of the first goal, from 1, by index of the trial.

    Without a mode no trial is better than another one, so there are no ranks.
    """
    if projection.mode is None:
        return {}
    return {trial.index: rank for rank, trial in enumerate(projection.ranked(), 1)}


def _stable_rows(projection: ExperimentProjection, most: int) -> list[TrialProjection]:
    """Return the trials of :func:`_selected_trials`; each trial stays in the same row."""
    trials = _selected_trials(projection, most)
    # One list per size: another page may show fewer rows.
    seats: list[int] = projection.memo.setdefault(f"seats of {most}", [])
    places = {trial.index for trial in trials}
    seated = set(seats)
    # The first rows are ordered here; later the browser sorts them.
    some = trials if seats else _best_first(projection, trials)
    coming = iter([trial.index for trial in some if trial.index not in seated])
    for seat, place in enumerate(seats):
        if place not in places:
            seats[seat] = next(coming)
    seats.extend(coming)
    return [projection.trials[place] for place in seats]


def _data(
    projection: ExperimentProjection, trials: Sequence[TrialProjection], parameters: Sequence[ParameterAxis]
) -> dict[str, Any]:
    goals = len(_goals(projection))
    # The number of goals may change: the first result may choose the goal.
    rows = rows_of(projection, f"trial table of {goals}", trials, partial(_row, goals=goals))
    shown = ("trial", "status", "worker", "address", "why", "reason", "error", "all")
    names = (*shown, "config", "texts", "numbers")
    by_name = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    numbers = np.array(by_name.pop("numbers"), dtype=np.float64).reshape(len(rows), 3 + 2 * goals)
    configs, texts = by_name.pop("config"), by_name.pop("texts")
    data: dict[str, Any] = {name: list(column) for name, column in by_name.items()}
    ranks = _ranks(projection)
    data["rank"] = np.array([ranks.get(trial.index, nan) for trial in trials], dtype=np.float64)
    data["iteration"] = numbers[:, 0]
    running = np.where(np.isnan(numbers[:, 2]), 0.0, projection.now - numbers[:, 2])
    data["seconds"] = np.round(numbers[:, 1] + running, 3)
    for goal in range(goals):
        data[_goal_column("best", goal)] = numbers[:, 3 + 2 * goal]
        data[_goal_column("last", goal)] = numbers[:, 4 + 2 * goal]
    for i, one in enumerate(parameters):
        data[f"p{i}"] = _cells(one, configs, texts)
    return data


def _cells(
    parameter: ParameterAxis, configs: Sequence[dict[str, Any]], texts: Sequence[dict[str, str]]
) -> Any:
    """Return the values of a parameter for a filter: numbers, or texts if one would be rounded."""
    name, values = parameter.name, parameter.values
    if parameter.categories or (np.abs(values) > _MAX_EXACT).any():
        return [text.get(name, "") for text in texts]
    for place in map(int, np.flatnonzero(np.isnan(values))):
        # NaN stands for infinity in an axis: the configuration has the original value.
        if name in configs[place]:
            values[place] = number(configs[place][name])
    return values


def _row(trial: TrialProjection, goals: int) -> tuple[Any, ...]:
    """Return the row of a trial, in the order of `_data`."""
    attempt = trial.attempt
    address, worker = worker_names(trial)
    closed = sum(one.end - one.start for one in trial.attempts if one.end is not None)
    began = nan if attempt is None else attempt.start
    values = [one for goal in range(goals) for one in (trial.best_value(goal), trial.last_value(goal))]
    return (
        trial_name(trial),
        trial.outcome,
        worker,
        address,
        message_text(trial.error or trial.reason),
        message_text(trial.reason),
        message_text(trial.error),
        searchable_text(trial),
        trial.config,
        {name: filter_text(value) for name, value in trial.config.items()},
        (trial.iteration, closed, began, *values),
    )


def _titles(
    goals: Sequence[str], parameters: Sequence[str], *, whole_names: bool = False
) -> list[tuple[str, str, int]]:
    """Return the column of the source, the title and the width in pixels of each column."""
    return [
        ("rank", "rank", 55),
        ("trial", "trial", 110),
        ("status", "status", 110),
        *(
            (_goal_column(what, place), f"{what} {label(goal)}", 100)
            for place, goal in enumerate(goals)
            for what in ("best", "last")
        ),
        ("iteration", "iteration", 75),
        ("seconds", "seconds", 75),
        *((f"p{i}", label(name, 200 if whole_names else 30), 100) for i, name in enumerate(parameters)),
        ("why", "reason or error", 420),
        ("worker", "worker", 130),
    ]


def _columns(goals: Sequence[str], parameters: Sequence[tuple[str, str]]) -> list[Any]:
    text, whole = StringFormatter(), NumberFormatter(format="0,0", nan_format="")
    number = ScientificFormatter(precision=5, power_limit_low=-4, power_limit_high=6, nan_format="")
    small = ScientificFormatter(precision=4, power_limit_low=-3, power_limit_high=6)
    kinds = {"text": text, "whole": StringFormatter(), "real": small}
    formatters: dict[str, Any] = {
        "rank": whole,
        "status": HTMLTemplateFormatter(template=_STATUS_CELL),
        "iteration": whole,
        "seconds": NumberFormatter(format="0.00"),
        "why": HTMLTemplateFormatter(template=_LONG_CELL),
        **{_goal_column(what, place): number for place in range(len(goals)) for what in ("best", "last")},
        **{f"p{i}": kinds[kind] for i, (_, kind) in enumerate(parameters)},
    }
    # Bokeh reads the titles of a table, and nothing else in it, as HTML.
    return [
        TableColumn(field=field, title=escape(title), width=width, formatter=formatters.get(field, text))
        for field, title, width in _titles(goals, [name for name, _ in parameters])
    ]


def _input_style() -> Any:
    return InlineStyleSheet(css=INPUT)


def _details(
    projection: ExperimentProjection, trials: Sequence[TrialProjection], source: ColumnDataSource
) -> Any:
    pieces = [_thinned_curve(trial) for trial in trials]
    offsets = np.cumsum([0, *(len(xs) for xs, _ in pieces)])
    xs = np.concatenate([np.empty(0), *(xs for xs, _ in pieces)]).astype(np.float32)
    ys = np.concatenate([np.empty(0), *(ys for _, ys in pieces)]).astype(np.float32)
    curve = ColumnDataSource({"x": [], "y": []})
    figure = new_figure(
        "learning curve", "training iteration", goal_name(projection), height=300, tools="save,reset"
    )
    figure.line("x", "y", source=curve, line_width=2, color=CONTRAST[0])
    figure.scatter("x", "y", source=curve, size=4, color=CONTRAST[0])
    why = "Select a trial to see its configuration, its curve, and why it ended."
    # The columns of ranks need the whole width.
    is_table = any(trial.ranks is not None for trial in trials)
    text = text_box(why, name="detail", is_table=is_table)
    arguments = {"source": source, "text": text, "curve": curve, "figure": figure}
    arguments |= {"xs": xs, "ys": ys, "offsets": offsets.tolist()}
    source.selected.js_on_change("indices", CustomJS(args=arguments, code=SHOW_SELECTED))
    around = column if is_table else row
    return around(text, figure, sizing_mode="stretch_width")


def _thinned_curve(trial: TrialProjection) -> tuple[Any, Any]:
    if not trial.curves:
        return np.empty(0), np.empty(0)
    xs, ys = trial.curves[0].iterations, trial.curves[0].values
    keep = np.arange(len(xs))[:: -(-len(xs) // _POINTS) or 1]
    return xs[keep], ys[keep]
