"""Scripts that a browser runs for the table of trials: the filter and the details of a trial.

The filter's language is described in `dasktune.results.trial_filter`; `trial_filter.js` implements
it for the browser.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

__all__ = ["FILTER_TABLE", "FILTER_WHILE_TYPING", "SHOW_SELECTED"]

#: Shows the rows for which the filter holds; an invalid filter shows all rows and an error message.
#: Arguments: the models; `names`, pairs of a filter's name and a column of the source; and `fixed`,
#: pairs of a filter's name and a value.
FILTER_TABLE: Final = (
    files(__package__).joinpath("trial_filter.js").read_text(encoding="utf-8")
    + """
const valueOf = {
  status: (i) => source.data.status[i] === "STOPPED" ? ["STOPPED", "TERMINATED"]
    : source.data.status[i],
  worker: (i) => [source.data.address[i], source.data.worker[i]],
}
const columns = new Map(names.map(
  ([name, column]) => [name, valueOf[column] ?? ((i) => source.data[column][i])]))
for (const [name, value] of fixed) columns.set(name, () => value)
let holds = () => true, wrong = ""
try {
  if (trim(box.value)) holds = parseFilter(box.value, columns, (i) => source.data.all[i])
} catch (error) {
  if (!(error instanceof FilterError)) throw error
  wrong = error.message
}
const indices = []
for (let i = 0; i < source.data.trial.length; i++) {
  if (holds(i)) indices.push(i)
}
view.filter = new (Bokeh.Models.get("IndexFilter"))({indices})
source.change.emit()
note.styles = wrong ? {color: "#a40e26"} : {}
note.text = wrong || indices.length + " of " + source.data.trial.length + " trials"
"""
)

#: Shows the details of the selected trial.
SHOW_SELECTED: Final = """
const i = source.selected.indices[0]
if (i === undefined) return
text.text = source.data.detail[i]
const begin = offsets[i], end = offsets[i + 1]
curve.data = {x: xs.slice(begin, end), y: ys.slice(begin, end)}
figure.title.text = source.data.trial[i]
"""

#: Filters at each key press. `box.value` follows `box.value_input` only when the box loses focus.
FILTER_WHILE_TYPING: Final = (
    "if (box.value !== box.value_input) { box.value = box.value_input; return }\n" + FILTER_TABLE
)
