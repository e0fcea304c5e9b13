// The legend: a button per op with its time share.  Click hides it, alt-click shows it alone.
export function render({model, el}) {
  el.classList.add("mkviz-legend")
  const buttons = new Map()
  const scale = document.createElement("span")
  scale.className = "scale"
  el.append(scale)
  function update() {
    const {colours, first, last} = model.ramp
    scale.hidden = !colours
    if (colours) {
      scale.innerHTML = "<em></em><i></i><em></em>"
      scale.firstChild.textContent = first
      scale.lastChild.textContent = last
      scale.children[1].style.background = `linear-gradient(to right, ${colours.join(",")})`
    }
    const names = new Set(model.items.map((item) => item.op))
    for (const [op, button] of buttons) if (!names.has(op)) { button.remove(); buttons.delete(op) }
    for (const item of model.items) {
      let button = buttons.get(item.op)
      if (!button) {
        button = document.createElement("button")
        button.type = "button"
        button.innerHTML = "<i></i><span></span><b></b>"
        button.title = item.title
        button.addEventListener("click", (event) => model.send_msg({op: item.op, alone: event.altKey}))
        buttons.set(item.op, button)
        el.append(button)
      }
      button.dataset.op = item.op
      button.disabled = !item.clickable
      button.setAttribute("aria-pressed", String(!item.hidden))
      button.classList.toggle("off", item.hidden)
      button.querySelector("i").style.background = item.strip ? `linear-gradient(135deg, transparent 50%, ${item.strip} 50%)` : item.colour
      button.querySelector("i").hidden = model.ramp.colours !== undefined
      button.querySelector("i").className = item.colour ? "" : "blank"
      button.querySelector("span").textContent = item.words
      button.querySelector("b").textContent = item.share
    }
  }
  model.on(["items", "ramp"], update)
  update()
}
