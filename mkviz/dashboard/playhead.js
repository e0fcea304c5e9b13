// The playhead: drawn over the figures and not in them, so that it moves smoothly and nothing is painted anew.
// clock says where it was when it was sent, how fast it goes and where it stops; between its words the page moves it.
const [at, rate, stop, on] = ["at", "rate", "stop", "on"].map((name) => clock.data[name][0])
const sent = performance.now()
const state = ((window.mkvizPlayhead ??= {})[clock.id] ??= {covers: [], time: null, frame: 0})
cancelAnimationFrame(state.frame)
while (state.covers.length < plots.length) {
  const cover = document.createElement("div")
  cover.className = "mkviz-played"
  cover.append(document.createElement("div"))
  document.body.append(cover)
  state.covers.push(cover)
}
function draw() {
  state.time = on ? (rate > 0 ? Math.min(stop, at + rate * (performance.now() - sent) / 1000) : at) : null
  plots.forEach((plot, i) => {
    const cover = state.covers[i], view = on && plot.document?.views_manager?.find_one(plot)
    const outer = view && view.canvas_view?.el?.getBoundingClientRect()
    cover.hidden = !outer?.width
    if (cover.hidden) return
    const {left, top, width, height} = view.frame.bbox
    const x = view.frame.x_scale.compute(state.time) - left
    Object.assign(cover.style, {left: `${outer.left + left}px`, top: `${outer.top + top}px`, width: `${width}px`, height: `${height}px`})
    cover.firstChild.style.left = `${Math.max(x, -4)}px`
  })
  if (on) state.frame = requestAnimationFrame(draw)
}
draw()
