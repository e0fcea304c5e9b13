// The browser's half of the viewport channel.  Runs whenever the server sends a frame; the first time it sets itself up.
//
// frame   server -> page: seq, the range wanted while following, and orders (moves) that are obeyed even when not following
// view    page -> server: the range, the plot's inner size, whether the page still follows, and the last order it obeyed
// ack     page -> server: the last frame that was drawn, so that a slow page is sent fewer
// command page -> server: keys, pointer positions, clicks and measured ranges
// tip     server -> page: what the pointer is on
//
// Whether the page follows is decided here, at the first pan, so that a frame already on its way cannot pull the view back.

const THROTTLE = 60
sparingly()
const pages = (window.mkviz ??= {})
if (pages[frame.id]?.plot !== plot) {  // a notebook's cell that was run again shows the same models, drawn anew
  pages[frame.id]?.close()
  pages[frame.id] = setUp()
}
pages[frame.id].apply()

// Bokeh writes the style sheet of every renderer whenever a plot is painted, and each next look at a style then restyles the page:
// sheets that say what they said before are left alone (a notch of the wheel: 87 restyles become 13)
function sparingly() {
  const sheet = window.Bokeh.require("core/dom").InlineStyleSheet.prototype, update = sheet._update
  if (update.sparing) return
  sheet._update = function (css) { if (css !== this.el.textContent) update.call(this, css) }
  sheet._update.sparing = true
}

// Panel's half of a notebook's channel tells the kernel whatever changes, even what the kernel has just sent: every frame would go
// back, and an old one could take the place of a newer one there.  Only what changes here is told.
function oneWay(manager) {
  const channel = Object.getPrototypeOf(manager), changed = channel._document_changed, acknowledged = channel.on_ack
  if (changed.oneWay) return
  channel._document_changed = function (event) { if (event.sync !== false) changed.call(this, event) }
  channel._document_changed.oneWay = true
  channel.on_ack = function (message) { this.answered ||= "content" in message; acknowledged.call(this, message) }  // or feigned
}

function setUp() {
  const cell = frame.tags.includes("cell")  // of a notebook: one figure of many, and not the only one who hears keys
  if (!cell) {
    Object.values(pages).forEach((old) => old.close())
    for (const id of Object.keys(pages)) delete pages[id]
  }
  const abort = new AbortController()
  const on = (name, call, capture = false) => window.addEventListener(name, call, {signal: abort.signal, capture})
  const state = {follow: true, applying: false, moves: -1, frames: 0, timer: null, last: 0, sent: 0, pointer: null, number: 0}
  const tooltip = document.createElement("div")
  tooltip.className = "mkviz-tip"
  tooltip.setAttribute("role", "tooltip")
  document.body.append(tooltip)

  const viewOf = (figure) => figure.document?.views_manager?.find_one(figure)
  const plotView = () => viewOf(plot)
  function box(view = plotView()) {
    // the inner frame of a plot in the window, null while there is none
    const outer = view?.canvas_view?.el?.getBoundingClientRect()
    if (!outer?.width) return null
    const {left, top, width, height} = view.frame.bbox
    return {x: outer.left + left, y: outer.top + top, width, height}
  }
  function place(event, view = plotView()) {
    // the data position of a mouse event, null outside the frame
    const inner = box(view)
    if (!inner) return null
    const dx = event.clientX - inner.x, dy = event.clientY - inner.y
    if (dx < 0 || dx > inner.width || dy < 0 || dy > inner.height) return null
    const {x_scale, y_scale, bbox} = view.frame
    return {x: x_scale.invert(bbox.left + dx), y: y_scale.invert(bbox.top + dy)}
  }

  function send() {
    state.timer = null
    state.last = performance.now()
    const inner = box()
    if (!inner?.width) return
    view.data = {x0: [x_range.start], x1: [x_range.end], width: [inner.width], height: [inner.height],
                 follow: [state.follow ? 1 : 0], moves: [state.moves], n: [++state.sent]}
  }
  function later() {
    if (state.timer !== null) return
    state.timer = setTimeout(send, Math.max(0, THROTTLE - (performance.now() - state.last)))
  }
  function moved() {
    if (state.applying) return
    const slack = 1e-6 * (x_range.end - x_range.start)
    if (Math.abs(x_range.start - state.x0) < slack && Math.abs(x_range.end - state.x1) < slack) return
    state.follow = false
    tooltip.style.display = "none"
    later()
  }
  const share_of_lanes = () => Math.round(plot.y_range.end - 0.5) / plot.y_range.end  // the rest is the row of steps above
  const range = () => [x_range.start, x_range.end]
  function set(x0, x1) {
    state.applying = true
    state.x0 = x0
    state.x1 = x1
    x_range.setv({start: x0, end: x1})
    state.applying = false
  }
  function order(name, more = {}) {
    command.data = {n: [++state.number], name: [name], x: [more.x ?? 0], y: [more.y ?? 0], text: [more.text ?? ""]}
  }

  function apply() {
    const {seq, x0, x1, follow, moves, lo, hi} = Object.fromEntries(Object.entries(frame.data).map(([k, v]) => [k, v[0]]))
    if (moves !== state.moves) {
      state.moves = moves
      state.follow = follow === 1
      set(x0, x1)
      later()
    } else if (state.follow && follow === 1) {
      set(x0, x1)
    }
    state.lo = lo
    state.hi = hi
    state.frames++
    if (tooltip.style.display === "block" && state.pointer) {  // what was under the pointer may have moved away
      const {clientX, clientY} = state.pointer, p = place(state.pointer)
      state.pointer = p && {...p, clientX, clientY}
      if (p) ask(); else left()
    }
    requestAnimationFrame(() => { ack.data = {seq: [seq]} })
  }

  // keys

  function zoom(factor, at) {
    const a = x_range.start, b = x_range.end, span = Math.max((b - a) * factor, 0.02)
    const share = (at - a) / (b - a)
    slide(at - share * span, at + (1 - share) * span)
  }
  function slide(x0, x1) {
    const span = Math.min(x1 - x0, (state.hi - state.lo) * 1.2)
    const mid = Math.min(Math.max((x0 + x1) / 2, state.lo), state.hi)
    x_range.setv({start: mid - span / 2, end: mid + span / 2})
  }
  function typing(event) {
    const target = event.composedPath()[0]
    return target?.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target?.tagName)
  }
  const shift = (share) => { const d = (x_range.end - x_range.start) * share; slide(x_range.start + d, x_range.end + d) }
  on("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || (cell && !state.pointer)) return
    if (event.key === "Escape") { help.close(); order("key", {text: "Escape"}); event.composedPath()[0]?.blur?.(); return }
    if (typing(event)) return
    const at = state.pointer?.x ?? (x_range.start + x_range.end) / 2
    const keys = {w: () => zoom(1 / 1.4, at), s: () => zoom(1.4, at), a: () => shift(-0.2), d: () => shift(0.2),
                  "?": () => help.open ? help.close() : help.showModal(),
                  "/": () => find(document, "input[type=search]")?.focus()}
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key
    if (keys[key]) { keys[key](); event.preventDefault() }
    else if (["f", ".", ",", "l", " ", "[", "]", "r", "+", "-", "ArrowUp", "ArrowDown",
              "p", "ArrowLeft", "ArrowRight"].includes(key)) {
      if (key === " " && event.composedPath()[0]?.tagName === "BUTTON") return
      if (key.startsWith("Arrow") && event.composedPath()[0]?.closest?.("[tabindex]")) return  // of what scrolls or has parts
      order("key", {text: key.toLowerCase()}); event.preventDefault()
    }
  })
  function find(root, selector) {
    const hit = root.querySelector(selector)
    if (hit) return hit
    for (const el of root.querySelectorAll("*")) {
      const inner = el.shadowRoot && find(el.shadowRoot, selector)
      if (inner) return inner
    }
    return null
  }

  // pointer: hover is answered by the server, which has the records; shift-drag measures a range

  let hover = null, asked = false, drag = null, press = null
  function ask() {
    hover ??= setTimeout(() => { hover = null; if (state.pointer) { asked = true; order("hover", state.pointer) } }, 45)
  }
  function left() {  // told even where no tooltip is seen: a step may be lit, or an answer on its way
    clearTimeout(hover)
    hover = null
    tooltip.style.display = "none"
    if (asked) { asked = false; order("leave") }
  }
  const onPlot = (event) => event.composedPath().includes(plotView()?.el)
  function measured(event) {
    // the view of the figure on which a range would be measured from here, if on any
    const path = event.shiftKey ? event.composedPath() : []
    const view = [plot, ...others].map(viewOf).find((v) => v && path.includes(v.el))
    return view && place(event, view) ? view : null
  }
  on("mousemove", (event) => {
    if (drag) {
      const p = place(event, drag.view)
      if (p) bands.forEach((b) => b.setv({left: Math.min(drag.x, p.x), right: Math.max(drag.x, p.x), visible: true}))
      event.stopPropagation()
      return
    }
    const p = onPlot(event) ? place(event) : null
    state.pointer = p && {...p, clientX: event.clientX, clientY: event.clientY}
    if (p && !event.buttons) ask(); else left()
  }, true)
  on("mousedown", (event) => {
    if (event.button !== 0) return
    const view = measured(event)
    if (view) { drag = {view, x: place(event, view).x}; event.stopPropagation(); event.preventDefault() }
    press = onPlot(event) && place(event) ? {x: event.clientX, y: event.clientY} : null
  }, true)
  for (const name of ["pointerdown", "touchstart"]) {
    on(name, (event) => { if (measured(event)) event.stopPropagation() }, true)
  }
  on("mouseup", (event) => {
    if (drag) {
      drag = null
      const {left, right} = bands[0]
      if (right - left > 0) order("range", {x: left, y: right})
      event.stopPropagation()
    } else if (press && onPlot(event) && Math.hypot(event.clientX - press.x, event.clientY - press.y) < 4) {
      const p = place(event)
      if (p) order("tap", p)
    }
    press = null
  }, true)
  on("dblclick", (event) => { if (onPlot(event) && place(event)) order("key", {text: "fit"}) }, true)
  function tipped() {
    const [html] = tip.data.html
    if (!html || !state.pointer) { tooltip.style.display = "none"; return }
    tooltip.innerHTML = html
    tooltip.style.display = "block"
    const {clientX, clientY} = state.pointer, {offsetWidth: w, offsetHeight: h} = tooltip
    tooltip.style.left = `${clientX + 16 + w > innerWidth ? clientX - 12 - w : clientX + 16}px`
    tooltip.style.top = `${clientY + 16 + h > innerHeight ? clientY - 12 - h : clientY + 16}px`
  }
  // a page that was laid out anew (window resized, panel opened) needs a frame of its new width
  const watch = new ResizeObserver(later)
  setTimeout(() => { const el = plotView()?.el; if (el) watch.observe(el) }, 0)

  // a notebook has neither the page's style nor its theme

  if (cell) {
    if (!document.getElementById("mkviz-style")) {
      document.head.append(Object.assign(document.createElement("style"), {id: "mkviz-style", textContent: frame.tags[1]}))
    }
    const tell = () => {
      const dark = document.body.dataset.jpThemeLight === "false"
      document.body.classList.toggle("mkviz-dark", dark)
      order("theme", {text: dark ? "dark" : "light"})
    }
    const themes = new MutationObserver(tell)
    themes.observe(document.body, {attributes: true, attributeFilter: ["data-jp-theme-light"]})
    abort.signal.addEventListener("abort", () => themes.disconnect())
    tell()
    const manager = plot.document.roots().find((root) => root.type === "panel.models.comm_manager.CommManager")
    if (manager?._client_comm) {  // absent where no kernel is
      oneWay(manager)
      // while the kernel is busy, what is said may overtake the word that opens the channel, and is lost: it is said again, last
      // after the first answer
      const again = setInterval(() => {
        if (!manager.answered && Date.now() <= manager._timeout) return
        if (manager.answered) clearInterval(again)
        tell()
        send()
      }, 500)
      abort.signal.addEventListener("abort", () => clearInterval(again))
    }
  }

  // help

  const help = document.createElement("dialog")
  help.className = "mkviz-help"
  help.innerHTML = `<h2>Keys</h2><table>${[
    ["wheel, W, S", "zoom time at the pointer"], ["drag, A, D", "move in time"], ["shift + drag", "measure a range"],
    ["click", "pin a task and what it waited for"], [". and ,", "next and previous task on the lane"],
    ["[ and ]", "previous and next step"], ["F", "fit the pinned task, the range or everything"],
    ["R", "a sub-lane per role: loader, feeder, math, storer"], ["+ and -", "fewer and more SMs"], ["↑ and ↓", "other SMs"],
    ["P", "play the step in slow motion; space pauses, Esc leaves"], ["→ and ←", "next and previous event of the step"], ["double click", "fit everything"],
    ["L", "follow live"], ["space", "pause and resume the view"], ["/", "search"], ["Esc", "clear"], ["?", "this list"],
  ].map(([k, what]) => `<tr><th>${k}</th><td>${what}</td></tr>`).join("")}</table><form method="dialog"><button>Close</button></form>`
  document.body.append(help)

  function close() {
    abort.abort()
    watch.disconnect()
    clearTimeout(state.timer)
    clearTimeout(hover)
    tooltip.remove()
    help.remove()
  }
  return {plot, state, apply, moved, tipped, close, help, range, box, share_of_lanes}
}
