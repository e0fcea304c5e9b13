// The bar of the page of analyses: the source, the steps, looking again, and the timeline.
export function render({model, el}) {
  el.classList.add("mkviz-bar")
  el.innerHTML = `
    <a class="timeline" title="these steps on the timeline">Timeline</a>
    <select aria-label="source"></select>
    <input type="text" aria-label="steps" placeholder="steps: all" spellcheck="false" list="mkviz-steps"
      title="12, 10-20, worst or median; nothing for all">
    <datalist id="mkviz-steps"><option value="worst"><option value="median"></datalist>
    <output role="status"></output>
    <button type="button" class="refresh" title="look again, at what is there now">Refresh</button>
    <button type="button" class="auto" title="look again every few seconds while the source grows">Every 5 s</button>`
  const $ = (q) => el.querySelector(q)
  const source = $("select"), steps = $("input"), send = (type, value) => model.send_msg({type, value})
  function update() {
    source.replaceChildren(...model.sources.map((name) => new Option(name, name, false, name === model.source)))
    if (!model.sources.includes(model.source)) {  // else the first one would look chosen
      source.prepend(new Option("choose a source", "", true, true))
      source.options[0].disabled = true
    }
    source.title = model.source  // where it is cut off
    if (steps.getRootNode().activeElement !== steps) steps.value = model.steps
    $("output").textContent = model.words
    $("output").classList.toggle("wrong", model.wrong)
    $("output").title = model.words
    $(".auto").hidden = !model.is_live
    $(".auto").setAttribute("aria-pressed", String(model.auto))
    $(".timeline").href = model.timeline || "./"
    document.body.classList.toggle("mkviz-dark", model.dark)
    if (model.ready) document.body.dataset.mkviz = "ready"
  }
  source.addEventListener("change", () => send("source", source.value))
  steps.addEventListener("change", () => send("steps", steps.value))
  $(".refresh").addEventListener("click", () => send("refresh", true))
  $(".auto").addEventListener("click", () => send("auto", !model.auto))
  model.on(["sources", "source", "steps", "words", "wrong", "is_live", "auto", "timeline", "dark", "ready"], update)
  update()
}
