// The bar of controls: which source, whether the view follows or rests, what colours mean, search, help.
export function render({model, el}) {
  el.classList.add("mkviz-bar")
  el.innerHTML = `
    <select aria-label="source"></select>
    <select class="below" aria-label="compare with"></select>
    <button type="button" class="live" title="follow the newest steps (L)"></button>
    <button type="button" class="pause" title="freeze the view, keep recording (space)"></button>
    <div class="modes" role="radiogroup" aria-label="colour"><span>colour</span></div>
    <input type="search" aria-label="search" placeholder="/ search: op, L3"
      title="words of an op's name, L3 for layer 3; Enter goes to the next task that matches" spellcheck="false">
    <output></output>
    <button type="button" class="help" title="keys (?)" aria-label="keys">?</button>`
  const $ = (q) => el.querySelector(q)
  const source = $("select"), below = $(".below"), live = $(".live"), pause = $(".pause"), search = $("input")
  const send = (type, value) => model.send_msg({type, value})
  for (const mode of model.modes) {
    const button = document.createElement("button")
    button.type = "button"
    button.textContent = button.dataset.mode = mode
    button.setAttribute("role", "radio")
    button.addEventListener("click", () => send("mode", mode))
    $(".modes").append(button)
  }
  function update() {
    source.hidden = !model.sources.length
    source.replaceChildren(...model.sources.map((name) => new Option(name, name, false, name === model.source)))
    if (!model.source) {  // else the first one would look chosen
      source.prepend(new Option("choose a source", "", true, true))
      source.options[0].disabled = true
    }
    below.hidden = model.sources.length < 2
    below.replaceChildren(
      new Option(model.compare ? "compare with nothing" : "compare with …", "", false, !model.compare),
      ...model.sources.filter((name) => name !== model.source).map((n) => new Option(n, n, false, n === model.compare)))
    source.title = model.source  // where it is cut off
    below.title = model.compare || "show a second source below, on the same time axis"
    live.textContent = model.following ? "● Following" : "Follow live"
    live.setAttribute("aria-pressed", String(model.following))
    live.hidden = pause.hidden = !model.is_live
    pause.textContent = model.paused ? "Resume" : "Pause"
    pause.setAttribute("aria-pressed", String(model.paused))
    for (const button of el.querySelectorAll("[data-mode]")) {
      button.setAttribute("aria-checked", String(button.dataset.mode === model.mode))
    }
    $("output").textContent = model.found
    if (search.getRootNode().activeElement !== search) search.value = model.query
  }
  source.addEventListener("change", () => send("source", source.value))
  below.addEventListener("change", () => send("compare", below.value))
  live.addEventListener("click", () => send("live", true))
  pause.addEventListener("click", () => send("pause", true))
  search.addEventListener("keydown", (event) => { if (event.key === "Enter") send("next", true) })
  search.addEventListener("input", () => send("search", search.value))
  $(".help").addEventListener("click", () => window.dispatchEvent(new KeyboardEvent("keydown", {key: "?"})))
  model.on(["sources", "source", "compare", "following", "paused", "is_live", "mode", "query", "found"], update)
  update()
}
