// The export menu: choose a kind, see its size, save it.  The file comes in pieces, asked for one by one.
const WORDS = {html: "zooms and hovers by itself, needs no server", png: "a picture", svg: "a picture that can be edited", csv: ""}
export function render({model, el}) {
  el.classList.add("mkviz-export")
  el.innerHTML = `
    <button type="button" class="open" aria-haspopup="true" aria-expanded="false" title="save what is shown as a file">Export</button>
    <div class="menu" role="group" aria-label="export" hidden><p class="what"></p><div class="forms"></div>
      <p class="note" role="status"></p><button type="button" class="save" hidden></button></div>`
  const $ = (q) => el.querySelector(q)
  const open = $(".open"), menu = $(".menu"), save = $(".save")
  let pieces = []
  for (const form of model.forms) {
    const button = document.createElement("button")
    button.type = "button"
    button.dataset.form = form
    button.innerHTML = `<b>${form.toUpperCase()}</b><span></span>`
    button.addEventListener("click", () => model.send_msg({type: "make", form}))
    $(".forms").append(button)
  }
  function show(shown) {
    menu.hidden = !shown
    open.setAttribute("aria-expanded", String(shown))
    if (shown) model.send_msg({type: "open"})
  }
  function update() {
    $(".what").textContent = model.what
    for (const form of model.forms) {
      $(`[data-form=${form}] span`).textContent = WORDS[form] || `the table of ${model.table}, with plain numbers`
    }
    $(".note").textContent = model.file_name ? `${model.file_name} · ${model.note}` : model.note
    $(".note").classList.toggle("error", model.wrong)
    save.hidden = !model.file_name
    save.disabled = false
    save.textContent = `Save ${model.note}`
  }
  save.addEventListener("click", () => {
    pieces = []
    save.disabled = true
    model.send_msg({type: "chunk", index: 0})
  })
  model.on("msg:custom", ({type, index, data}) => {
    if (type !== "chunk" || index !== pieces.length) return
    pieces.push(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)))
    if (pieces.length < model.chunks) { model.send_msg({type: "chunk", index: index + 1}); return }
    const link = Object.assign(document.createElement("a"), {download: model.file_name, href: URL.createObjectURL(new Blob(pieces))})
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
    show(false)
    open.focus()
  })
  open.addEventListener("click", () => show(menu.hidden))
  el.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !menu.hidden) { show(false); open.focus(); event.stopPropagation() }
  })
  const outside = (event) => { if (!event.composedPath().includes(el)) show(false) }
  window.addEventListener("pointerdown", outside)
  model.on("remove", () => window.removeEventListener("pointerdown", outside))
  model.on(["what", "table", "file_name", "note", "wrong", "chunks"], update)
  update()
}
