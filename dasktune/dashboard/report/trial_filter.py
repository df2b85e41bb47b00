"""What a browser does with the table of trials by itself."""

from __future__ import annotations

from typing import Final

__all__ = ["FILTER", "SELECT", "TYPING"]

#: Shows the rows that meet all conditions. Nothing of a user's is ever run.
FILTER: Final = """
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
SELECT: Final = """
const i = source.selected.indices[0]
if (i === undefined) return
text.text = source.data.detail[i]
const begin = offsets[i], end = offsets[i + 1]
curve.data = {x: xs.slice(begin, end), y: ys.slice(begin, end)}
figure.title.text = source.data.trial[i]
"""

#: While somebody types, the value is not there yet.
TYPING: Final = "if (box.value !== box.value_input) { box.value = box.value_input; return }\n"
