"""What a browser does with the table of trials by itself.

The filter of the table understands the conditions of the command line, as `dasktune.cli.filters`
tells them, and what is quicker to type:

- conditions that stand beside each other must all hold, as with ``and``;
- ``status:ERROR`` is ``status == "ERROR"``, and to the right of any comparison a word that is no
  column is a text, so that ``status = error`` is the same once more: equal texts may differ in the
  case of their letters;
- a word or a quoted text that is compared with nothing is looked for in all texts of a trial.

It is parsed by hand, never evaluated.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FILTER", "SELECT", "TYPING"]

#: From a text to a function that tells whether the trial in a row is wanted. What makes no sense is
#: thrown as `Wrong`, with what to tell the user.
_PARSE: Final = r"""
class Wrong extends Error {}
const columns = new Map(names), constants = new Map(fixed)
const PARTS = [
  /("[^"]*"|'[^']*')/, /(`[^`]*`)/, /(<=|>=|==|!=|=|<|>|~|:|\(|\)|\[|\]|,)/,
  /([^\s<>=!~:()\[\],"'`]+)/,
]
const TOKEN = new RegExp(`\\s*(?:${PARTS.map((one) => one.source).join("|")})`, "y")
// After a colon everything up to the next space is a value, such as an address.
const VALUE = /\s*([^\s()"'`]+)/y
const KINDS = ["text", "quoted", "operator", "word"]
const found = (pattern, text, at) => {
  pattern.lastIndex = at
  return pattern.exec(text)
}
const split = (text) => {
  const tokens = [], length = text.trimEnd().length
  for (let at = 0; at < length; ) {
    const before = tokens.length ? tokens.at(-1) : null
    const colon = before !== null && before.kind === "operator" && before.text === ":"
    const value = colon ? found(VALUE, text, at) : null
    const match = value ?? found(TOKEN, text, at)
    if (match === null) {
      const rest = text.slice(at).trim()
      throw new Wrong(/^["'`]/.test(rest) ? `The quote ${rest[0]} is not closed.`
        : `"${rest.slice(0, 20)}" is no part of a condition.`)
    }
    const token = match.slice(1).find((one) => one !== undefined)
    const kind = value === null ? KINDS[match.slice(1).indexOf(token)] : "text"
    const quoted = value === null && (kind === "text" || kind === "quoted")
    at = match.index + match[0].length
    tokens.push({kind, text: quoted ? token.slice(1, -1) : token, at: at - token.length + 1})
  }
  tokens.push({kind: "end", text: "", at: length + 1})
  return tokens
}

const real = (value) => {
  if (typeof value === "number") return value
  const text = String(value).trim().toLowerCase()
  if (/^[+-]?inf$/.test(text)) return text[0] === "-" ? -Infinity : Infinity
  return text === "" ? NaN : Number(/^[\d_.e+-]+$/.test(text) ? text.replaceAll("_", "") : text)
}
const missing = (value) => value === undefined || value === null || value !== value
  || /^(|null|none|nan)$/i.test(value)
const text = (value) => String(value).toLowerCase()
const same = (a, b) => missing(a) || missing(b) ? missing(a) && missing(b)
  : text(a) === text(b) || real(a) === real(b)
const ordered = (compare) => (a, b) => {
  const x = real(a), y = real(b)
  if (x === x && y === y) return compare(x, y)
  return typeof a === "string" && typeof b === "string" && x !== x && y !== y
    && !missing(a) && !missing(b) && compare(text(a), text(b))
}
const COMPARISONS = {
  "<": ordered((a, b) => a < b),
  "<=": ordered((a, b) => a <= b),
  ">": ordered((a, b) => a > b),
  ">=": ordered((a, b) => a >= b),
  "=": same, "==": same, ":": same,
  "!=": (a, b) => !same(a, b),
  "~": (a, b) => !missing(a) && text(a).includes(text(b)),
}

const parse = (words) => {
  const tokens = split(words)
  let at = 0, depth = 0
  const is = (token, ...some) => (token.kind === "word" || token.kind === "operator")
    && some.includes(token.text.toLowerCase())
  const takes = (...some) => is(tokens[at], ...some) ? tokens[at++].text.toLowerCase() : ""
  const refuse = (wanted) => {
    const {kind, text, at: place} = tokens[at]
    const got = kind === "end" ? "nothing more" : `"${text.slice(0, 20)}"`
    throw new Wrong(`The filter must have ${wanted} at character ${place}; there is ${got}.`)
  }
  const compared = (token) => token.kind === "operator" && Object.hasOwn(COMPARISONS, token.text)
  const all = (tests) => (i) => tests.every((test) => test(i))
  const either = () => {
    const tests = [both()]
    while (takes("or")) tests.push(both())
    return (i) => tests.some((test) => test(i))
  }
  const both = () => {
    const tests = [negation()]
    while (takes("and") || !(tokens[at].kind === "end" || is(tokens[at], "or", ")"))) {
      tests.push(negation())
    }
    return all(tests)
  }
  const negation = () => {
    if (++depth > 50) throw new Wrong("The filter must be nested at most 50 deep.")
    try {
      if (takes("not")) {
        const denied = negation()
        return (i) => !denied(i)
      }
      if (takes("(")) {
        const inner = either()
        if (!takes(")")) refuse('")"')
        return inner
      }
      return comparison()
    } finally {
      depth--
    }
  }
  const comparison = () => {
    const [token, next, second] = [tokens[at], tokens[at + 1], tokens[at + 2]]
    if (["operator", "end"].includes(token.kind) || is(token, "and", "or", "in")) {
      refuse("a field or a word")
    }
    const denies = is(next, "not") && second && is(second, "in")
    if (!compared(next) && !denies && !is(next, "in")) {
      at++
      return (i) => source.data.all[i].toLowerCase().includes(token.text.toLowerCase())
    }
    let left = operand(true)
    if (denies) at++
    if (takes("in")) {
      const within = membership(left)
      return (i) => within(i) !== Boolean(denies)
    }
    const tests = []
    while (compared(tokens[at])) {
      const compare = COMPARISONS[tokens[at++].text], one = left, other = operand(false)
      tests.push((i) => compare(one(i), other(i)))
      left = other
    }
    return all(tests)
  }
  const membership = (left) => {
    const closing = {"[": "]", "(": ")"}[takes("[", "(")]
    if (!closing) refuse('a list such as ["a", "b"] after "in"')
    const members = [operand(false)]
    while (takes(",")) members.push(operand(false))
    if (!takes(closing)) refuse(`"," or "${closing}"`)
    return (i) => members.some((member) => same(left(i), member(i)))
  }
  const operand = (leads) => {
    const {kind, text: word} = tokens[at]
    if (kind === "operator" || kind === "end" || is(tokens[at], "and", "or", "not", "in")) {
      refuse("a value")
    }
    at++
    const is_there = (name) => columns.has(name) || constants.has(name)
    const named = [word, word.replace(/^config\//, "")].find(is_there)
    if (named !== undefined && (kind !== "text" || leads)) {
      if (constants.has(named)) return () => constants.get(named)
      const column = columns.get(named)
      return (i) => source.data[column][i]
    }
    const told = kind === "text" || missing(word) || real(word) === real(word)
    if (!told && (leads || kind === "quoted")) {
      const fields = [...columns.keys(), ...constants.keys()]
      const more = fields.length > 20 ? ` and ${fields.length - 20} more` : ""
      const quotes = fields.some((name) => /\s/.test(name)) ? " Quote names with spaces." : ""
      const some = fields.slice(0, 20).join(", ")
      throw new Wrong(`There is no field "${word}". Fields: ${some}${more}.${quotes}`)
    }
    return () => word
  }
  if (tokens.length === 1) return () => true
  const test = either()
  if (tokens[at].kind !== "end") refuse('"and", "or" or the end')
  return test
}
"""

#: Shows the rows that meet the conditions, or all of them and what is wrong with the conditions.
FILTER: Final = f"""{_PARSE}
let wanted = () => true, wrong = ""
try {{
  wanted = parse(box.value)
}} catch (error) {{
  if (!(error instanceof Wrong)) throw error
  wrong = error.message
}}
const indices = []
for (let i = 0; i < source.data.trial.length; i++) {{
  if (wanted(i)) indices.push(i)
}}
view.filter = new (Bokeh.Models.get("IndexFilter"))({{indices}})
source.change.emit()
note.styles = wrong ? {{color: "#a40e26"}} : {{}}
note.text = wrong || indices.length + " of " + source.data.trial.length + " trials"
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
