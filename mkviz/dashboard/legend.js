// The legend: a button per op with its time share.  Click hides it, alt-click shows it alone.
export function render({model, el}) {
  el.classList.add("mkviz-legend")
  const buttons = new Map()
  function update() {
    const names = new Set(model.items.map((item) => item.op))
    for (const [op, button] of buttons) if (!names.has(op)) { button.remove(); buttons.delete(op) }
    for (const item of model.items) {
      let button = buttons.get(item.op)
      if (!button) {
        button = document.createElement("button")
        button.type = "button"
        button.innerHTML = "<i></i><span></span><b></b>"
        button.title = `${item.op}: click hides or shows, alt-click shows it alone`
        button.addEventListener("click", (event) => model.send_msg({op: item.op, alone: event.altKey}))
        buttons.set(item.op, button)
        el.append(button)
      }
      button.dataset.op = item.op
      button.disabled = !item.clickable
      button.setAttribute("aria-pressed", String(!item.hidden))
      button.classList.toggle("off", item.hidden)
      button.querySelector("i").style.background = item.colour
      button.querySelector("i").className = item.clickable ? "" : "hatched"
      button.querySelector("span").textContent = item.op
      button.querySelector("b").textContent = item.share
    }
  }
  model.on("items", update)
  update()
}
