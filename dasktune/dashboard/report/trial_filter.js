// The filter language for trials in a browser. dasktune/results/trial_filter.py defines the language
// and implements it for Python, function by function as here; one table of examples tests both.
class FilterError extends Error {}

const MAX_LENGTH = 10000, MAX_DEPTH = 50, MAX_LISTED = 40, MAX_QUOTED = 40, MAX_DIGITS = 400
// How like a column's name a text must be to be taken for it, from 0 to 1.
const MIN_LIKENESS = 0.6
// Python and JavaScript disagree about which characters are spaces, so the language lists its own.
const SPACES = " \\t\\r\\n\\f\\v\\u00a0\\ufeff"
const TOKEN = new RegExp(
  `[${SPACES}]*(?:("[^"]*"|'[^']*')|(\`[^\`]+\`)|(<=|>=|==|!=|=|<|>|~|:|\\(|\\)|\\[|\\]|,)`
  + `|([^${SPACES}<>=!~:()\\[\\],"'\`]+))`, "y")
const KINDS = ["text", "column", "operator", "word"]
// A value after a colon may contain operators, as addresses do.
const COLON_VALUE = new RegExp(`[${SPACES}]*([^${SPACES}()"'\`]+)`, "y")
const NUMBER = /^[+-]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:e[+-]?[0-9]+)?$/
const INFINITY = /^[+-]?inf(?:inity)?$/
const LEADING = new RegExp(`^[${SPACES}]+`), TRAILING = new RegExp(`[${SPACES}]+$`)
const MISSING = ["", "null", "none", "nan"], KEYWORDS = ["and", "or", "not", "in"]

const trim = (text) => text.replace(LEADING, "").replace(TRAILING, "")
const characters = (text) => [...text].length
const quoted = (text) => {
  const all = [...text]
  return `"${all.length <= MAX_QUOTED ? text : all.slice(0, MAX_QUOTED - 3).join("") + "..."}"`
}
const isOneOf = (token, ...texts) => (token.kind === "word" || token.kind === "operator")
  && texts.includes(token.text.toLowerCase())
const isNumber = (value) => typeof value === "number" || typeof value === "bigint"
const asList = (value) => Array.isArray(value) ? value : [value]

// Returns a value as it is compared: a number, a text in lower case, or null if it is missing.
const read = (value) => {
  if (value === undefined || value === null) return null
  if (typeof value === "number") return Number.isNaN(value) ? null : value
  if (typeof value === "bigint") return value
  const text = trim(String(value)).toLowerCase()
  if (MISSING.includes(text)) return null
  if (INFINITY.test(text)) return text[0] === "-" ? -Infinity : Infinity
  if (!NUMBER.test(text)) return text
  const digits = text.replaceAll("_", "")
  const real = Number(digits)
  const isWhole = /^[+-]?[0-9]+$/.test(digits) && digits.length <= MAX_DIGITS
  // A number has 53 bits; == and < compare a BigInt with a number exactly.
  return isWhole && !Number.isSafeInteger(real) ? BigInt(digits.replace(/^\+/, "")) : real
}
const isConstant = (word) => {
  const value = read(word)
  return value === null || value === "true" || value === "false" || isNumber(value)
}
const textOf = (value) => {
  const one = read(value)
  if (one === null || typeof one === "string") return one
  return (typeof value === "string" ? trim(value) : String(one)).toLowerCase()
}
const isEqual = (left, right) => {
  const one = read(left), other = read(right)
  return one === other || (isNumber(one) && isNumber(other) && one == other)
}
const ordered = (compare) => (left, right) => {
  const one = read(left), other = read(right)
  return ((typeof one === "string" && typeof other === "string")
    || (isNumber(one) && isNumber(other))) && compare(one, other)
}
const contains = (left, right) => {
  const whole = textOf(left), part = textOf(right)
  return whole !== null && part !== null && whole.includes(part)
}
const COMPARISONS = new Map([
  ["<", ordered((a, b) => a < b)],
  ["<=", ordered((a, b) => a <= b)],
  [">", ordered((a, b) => a > b)],
  [">=", ordered((a, b) => a >= b)],
  ["==", isEqual], ["=", isEqual], [":", isEqual], ["!=", isEqual],
  ["~", contains],
])

const tokenize = (text) => {
  const tokens = [], end = text.replace(TRAILING, "").length
  const match = (pattern, at) => {
    pattern.lastIndex = at
    return pattern.exec(text)
  }
  for (let at = 0; at < end; ) {
    const followsColon = tokens.length > 0 && isOneOf(tokens.at(-1), ":")
    const value = followsColon ? match(COLON_VALUE, at) : null
    const found = value ?? match(TOKEN, at)
    if (found === null) {
      const rest = text.slice(at).replace(LEADING, "")
      const place = characters(text.slice(0, text.length - rest.length)) + 1
      throw new FilterError(`"'\``.includes(rest[0])
        ? `filter must have a closing ${rest[0]} for the quote at character ${place}`
        : `filter must have a comparison at character ${place}, got ${quoted(rest)}`)
    }
    const which = found.slice(1).findIndex((one) => one !== undefined)
    const raw = found[which + 1], kind = value === null ? KINDS[which] : "text"
    at = found.index + found[0].length
    const isQuoted = value === null && which < 2
    tokens.push({kind, text: isQuoted ? raw.slice(1, -1) : raw, start: at - raw.length, end: at})
  }
  tokens.push({kind: "end", text: "", start: end, end})
  return tokens
}

// Returns the number of characters in common blocks of two texts, as Python's difflib counts them:
// the longest common block, and the same to its left and to its right.
const common = (one, other) => {
  let size = 0, left = 0, right = 0, before = new Map()
  for (let i = 0; i < one.length; i++) {
    const here = new Map()
    for (let j = 0; j < other.length; j++) {
      if (one[i] !== other[j]) continue
      const length = (before.get(j - 1) ?? 0) + 1
      here.set(j, length)
      if (length > size) [size, left, right] = [length, i - length + 1, j - length + 1]
    }
    before = here
  }
  return size && size + common(one.slice(0, left), other.slice(0, right))
    + common(one.slice(left + size), other.slice(right + size))
}
// Returns the name that is most like a text; undefined if none is similar.
const closest = (text, names) => {
  const wanted = [...text]
  let best, most = MIN_LIKENESS
  for (const name of names) {
    const own = [...name], length = own.length + wanted.length
    // The likeness cannot be higher than if the shorter text were a part of the longer one.
    if (2 * Math.min(own.length, wanted.length) < most * length) continue
    const likeness = 2 * common(own, wanted) / length
    if (likeness > most || (likeness === most && (best === undefined || name > best))) {
      [best, most] = [name, likeness]
    }
  }
  return best
}

// Returns a function that says whether a filter holds for a row. `columns` is a Map from the name
// of each column to the function that returns its value for a row; `rowText` returns all its texts.
const parseFilter = (text, columns, rowText) => {
  if (characters(text) > MAX_LENGTH) {
    const count = characters(text)
    throw new FilterError(`filter must have at most ${MAX_LENGTH} characters, got ${count}`)
  }
  const tokens = tokenize(text)
  let at = 0, depth = 0
  const place = (start) => characters(text.slice(0, start)) + 1
  const accept = (...texts) => isOneOf(tokens[at], ...texts) ? tokens[at++].text.toLowerCase() : ""
  const refuse = (wanted) => {
    const token = tokens[at]
    const got = token.kind === "end" ? "the end" : quoted(token.text)
    const where = place(token.start)
    throw new FilterError(`filter must have ${wanted} at character ${where}, got ${got}`)
  }
  const refuseColumn = (what, start, end, name) => {
    const names = [...columns.keys()], near = closest(name, names)
    const hint = near === undefined ? "" : ` Did you mean ${quoted(near)}?`
    const more = names.length > MAX_LISTED ? ` and ${names.length - MAX_LISTED} more` : ""
    throw new FilterError(
      `filter must have ${what} at character ${place(start)}, got ${quoted(text.slice(start, end))}.`
      + `${hint} Columns: ${names.slice(0, MAX_LISTED).join(", ")}${more}`)
  }
  const any = () => {
    const tests = [all()]
    while (accept("or")) tests.push(all())
    return (row) => tests.some((test) => test(row))
  }
  const all = () => {
    const tests = [negation()]
    while (accept("and") || !(tokens[at].kind === "end" || isOneOf(tokens[at], "or", ")"))) {
      tests.push(negation())
    }
    return (row) => tests.every((test) => test(row))
  }
  const negation = () => {
    if (++depth > MAX_DEPTH) {
      throw new FilterError(`filter must be nested at most ${MAX_DEPTH} deep`)
    }
    try {
      if (accept("not")) {
        const negated = negation()
        return (row) => !negated(row)
      }
      if (accept("(")) {
        const inner = any()
        if (!accept(")")) refuse("')'")
        return inner
      }
      return condition()
    } finally {
      depth--
    }
  }
  const condition = () => {
    const token = tokens[at]
    if (token.kind === "operator" || token.kind === "end" || isOneOf(token, ...KEYWORDS)) {
      refuse("a column or a word")
    }
    const following = tokens[at + 1]
    const negates = isOneOf(following, "not") && isOneOf(tokens[at + 2], "in")
    const hasList = negates || isOneOf(following, "in")
    if (!hasList && !isOneOf(following, ...COMPARISONS.keys())) {
      at++
      return word(token)
    }
    const operands = [operand(true)], tests = []
    if (hasList) {
      at += negates ? 2 : 1
      operands.push(...members())
      const [left, ...others] = operands
      tests.push((row) => negates !== left.values(row).some(
        (a) => others.some((one) => one.values(row).some((b) => isEqual(a, b)))))
    } else {
      while (tokens[at].kind === "operator" && COMPARISONS.has(tokens[at].text)) {
        const name = tokens[at++].text, compare = COMPARISONS.get(name), differs = name === "!="
        const left = operands.at(-1), right = operand(false)
        operands.push(right)
        tests.push((row) => differs !== left.values(row).some(
          (a) => right.values(row).some((b) => compare(a, b))))
      }
    }
    if (!operands.some((one) => one.isColumn)) {
      refuseColumn("a column in the comparison", token.start, tokens[at - 1].end, token.text)
    }
    return (row) => tests.every((test) => test(row))
  }
  const word = (token) => {
    if (token.kind === "word" && isConstant(token.text)) {
      const isTrue = token.text.toLowerCase() === "true"
      if (isTrue || !isNumber(read(token.text))) return () => isTrue
    } else if (token.kind !== "text" && columns.has(token.text)) {
      const valueOf = columns.get(token.text)
      return (row) => asList(valueOf(row)).some((value) => read(value) === "true")
    }
    const part = token.text.toLowerCase()
    return (row) => rowText(row).toLowerCase().includes(part)
  }
  const members = () => {
    const closing = {"[": "]", "(": ")"}[accept("[", "(")]
    if (!closing) refuse("a list such as ['a', 'b'] after 'in'")
    const found = [operand(false)]
    while (accept(",")) found.push(operand(false))
    if (!accept(closing)) refuse(`',' or '${closing}'`)
    return found
  }
  const operand = (isFirst) => {
    const token = tokens[at]
    if (token.kind === "operator" || token.kind === "end" || isOneOf(token, ...KEYWORDS)) {
      refuse("a column, a number or a text")
    }
    at++
    const mayBeColumn = token.kind === "column" || (token.kind === "text" && isFirst)
      || (token.kind === "word" && !isConstant(token.text))
    if (mayBeColumn && columns.has(token.text)) {
      const valueOf = columns.get(token.text)
      return {values: (row) => asList(valueOf(row)), isColumn: true}
    }
    if (token.kind === "column") refuseColumn("a column", token.start, token.end, token.text)
    return {values: () => [token.text], isColumn: false}
  }
  const test = any()
  if (tokens[at].kind !== "end") refuse("'and', 'or' or the end")
  return test
}
