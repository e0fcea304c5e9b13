// The text pane: the conversation, token by token, and the composer below it.
export function render({model, el}) {
  el.classList.add("mkviz-chat")
  el.innerHTML = `
    <div class="log" role="log" aria-live="polite" tabindex="0" aria-label="generated text"></div>
    <p class="note" role="status"></p>
    <form>
      <textarea rows="2" aria-label="prompt" placeholder="Ask for something, e.g. Write a function that reverses a list"></textarea>
      <div class="bar">
        <input list="models" aria-label="model" title="model: a name or a directory" spellcheck="false">
        <datalist id="models"></datalist>
        <label title="tokens to generate at most"><input type="number" min="1" step="1" required> tokens</label>
        <button type="submit" class="go">Generate</button>
        <button type="button" class="stop" disabled>Stop</button>
      </div>
    </form>`
  const $ = (q) => el.querySelector(q)
  const log = $(".log"), note = $(".note"), form = $("form"), prompt = $("textarea"), choice = $("input"), most = $("input[type=number]")
  const turns = []  // {role, pieces: [[text, step], ...], div}
  let answer = null, pinned = true

  log.addEventListener("scroll", () => { pinned = log.scrollHeight - log.scrollTop - log.clientHeight < 30 })
  const down = () => { if (pinned) log.scrollTop = log.scrollHeight }

  function turn(role, text = "") {
    log.querySelector(".empty")?.remove()
    const div = document.createElement("div")
    div.className = `turn ${role}`
    div.textContent = text
    log.append(div)
    down()
    const made = {role, pieces: text ? [[text, -1]] : [], div}
    turns.push(made)
    return made
  }
  // the conversation outlives a reload, and so a restart of the server
  const kept = "mkviz-chat"
  const remember = () => {
    const last = turns.slice(-20).map(({role, pieces}) => ({role, pieces}))
    sessionStorage.setItem(kept, JSON.stringify({turns: last, prompt: prompt.value, most: most.value}))
  }
  addEventListener("pagehide", remember)
  function recall() {
    const {turns: earlier = [], prompt: draft = "", most: tokens} = JSON.parse(sessionStorage.getItem(kept) ?? "{}")
    prompt.value = draft
    if (tokens) most.value = tokens
    for (const {role, pieces} of earlier) {
      if (role === "user") turn(role, pieces.map(([text]) => text).join(""))
      else { answer = turn(role); append(pieces) }
    }
    answer = null
  }
  function append(pieces) {
    answer ??= turn("assistant")
    answer.pieces.push(...pieces)
    showBlocks(answer.div, answer.pieces)
    down()
  }
  function update() {
    document.body.classList.toggle("mkviz-dark", model.dark)
    if (model.ready) document.body.dataset.mkviz = "ready"
    $("form").hidden = !model.can_generate
    $(".go").disabled = model.running
    $(".stop").disabled = !model.running
    $("datalist").innerHTML = ""
    for (const name of model.models) {
      const option = document.createElement("option")
      option.value = name
      $("datalist").append(option)
    }
    note.textContent = model.note
    note.className = `note ${model.note_kind}`
    if (!log.childElementCount) {
      const p = document.createElement("p")
      p.className = "empty"
      log.append(p)
    }
    const empty = log.querySelector(".empty")
    if (empty) empty.textContent = model.empty
  }
  choice.value = model.model_name
  most.value = model.max_tokens
  model.on(["can_generate", "running", "models", "note", "note_kind", "dark", "empty", "ready"], update)
  model.on("msg:custom", (msg) => {
    if (msg.type === "turn") { answer = null; pinned = true; turn(msg.role, msg.text) }
    else if (msg.type === "append") append(msg.pieces)
    else if (msg.type === "light") {
      for (const span of log.querySelectorAll(".lit")) span.classList.remove("lit")
      if (msg.step >= 0) for (const span of log.querySelectorAll(`[data-step="${msg.step}"]`)) span.classList.add("lit")
    }
  })
  form.addEventListener("submit", (event) => {
    event.preventDefault()
    if (model.running) return
    model.send_msg({type: "generate", prompt: prompt.value, model: choice.value, max_tokens: most.valueAsNumber})
    prompt.value = ""
  })
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit() }
  })
  $(".stop").addEventListener("click", () => model.send_msg({type: "stop"}))
  let over = -1
  log.addEventListener("mousemove", (event) => {
    const step = Number(event.composedPath()[0]?.dataset?.step ?? -1)
    if (step !== over) { over = step; model.send_msg({type: "over", step}) }
  })
  log.addEventListener("mouseleave", () => { if (over !== -1) { over = -1; model.send_msg({type: "over", step: -1}) } })
  log.addEventListener("click", (event) => {
    const step = event.composedPath()[0]?.dataset?.step
    if (step !== undefined && getSelection().isCollapsed) model.send_msg({type: "goto", step: Number(step)})
  })
  recall()
  update()
  model.send_msg({type: "shown"})  // what is sent to it from now on arrives
}
