// The browser's half of the second timeline: what the pointer does goes to the server, what it is on comes back.  Runs for pointer
// events of the figure (cb_obj) and whenever the tip has changed.
//
// command page -> server: hover, leave, tap with the place in the data
// tip     server -> page: what the pointer is on

const state = ((window.mkvizBelow ??= {})[plot.id] ??= {number: 0, timer: null, at: null, tooltip: null})
const order = (name, at) => { command.data = {n: [++state.number], name: [name], x: [at?.x ?? 0], y: [at?.y ?? 0]} }
function hide() {
  state.tooltip?.remove()
  state.tooltip = null
}
const {event_name} = cb_obj
if (event_name === "mousemove") {
  const frame = plot.document?.views_manager?.find_one(plot)?.frame.bbox
  const {sx, sy, x, y} = cb_obj
  const inside = frame && sx >= frame.left && sx <= frame.right && sy >= frame.top && sy <= frame.bottom
  const was = state.at
  state.at = inside ? {sx, sy, x, y} : null
  if (!inside) { hide(); if (was) order("leave") }
  else if (state.timer === null) {
    state.timer = setTimeout(() => { state.timer = null; if (state.at) order("hover", state.at) }, 45)
  }
} else if (event_name === "mouseleave") {
  state.at = null
  hide()
  order("leave")
} else if (event_name === "tap") {
  order("tap", cb_obj)
} else if (cb_obj === plot.x_range) {
  hide()  // what it was on has moved away
} else {
  const [html] = tip.data.html
  const canvas = plot.document?.views_manager?.find_one(plot)?.canvas_view?.el?.getBoundingClientRect()
  if (!html || !state.at || !canvas) { hide(); return }
  if (!state.tooltip) {
    state.tooltip = document.createElement("div")
    state.tooltip.className = "mkviz-tip"
    state.tooltip.setAttribute("role", "tooltip")
    state.tooltip.style.display = "block"
    document.body.append(state.tooltip)
  }
  state.tooltip.innerHTML = html
  const x = canvas.left + state.at.sx, y = canvas.top + state.at.sy, {offsetWidth: w, offsetHeight: h} = state.tooltip
  state.tooltip.style.left = `${x + 16 + w > innerWidth ? x - 12 - w : x + 16}px`
  state.tooltip.style.top = `${y + 16 + h > innerHeight ? y - 12 - h : y + 16}px`
}
