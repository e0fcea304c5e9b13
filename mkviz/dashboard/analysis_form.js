// A row of choices and texts; what was changed goes to the server at once, a text with Enter or when it is left.
export function render({model, el}) {
  el.classList.add("mkviz-form")
  const send = () => {
    const inputs = [...el.querySelectorAll("[name]")]
    model.send_msg({values: Object.fromEntries(inputs.map((input) => [input.name, input.value]))})
  }
  function control(field) {
    const input = document.createElement(field.options ? "select" : "input")
    input.name = field.name
    if (field.options) {
      input.replaceChildren(...field.options.map(([value, words]) => new Option(words, value, false, value === field.value)))
    } else {
      input.type = "text"
      input.value = field.value
      input.placeholder = field.like
      input.spellcheck = false
    }
    input.addEventListener("change", send)
    return input
  }
  function update() {
    const focused = el.getRootNode().activeElement?.name
    el.replaceChildren(...model.fields.map((field) => {
      const label = document.createElement("label"), words = document.createElement("span")
      words.textContent = field.label
      label.append(words, control(field))
      return label
    }))
    if (focused) el.querySelector(`[name="${focused}"]`)?.focus()
  }
  model.on(["fields"], update)
  update()
}
