// A range of a source in one file: draws lanes, steps and strips on a canvas from the columns that travel with it.
// Times inside are ns since the file's base; the axis counts from the source's origin, as the dashboard does.

const about = JSON.parse(document.getElementById("about").textContent)
const $ = (query) => document.querySelector(query)
const {lanes, levels, base} = about
const LEFT = 64, RIGHT = 12, STEPS = 22, AXIS = 26, STRIP = 46, GAP = 4
const NOTHING = 255, RECTS = 3000, NARROWEST = 20

// columns

async function read(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
  const bytes = new Uint8Array(await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer())
  const out = {}
  let at = 0
  for (const {name, count, width} of about.columns) {
    const values = width > 4 ? new Float64Array(count) : new Uint32Array(count)
    for (let plane = 0; plane < width; plane++, at += count) {
      const scale = 256 ** plane
      for (let i = 0; i < count; i++) values[i] += bytes[at + i] * scale
    }
    out[name] = values
  }
  return out
}
const c = await read($("#columns").textContent.trim())
$("#columns").remove()
const reach = new Float64Array(c.begin.length)  // latest end on the lane up to a task: ends need not ascend
for (let lane = 0; lane < lanes; lane++) {
  let latest = -Infinity
  for (let i = c.lane[lane]; i < c.lane[lane + 1]; i++) reach[i] = latest = Math.max(latest, c.begin[i] + c.took[i])
}
function first(lo, hi, holds) {  // of lo..hi the first that holds, hi if none does
  while (lo < hi) {
    const middle = (lo + hi) >> 1
    if (holds(middle)) hi = middle; else lo = middle + 1
  }
  return lo
}
function between(lane, x0, x1) {  // the tasks of a lane that touch a range, with the wait of the next one
  const stop = c.lane[lane + 1], from = first(c.lane[lane], stop, (i) => reach[i] > x0)
  const to = first(from, stop, (i) => c.begin[i] >= x1)
  return [from, to < stop && c.begin[to] - c.gap[to] - c.wait[to] < x1 ? to + 1 : to]
}

// what is shown: the range in ns since base, ops that are hidden, the theme

const whole = about.range.map((x) => x - base)
let [x0, x1] = whole, dark = about.dark, pointer = null, drag = null, pending = false, picture = null
const hidden = new Set(about.hidden.map((op) => about.ops.indexOf(op)))

// Level of detail, as in mkviz/lod.py: of every lane and pixel column the op that took most of its time, how much was busy and
// how much wait; and the mean number of lanes that are busy, wait or are in their tail, and bytes/ns read.

function frame(x0, x1, cols) {
  const kinds = about.ops.length, scale = cols / (x1 - x0)
  const grid = new Uint8Array(lanes * cols).fill(NOTHING), busy = new Float64Array(lanes * cols), wait = new Float64Array(lanes * cols)
  const time = new Float64Array(cols * kinds), rate = new Float64Array(cols), tail = new Float64Array(cols)
  const spread = (out, at, from, to, each = 1, stride = 1) => {
    const a = Math.max((from - x0) * scale, 0), b = Math.min((to - x0) * scale, cols)
    if (b <= a) return
    for (let j = Math.floor(a); j < b; j++) out[at + j * stride] += each * (Math.min(b, j + 1) - Math.max(a, j))
  }
  for (let lane = 0; lane < lanes; lane++) {
    time.fill(0)
    const [from, to] = between(lane, x0, x1)
    for (let i = from; i < to; i++) {
      const begin = c.begin[i], ready = begin - c.gap[i], end = begin + c.took[i]
      if (c.wait[i]) spread(wait, lane * cols, ready - c.wait[i], ready)
      if (end <= begin) continue
      spread(time, c.op[c.task[i]], begin, end, 1, kinds)
      spread(rate, 0, begin, end, c.bytes[i] / c.took[i])
    }
    for (let j = 0; j < cols; j++) {
      let best = 0, total = 0
      for (let k = 0; k < kinds; k++) {
        const now = time[j * kinds + k]
        total += now
        if (now > best && !hidden.has(k)) { best = now; grid[lane * cols + j] = k }
      }
      busy[lane * cols + j] = total
    }
  }
  for (let i = 0; i < c.tail_begin.length; i++) spread(tail, 0, Math.max(c.tail_begin[i], whole[0]), Math.min(c.tail_end[i], whole[1]))
  return {cols, grid, busy, wait, tail, rate}
}

const palette = new Uint32Array(about.palette.map((colour) => {  // little-endian RGBA
  const [r, g, b, a] = [1, 3, 5, 7].map((i) => parseInt(colour.slice(i, i + 2) || "ff", 16))
  return ((a << 24) | (b << 16) | (g << 8) | r) >>> 0
}))
const level = (share, levels) => Math.min(Math.max(Math.ceil(share * levels) - 1, 0), levels - 1)
function image({cols, grid, busy, wait}) {  // colours as in mkviz/palette.py
  const out = new ImageData(cols, lanes), pixels = new Uint32Array(out.data.buffer)
  for (let i = 0; i < grid.length; i++) {
    const b = Math.min(busy[i], 1), w = Math.min(wait[i], 1), none = grid[i] === NOTHING
    const waits = w > about.wait_wins * b || (none && w > 0)
    if (waits) pixels[i] = palette[about.wait_base + level(w, about.wait_levels)]
    else if (!none) pixels[i] = palette[grid[i] * levels + level(b, levels)]
  }
  return out
}

// words

function duration(ns) {
  const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([size]) => Math.abs(ns) >= size) ?? [1, "ns"]
  const value = ns / size, digits = unit === "ns" || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2
  return `${value.toFixed(digits)} ${unit}`
}
function bytes(count) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (count < 1024) return `${unit === "B" ? count : count.toFixed(1)} ${unit}`
    count /= 1024
  }
  return `${count.toFixed(1)} GiB`
}
function label(task) {
  const parts = [["layer", c.layer], ["slot", c.slot], ["tile", c.tile]].filter(([, of]) => of[task])
  return [about.ops[c.op[task]], ...parts.map(([word, of]) => `${word} ${of[task] - 1}`)].join(" · ")
}
function at(time, lane) {  // what a lane did at a time: [title, [name, value]…], null outside every step and what the file holds
  if (time < whole[0] || time > whole[1]) return null
  let step = c.step_begin.length - 1
  while (step >= 0 && !(c.step_begin[step] <= time && time <= c.step_end[step])) step--
  if (step < 0) return null
  const where = ["SM", `${lane} · step ${c.step_number[step]}`], stop = c.lane[lane + 1]
  let i = first(c.lane[lane], stop, (k) => c.begin[k] > time)
  const inside = i > c.lane[lane] && c.begin[i - 1] + c.took[i - 1] >= time
  if (inside) i--
  if (i === stop || c.step[i] > step) return [c.step_end[step] > whole[1] ? "no task left in this file" : "no task left", where]
  const ready = c.begin[i] - c.gap[i], prefix = inside ? "" : ready > time ? "waiting for " : "about to begin "
  const size = c.bytes[i], on = about.counters[c.on[i]]
  const out = [prefix + label(c.task[i]), where, ["begin", `${duration(c.begin[i] - c.step_begin[c.step[i]])} into the step`],
               ["took", duration(c.took[i])], ["waited", c.wait[i] ? `${duration(c.wait[i])} on ${on}` : "not at all"]]
  if (c.gap[i]) out.push(["ready to begin", duration(c.gap[i])])
  if (size) out.push(["read", `${bytes(size)} · ${(size / Math.max(1, c.took[i])).toFixed(1)} GB/s`])
  return out
}

// drawing

const canvas = $("canvas"), pen = canvas.getContext("2d")
const theme = () => about.themes[dark ? "dark" : "light"]
const inner = () => {
  const {width, height} = canvas.getBoundingClientRect(), strips = 3 * (STRIP + GAP)
  return {left: LEFT, top: STEPS, width: Math.max(width - LEFT - RIGHT, 50), height: Math.max(height - STEPS - AXIS - strips, 60)}
}
function ticks(width) {
  const rough = (x1 - x0) / Math.max(2, width / 130), power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough)
  const [size, unit] = step < 500 ? [1, "ns"] : step < 5e5 ? [1e3, "µs"] : step < 5e8 ? [1e6, "ms"] : [1e9, "s"]
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / size) - 1e-9)))
  const text = (v) => (v / size).toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits}).replaceAll(",", " ")
  const out = [], start = Math.ceil((x0 + base) / step) * step
  for (let t = start; t <= x1 + base; t += step) {
    // far from the origin a full number says nothing: the first tick is full, the others are what is added to it
    out.push([t - base, t > start && start > 2000 * step ? `+${text(t - start)} ${unit}` : `${text(t)} ${unit}`])
  }
  return out
}
function draw() {
  pending = false
  const {left, top, width, height} = inner(), colour = theme(), ratio = devicePixelRatio
  const outer = canvas.getBoundingClientRect()
  canvas.width = Math.round(outer.width * ratio)
  canvas.height = Math.round(outer.height * ratio)
  pen.setTransform(ratio, 0, 0, ratio, 0, 0)
  pen.font = "11px Inter, 'Segoe UI', Roboto, Arial, sans-serif"
  pen.textBaseline = "middle"
  const x = (t) => left + (t - x0) / (x1 - x0) * width, lane = height / lanes
  const seen = picture = frame(x0, x1, Math.round(width))
  const inside = (y, h, call) => {
    pen.save()
    pen.beginPath()
    pen.rect(left, y, width, h)
    pen.clip()
    call()
    pen.restore()
  }
  inside(0, top + height, () => {
    steps(x, top, height, colour)
    let count = 0
    for (let l = 0; l < lanes; l++) { const [from, to] = between(l, x0, x1); count += to - from }
    if (count > RECTS) pixels(seen, left, top, width, height); else rects(x, top, lane, colour)
  })
  pen.fillStyle = colour.faint
  pen.textAlign = "right"
  const every = [1, 2, 4, 8, 12, 16, 32, 64].find((n) => n * lane >= 15) ?? 128
  for (let l = 0; l < lanes; l += every) pen.fillText(`SM ${l}`, left - 8, top + (l + 0.5) * lane)
  pen.textAlign = "center"
  for (const [t, text] of ticks(width)) {
    pen.fillText(text, Math.min(Math.max(x(t), left + 24), left + width - 24), top + height + 14)
    pen.fillRect(x(t), top + height, 1, 4)
  }
  const sums = (of) => Array.from({length: seen.cols}, (_, j) => { let s = 0; for (let l = 0; l < lanes; l++) s += of[l * seen.cols + j]; return s })
  const waiting = sums(seen.wait), most = seen.rate.reduce((a, b) => Math.max(a, b), 0)
  const power = 10 ** Math.floor(Math.log10(most || 1)), scale = [1, 2, 3, 4, 6, 8, 10].map((m) => m * power).find((v) => v >= most) ?? 1
  const strips = [
    ["busy SMs", `of ${lanes}`, lanes, [[sums(seen.busy), colour.busy]]],
    ["waiting", `of ${lanes}`, lanes, [[waiting.map((w, j) => w + seen.tail[j]), about.tail], [waiting, colour.wait]]],
    ["reads to", scale >= 1000 ? `${scale / 1000} TB/s` : `${scale} GB/s`, scale, [[seen.rate, about.reads[dark ? 1 : 0]]]],
  ]
  strips.forEach(([name, reach, limit, areas], k) => {
    const y = top + height + AXIS + k * (STRIP + GAP)
    pen.fillStyle = colour.faint
    pen.textAlign = "right"
    pen.fillText(name, left - 8, y + STRIP / 2 - 7)
    pen.fillText(reach, left - 8, y + STRIP / 2 + 7)
    pen.strokeStyle = colour.grid
    pen.strokeRect(left + 0.5, y + 0.5, width - 1, STRIP - 1)
    for (const [values, fill] of areas) {
      pen.fillStyle = fill
      for (let j = 0; j < seen.cols; j++) {
        const h = Math.min(values[j] / limit, 1) * (STRIP - 2)
        pen.fillRect(left + j * width / seen.cols, y + STRIP - 1 - h, width / seen.cols + 0.3, h)
      }
    }
  })
}
function steps(x, top, height, colour) {
  for (let i = 0; i < c.step_begin.length; i++) {
    if (c.step_end[i] <= x0 || c.step_begin[i] >= x1) continue
    const number = c.step_number[i]  // of a step that the file holds a part of, that part
    const from = x(Math.max(c.step_begin[i], whole[0])), to = x(Math.min(c.step_end[i], whole[1]))
    const wide = Math.min(to, x(x1)) - Math.max(from, LEFT)
    pen.fillStyle = colour.step
    pen.globalAlpha = number % 2 ? 0.55 : 1
    pen.fillRect(from, 2, to - from, top - 4)
    pen.globalAlpha = 1
    pen.fillStyle = colour.faint
    pen.textAlign = "left"
    const text = wide > 130 ? `step ${number} · ${duration(c.step_end[i] - c.step_begin[i])}` : wide > 64 ? `step ${number}` : ""
    pen.fillText(text, Math.max(from, LEFT) + 5, top / 2)
  }
}
function pixels(seen, left, top, width, height) {
  const small = new OffscreenCanvas(seen.cols, lanes)
  small.getContext("2d").putImageData(image(seen), 0, 0)
  pen.imageSmoothingEnabled = false
  pen.drawImage(small, left, top, width, height)
}
function rects(x, top, height, colour) {
  for (let lane = 0; lane < lanes; lane++) {
    const y = top + lane * height, [from, to] = between(lane, x0, x1)
    for (let i = from; i < to; i++) {
      const op = c.op[c.task[i]], begin = c.begin[i], ready = begin - c.gap[i], left = x(begin), wide = x(begin + c.took[i]) - left
      if (c.wait[i]) {
        pen.fillStyle = colour.wait
        pen.globalAlpha = 0.5
        pen.fillRect(x(ready - c.wait[i]), y + height * 0.35, x(ready) - x(ready - c.wait[i]), height * 0.3)
        pen.globalAlpha = 1
      }
      if (hidden.has(op)) continue
      pen.fillStyle = about.colours[op]
      pen.fillRect(left, y + height * 0.07, Math.max(wide, 0.5), height * 0.86)
      const from = Math.max(left, LEFT), room = left + wide - from - 8
      const short = about.ops[op], long = c.layer[c.task[i]] ? `${short} L${c.layer[c.task[i]] - 1}` : short
      const text = [long, short].find((t) => pen.measureText(t).width < room)
      if (height >= 12 && text) {
        pen.fillStyle = about.inks[op]
        pen.textAlign = "left"
        pen.fillText(text, from + 4, y + height / 2)
      }
    }
  }
}
function later() {
  if (!pending) { pending = true; requestAnimationFrame(draw) }
}

// moves

function show(from, to) {
  const span = Math.min(Math.max(to - from, NARROWEST), (whole[1] - whole[0]) * 1.2)
  const middle = Math.min(Math.max((from + to) / 2, whole[0]), whole[1])
  x0 = middle - span / 2
  x1 = middle + span / 2
  later()
}
const zoom = (factor, at) => show(at - (at - x0) * factor, at + (x1 - at) * factor)
const shift = (share) => show(x0 + (x1 - x0) * share, x1 + (x1 - x0) * share)
const fit = () => show(...whole)
function place(event) {  // time and lane (-1: none) of a mouse event, null outside the lanes and strips
  const {left, top, width, height} = inner(), outer = canvas.getBoundingClientRect()
  const dx = event.clientX - outer.left - left, dy = event.clientY - outer.top - top
  if (dx < 0 || dx > width) return null
  return {time: x0 + dx / width * (x1 - x0), lane: dy >= 0 && dy < height ? Math.floor(dy / height * lanes) : -1}
}
canvas.addEventListener("wheel", (event) => {
  const p = place(event)
  if (!p) return
  event.preventDefault()
  zoom(1.0015 ** event.deltaY, p.time)
}, {passive: false})
canvas.addEventListener("pointerdown", (event) => {
  if (event.button || !place(event)) return
  drag = {x: event.clientX, x0, x1}
  canvas.setPointerCapture(event.pointerId)
})
canvas.addEventListener("pointermove", (event) => {
  pointer = place(event)
  if (drag) {
    const moved = (drag.x - event.clientX) / inner().width * (drag.x1 - drag.x0)
    show(drag.x0 + moved, drag.x1 + moved)
  }
  tell(event)
})
canvas.addEventListener("pointerup", () => { drag = null })
canvas.addEventListener("pointerleave", () => { pointer = null; $(".tip").hidden = true })
canvas.addEventListener("dblclick", fit)
function rows(pairs) {
  return pairs.map(([name, value]) => {
    const row = document.createElement("tr")
    for (const [kind, text] of [["th", name], ["td", value]]) row.append(Object.assign(document.createElement(kind), {textContent: text}))
    return row
  })
}
function tell(event) {
  const tip = $(".tip"), found = pointer && !drag && pointer.lane >= 0 ? at(pointer.time, pointer.lane) : null
  tip.hidden = !found
  if (!found) return
  const title = Object.assign(document.createElement("b"), {textContent: found[0]}), table = document.createElement("table")
  table.append(...rows(found.slice(1)))
  tip.replaceChildren(title, table)
  const {offsetWidth: w, offsetHeight: h} = tip
  tip.style.left = `${event.clientX + 16 + w > innerWidth ? event.clientX - 12 - w : event.clientX + 16}px`
  tip.style.top = `${event.clientY + 16 + h > innerHeight ? event.clientY - 12 - h : event.clientY + 16}px`
}
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  const middle = pointer?.time ?? (x0 + x1) / 2, help = $("dialog")
  const keys = {w: () => zoom(1 / 1.4, middle), s: () => zoom(1.4, middle), a: () => shift(-0.2), d: () => shift(0.2), f: fit,
                "?": () => help.open ? help.close() : help.showModal()}
  const act = keys[event.key.toLowerCase()]
  if (act) { act(); event.preventDefault() }
})

// around the canvas

function paint() {
  for (const [name, colour] of Object.entries(theme())) document.body.style.setProperty(`--${name}`, colour)
  document.body.style.setProperty("--kind", about.kinds[dark ? 1 : 0])
  document.body.classList.toggle("dark", dark)
  document.documentElement.style.colorScheme = dark ? "dark" : "light"
  later()
}
function legend() {  // the ops with their share of all lanes' time within steps, over all that the file holds
  const busy = new Float64Array(about.ops.length), [from, to] = whole
  let wait = 0, tail = 0, stepped = 0
  const inside = (a, b) => Math.max(Math.min(b, to) - Math.max(a, from), 0)
  for (let lane = 0; lane < lanes; lane++) {
    const [a, b] = between(lane, from, to)
    for (let i = a; i < b; i++) {
      const ready = c.begin[i] - c.gap[i]
      busy[c.op[c.task[i]]] += inside(c.begin[i], c.begin[i] + c.took[i])
      wait += inside(ready - c.wait[i], ready)
    }
  }
  for (let i = 0; i < c.tail_begin.length; i++) tail += inside(c.tail_begin[i], c.tail_end[i])
  for (let i = 0; i < c.step_begin.length; i++) stepped += inside(c.step_begin[i], c.step_end[i]) * lanes
  const items = [...about.ops.map((op, k) => [op, about.colours[k], busy[k], k]), ["wait", about.wait, wait, -1],
    ["ready", "", Math.max(stepped - busy.reduce((a, b) => a + b, wait + tail), 0), -1], ["tail", "", tail, -1]]
  $(".legend").replaceChildren(...items.map(([name, colour, time, op]) => {
    const button = Object.assign(document.createElement("button"), {type: "button", disabled: op < 0})
    button.title = op < 0 ? about.idle[name][1] : `${name}: click hides or shows, alt-click shows it alone`
    button.setAttribute("aria-pressed", String(!hidden.has(op)))
    button.dataset.op = name
    for (const [kind, text] of [["i", ""], ["span", op < 0 ? about.idle[name][0] : name], ["b", `${(100 * time / (stepped || 1)).toFixed(1)} %`]]) {
      button.append(Object.assign(document.createElement(kind), {textContent: text}))
    }
    button.firstChild.style.background = name === "tail" && op < 0 ? `linear-gradient(135deg, transparent 50%, ${about.tail} 50%)` : colour
    button.firstChild.classList.toggle("blank", !colour)
    button.addEventListener("click", (event) => {
      const others = about.ops.map((_, k) => k).filter((k) => k !== op)
      if (event.altKey) {
        const alone = others.every((k) => hidden.has(k)) && !hidden.has(op)
        hidden.clear()
        if (!alone) others.forEach((k) => hidden.add(k))
      } else if (!hidden.delete(op)) hidden.add(op)
      legend()
      later()
    })
    return button
  }))
}
$("h1").textContent = about.title
$("p").textContent = `${about.words} · ${about.maker}`
$(".theme").addEventListener("click", () => { dark = !dark; paint() })
$(".keys").addEventListener("click", () => $("dialog").showModal())
$("dialog table").append(...rows([["wheel, W, S", "zoom time at the pointer"], ["drag, A, D", "move in time"],
  ["F, double click", "fit everything"], ["click, alt-click on a name", "hide an op, show it alone"], ["?", "this list"]]))
new ResizeObserver(later).observe(canvas)
paint()
legend()
window.mkviz = {frame, at, range: () => [x0 + base, x1 + base], box: inner, picture: () => picture, show}
document.body.dataset.mkviz = "ready"
