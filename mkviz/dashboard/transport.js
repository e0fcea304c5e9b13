// Roles, SMs in view, and play.
export function render({model, el}) {
  el.classList.add("mkviz-transport")
  el.innerHTML = `
    <span class="sms"><button type="button" data-do="sms" data-value="-1" aria-label="SMs before" title="SMs before these (↑)">▲</button>
      <output></output>
      <button type="button" data-do="sms" data-value="1" aria-label="SMs after" title="SMs after these (↓)">▼</button></span>
    <button type="button" data-do="roles" title="a sub-lane per role: loader, feeder, math, storer (R)">Roles</button>
    <button type="button" data-do="play" class="play"></button>
    <span class="played">
      <button type="button" data-do="event" data-value="-1" aria-label="event before" title="to the event before (←)">◀❘</button>
      <button type="button" data-do="event" data-value="1" aria-label="event after" title="to the next event (→)">❘▶</button>
      <select aria-label="pace" title="how long a step takes"></select>
      <button type="button" data-do="leave" title="leave the step (Esc)" aria-label="leave">✕</button></span>`
  const $ = (q) => el.querySelector(q)
  const send = (type, value) => model.send_msg({type, value})
  $("select").append(...model.paces.map((pace) => new Option(`${pace} s a step`, pace)))
  for (const button of el.querySelectorAll("button")) {
    button.addEventListener("click", () => send(button.dataset.do, Number(button.dataset.value ?? 1)))
  }
  $("select").addEventListener("change", () => send("pace", Number($("select").value)))
  function update() {
    $(".sms").hidden = !model.sms
    $("output").textContent = model.sms
    $("[data-do=roles]").setAttribute("aria-pressed", String(model.roles))
    $(".play").textContent = model.running ? "❚❚ Pause" : "▶ Play"
    $(".play").title = model.running ? "pause (space)" : model.playing ? "go on (space)" : "play this step in slow motion (P)"
    $(".play").disabled = !model.ready
    $(".played").hidden = !model.playing
    $("select").value = String(model.pace)
  }
  model.on(["roles", "sms", "ready", "playing", "running", "pace"], update)
  update()
}
