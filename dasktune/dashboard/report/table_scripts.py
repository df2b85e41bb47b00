"""Scripts that a browser runs for the table of trials: the filter and the details of a trial.

The filter's language is described in `dasktune.results.trial_filter`; `trial_filter.js` implements
it for the browser.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

#: The name of the model whose tags are the trials that a viewer has chosen in figures; see
#: `dasktune.dashboard.server.parts.trial_brush`. A report has none.
BRUSH_NAME: Final = "brush"

#: Keeps the keyboard focus where it is when the selection is shown again. Each update of a table
#: shows the selected rows again; SlickGrid's plug-in for copying cells then gives the focus to the
#: table, and what the user types into the filter is lost. A click on a row still focuses the table.
#: Arguments: `table`.
KEEP_FOCUS: Final = """
const shown = Bokeh.index.find_one(table)
if (shown?.grid) shown.grid.focus = () => {}
"""

#: The filter of a table until `FILTER_TABLE` has run: it shows all rows. It lets that script run as
#: soon as the table is drawn, because the rows of an ended experiment never change after that.
#: Arguments: `table`; Bokeh adds `source`.
FIRST_FILTER: Final = """
let left = 600
const begin = () => {
  if (table.view.filter.type === "IndexFilter") return
  if (Bokeh.index.find_one(table)?.grid) source.properties.data.change.emit()
  else if (left-- > 0) setTimeout(begin, 100)
}
setTimeout(begin)
return null
"""

#: Names the boxes that select rows, which have no label. SlickGrid makes a new box whenever it
#: draws its row. Arguments: `table`; `noun`, what a row is.
LABEL_BOXES: Final = """
const drawn = Bokeh.index.find_one(table)
if (drawn?.grid && !drawn.hasLabels) {
  drawn.hasLabels = true
  const label = () => {
    for (const box of drawn.shadow_el.querySelectorAll("input[type=checkbox]:not([aria-label])")) {
      const row = box.closest(".slick-row")
      const name = row?.querySelector(".slick-cell.l1")?.textContent
      box.setAttribute("aria-label", row ? `Select ${noun} ${name}` : `Select all ${noun}s`)
    }
  }
  new MutationObserver(label).observe(drawn.shadow_el, {childList: true, subtree: true})
  label()
}
"""

#: Sorts a table once by a column, unless the user has sorted it.
_SORT_ONCE: Final = """
const [sortField, isAscending] = sort
if (shown?.grid && !shown.grid.isSortedOnce
    && source.data[sortField].some((value) => value === value && value !== "")) {
  shown.grid.isSortedOnce = true
  const sorted = shown.grid.getColumns().find((one) => one.field === sortField)
  if (sorted && !shown.grid.getSortColumns().length) {
    shown.grid.setSortColumn(sorted.id, isAscending)
    shown.updateGrid()
  }
}
"""

#: Shows the rows for which the filter holds; an invalid filter shows all rows and an error message.
#: Arguments: the models; `sort`, a column and whether it ascends; `noun`, what a row is;
#: `names`, pairs of a filter's name and a column of the source; and `fixed`,
#: pairs of a filter's name and a value.
FILTER_TABLE: Final = (
    files(__package__).joinpath("trial_filter.js").read_text(encoding="utf-8")
    + KEEP_FOCUS
    + _SORT_ONCE
    + """
const valueOf = {
  status: (i) => source.data.status[i] === "STOPPED" ? ["STOPPED", "TERMINATED"]
    : source.data.status[i],
  worker: (i) => [source.data.address[i], source.data.worker[i]],
}
const columns = new Map(names.map(
  ([name, column]) => [name, (column in source.data && valueOf[column]) || ((i) => source.data[column][i])]))
for (const [name, value] of fixed) columns.set(name, () => value)
let holds = () => true, wrong = ""
try {
  if (trim(box.value)) holds = parseFilter(box.value, columns, (i) => source.data.all[i])
} catch (error) {
  if (!(error instanceof FilterError)) throw error
  wrong = error.message
}
const indices = [], count = source.get_length() ?? 0
const brush = noun === "trial" ? table.document?.get_model_by_name("brush") : null
const chosen = brush?.tags.length ? new Set(brush.tags) : null
for (let i = 0; i < count; i++) {
  if (holds(i) && (!chosen || chosen.has(source.data.trial[i]))) indices.push(i)
}
const filter = view.filter
const before = filter.type === "IndexFilter" ? filter.indices : null
// An equal filter would send all indices to the server.
const isSame = before !== null && before.length === indices.length
  && before.every((one, place) => one === indices[place])
if (!isSame) {
  view.filter = new (Bokeh.Models.get("IndexFilter"))({indices})
  source.change.emit()
} else if (cb_obj === source) {
  // Bokeh draws a table again if its rows are others, not if their cells are.
  shown?.updateGrid()
}
const text = wrong || `${indices.length} of ${count} ${noun}${count === 1 ? "" : "s"}`
if (note.text !== text) {
  note.styles = wrong ? {color: "var(--dt-red, #a40e26)"} : {}
  note.text = text
}
"""
)

#: Saves the rows that the filter leaves as a CSV file. A spreadsheet would run a text that begins
#: like a formula, so such a text gets an apostrophe, as `dasktune.text.formatting.csv_cell` does.
#: Arguments: `source`, `view`; `heads`, pairs of a heading and a column; `filename`.
DOWNLOAD_CSV: Final = r"""
const safe = (value) => {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value)
  const text = String(value ?? "").replace(/\r\n?/g, "\n")
  const isNumber = text.trim() !== "" && Number.isFinite(Number(text))
  return /^ *[-=+@\t\n]/.test(text) && !isNumber ? "'" + text : text
}
const quote = (text) => /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text
const cells = (values) => values.map((one) => quote(safe(one))).join(",")
const filter = view.filter
const count = source.get_length() ?? 0
const rows = filter.type === "IndexFilter" ? filter.indices : Array.from({length: count}, (_, i) => i)
const lines = [cells(heads.map(([name]) => name))]
for (const row of rows) lines.push(cells(heads.map(([, column]) => source.data[column][row])))
const link = document.createElement("a")
link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], {type: "text/csv"}))
link.download = filename
link.click()
setTimeout(() => URL.revokeObjectURL(link.href), 10000)
"""

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
