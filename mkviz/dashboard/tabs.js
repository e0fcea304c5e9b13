// The tabs beside the timeline; the text is a part of its own, the tables are drawn here.
export function render({model, el}) {
  el.classList.add("mkviz-tabs")
  el.innerHTML = `<div role="tablist" aria-label="beside the timeline"></div>
    <div role="tabpanel" tabindex="0"><p></p><table><thead></thead><tbody></tbody></table></div>`
  const $ = (q) => el.querySelector(q)
  const list = $("[role=tablist]"), panel = $("[role=tabpanel]")
  const send = (type, value) => model.send_msg({type, value})
  for (const name of model.names) {
    const tab = document.createElement("button")
    tab.type = "button"
    tab.textContent = name[0].toUpperCase() + name.slice(1)
    tab.dataset.tab = name
    tab.setAttribute("role", "tab")
    tab.addEventListener("click", () => send("tab", name))
    list.append(tab)
  }
  list.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key]
    if (!step) return
    event.preventDefault()
    const tabs = [...list.children], at = tabs.findIndex((tab) => tab.dataset.tab === model.chosen)
    const next = tabs[(at + step + tabs.length) % tabs.length]
    next.focus()
    send("tab", next.dataset.tab)
  })
  function cell(kind, text) {
    const td = document.createElement(kind)
    td.textContent = text
    return td
  }
  function row(texts, number) {
    const tr = document.createElement("tr")
    tr.append(...texts.map((text) => cell("td", text)))
    if (model.linked) {  // a button, so that the keyboard gets there too
      const button = document.createElement("button")
      button.type = "button"
      button.textContent = texts[0]
      button.addEventListener("click", () => send("row", number))
      tr.firstChild.replaceChildren(button)
    }
    return tr
  }
  function update() {
    for (const tab of list.children) {
      const chosen = tab.dataset.tab === model.chosen
      tab.setAttribute("aria-selected", String(chosen))
      tab.tabIndex = chosen ? 0 : -1
    }
    panel.hidden = model.chosen === "text"
  }
  function fill() {
    const root = el.getRootNode(), focused = [...panel.querySelectorAll("button")].indexOf(root.activeElement)
    $("p").textContent = model.caption
    const head = document.createElement("tr")
    head.append(...model.head.map((text) => cell("th", text)))
    $("thead").replaceChildren(head)
    $("tbody").replaceChildren(...model.rows.map(row))
    if (focused >= 0) panel.querySelectorAll("button")[focused]?.focus()
  }
  model.on(["chosen"], update)
  model.on(["head", "rows", "caption", "linked"], fill)
  update()
  fill()
}
