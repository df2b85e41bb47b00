"use strict"
// Keeps the page up to date. Users' strings enter the page only as text; a driver's page is drawn
// by Bokeh.
;(() => {
  const PERIOD = 1000
  const base = location.pathname.split("/").pop()
  const [chosen, state, note, view, empty, why, hint] = [
    "chosen", "state", "note", "view", "empty", "why", "hint",
  ].map((id) => document.getElementById(id))
  const states = {alive: "running", silent: "silent", lost: "lost", ended: "ended"}
  const words = {
    alive: "driver is running",
    silent: "driver is silent",
    lost: "driver is lost",
    ended: "experiment has ended",
  }

  let wanted = location.hash.slice(1)
  // The page in view: its driver, the number of its last change, and Bokeh's document.
  let shown = {key: "", driver: "", number: 0, document: null}
  let bokeh = ""

  const address = (what, query) => `${base}~${what}?${new URLSearchParams(query)}`

  async function fetched(what, query) {
    const answer = await fetch(address(what, query), {cache: "no-store"})
    return answer.ok ? answer.json() : null
  }

  // The news come first: a request for a page that was dropped would fail, and be logged.
  async function turn() {
    const news = await fetched("news", {key: wanted})
    if (news === null) throw new Error("no news")
    list(news.experiments)
    const one = news.shown
    if (one === null) {
      say("", "")
      if (shown.document !== null) clear()
      explain(news.experiments.length > 0 ? "" : "No experiment has run on this cluster yet.", "")
      return
    }
    document.title = `${one.name} · dasktune`
    if (shown.key !== wanted || shown.driver !== one.driver) {
      clear()
      shown = {key: wanted, driver: one.driver, number: 0, document: null}
    }
    if (one.whole > 0) await follow(one)
    showState(one)
  }

  function list(experiments) {
    if (!experiments.some((one) => one.key === wanted) && experiments.length > 0) {
      // The newest one that runs.
      wanted = (experiments.find((one) => one.state === "alive") ?? experiments[0]).key
    }
    const now = experiments.map((one) => [one.key, `${one.name} (${states[one.state]})`])
    const before = [...chosen.options].map((one) => [one.value, one.textContent])
    if (JSON.stringify(now) !== JSON.stringify(before)) {
      chosen.replaceChildren(
        ...now.map(([key, text]) => {
          const option = document.createElement("option")
          option.value = key
          option.textContent = text
          return option
        }),
      )
    }
    chosen.value = wanted
    chosen.hidden = experiments.length === 0
  }

  function showState(one) {
    const contact = `last contact ${Math.round(one.age)} s ago`
    say(one.state, one.state === "alive" || one.state === "ended" ? "" : contact)
    // Nothing runs any more, so the page shows no remaining time.
    const header = shown.document?.get_model_by_name("header")
    if (header) header.css_classes = one.state === "lost" || one.state === "ended" ? ["dt-lost"] : []
    if (shown.document === null) {
      const reasons = {
        alive: "The driver is drawing the page.",
        silent: "The driver has not sent the page yet.",
        lost: "This page had no viewer while the driver ran. The journal has all results so far:",
        ended: "This page had no viewer while the experiment ran. The journal has all results:",
      }
      explain(reasons[one.state], one.state === "lost" || one.state === "ended" ? one.hint : "")
    } else if (one.state === "lost" || (one.state === "ended" && !one.complete)) {
      explain("This is the last state that was sent. The journal has all results:", one.hint)
    } else {
      explain("", "")
    }
  }

  function explain(text, command) {
    empty.hidden = text === ""
    why.textContent = text
    hint.hidden = command === ""
    hint.textContent = command
  }

  function say(kind, text) {
    state.className = kind
    state.hidden = kind === ""
    state.textContent = words[kind] ?? ""
    note.textContent = text
  }

  // Bring the document to the last change, or load it if changes are missing in between.
  async function follow(one) {
    const key = wanted
    let later = one.changes.filter((number) => number > shown.number)
    const last = Math.max(one.whole, ...one.changes)
    const gapless = shown.document !== null && later.length === last - shown.number
    if (shown.number === last) return
    if (!gapless) {
      if (!(await load(one.bokeh))) return
      const whole = await fetched("whole", {key, number: one.whole})
      if (whole === null || key !== wanted) return
      await show(whole, one)
      later = one.changes.filter((number) => number > one.whole)
    }
    for (const number of later) {
      const change = await fetched("change", {key, number})
      if (change === null || key !== wanted || shown.document === null) return
      shown.document.apply_json_patch(change)
      shown.number = number
    }
  }

  async function show(whole, one) {
    clear()
    const places = {}
    for (const root of whole.roots) {
      const place = document.createElement("div")
      places[root.id] = place
      view.append(place)
    }
    // Bokeh finds the elements by their ids.
    for (const [id, place] of Object.entries(places)) place.id = `root-${id}`
    const roots = Object.fromEntries(Object.keys(places).map((id) => [id, `root-${id}`]))
    const before = Bokeh.documents.length
    await Bokeh.embed.embed_items(
      {page: whole},
      [{docid: "page", roots, root_ids: Object.keys(roots)}],
    )
    shown = {key: wanted, driver: one.driver, number: one.whole, document: Bokeh.documents[before]}
  }

  function clear() {
    if (shown.document !== null) {
      shown.document.clear()
      const place = Bokeh.documents.indexOf(shown.document)
      if (place >= 0) Bokeh.documents.splice(place, 1)
    }
    view.replaceChildren()
    shown = {key: "", driver: "", number: 0, document: null}
  }

  // Load the scripts of the Bokeh version that made the page. A browser page can have only one
  // version, so for another one it is reloaded.
  async function load(version) {
    if (bokeh === version) return true
    if (bokeh !== "") {
      location.reload()
      return false
    }
    for (const name of ["bokeh", "bokeh-widgets", "bokeh-tables"]) {
      await new Promise((resolve, reject) => {
        const script = document.createElement("script")
        script.src = address("bokeh", {version, name})
        script.onload = resolve
        script.onerror = reject
        document.head.append(script)
      })
    }
    bokeh = version
    return true
  }

  chosen.addEventListener("change", () => {
    wanted = chosen.value
    location.hash = wanted
    clear()
    now()
  })
  window.addEventListener("hashchange", () => {
    wanted = location.hash.slice(1)
    now()
  })

  let waits = null
  let busy = false

  async function now() {
    if (busy) return
    busy = true
    clearTimeout(waits)
    try {
      // A hidden page is no viewer.
      if (!document.hidden) await turn()
    } catch (error) {
      say("lost", "The scheduler does not answer.")
      state.textContent = ""
      state.hidden = true
    }
    busy = false
    waits = setTimeout(now, PERIOD)
  }
  document.addEventListener("visibilitychange", now)
  now()
})()
