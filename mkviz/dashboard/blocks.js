// Blocks: an answer as plain text and code.  Placed before chat.js, which shows it.
//
// A code block is what stands between a line of three or more backticks, with the language behind them, and a line of as many
// or more; or the end, while the answer is still being written.  Everything becomes text nodes: no markup of a model's is obeyed.

// Segments of pieces [[text, step], ...]: block (its number), kind (plain, code, fence or language), piece (its index), text.
// A piece is divided only where its block or kind changes.
function segments(pieces) {
  const text = pieces.map(([part]) => part).join("")
  const marks = []  // [end, block, kind]: what each stretch of the text is
  let block = 0, fence = "", at = 0
  for (const line of text.match(/[^\n]*\n|[^\n]+$/g) ?? []) {
    const [whole, ticks, language] = line.match(/^ {0,3}(`{3,})([^`\n]*)\n?$/) ?? []
    if (whole !== undefined && !fence) {
      fence = ticks
      block++
      const named = at + line.indexOf(ticks) + ticks.length
      marks.push([named, block, "fence"], [at + line.length, block, language.trim() ? "language" : "fence"])
    } else if (fence && whole !== undefined && ticks.length >= fence.length && !language.trim()) {
      fence = ""
      marks.push([at + line.length, block++, "fence"])
    } else {
      marks.push([at + line.length, block, fence ? "code" : "plain"])
    }
    at += line.length
  }
  const found = []
  let mark = 0
  at = 0
  for (const [piece, [part]] of pieces.entries()) {
    for (let rest = part; rest; ) {
      while (marks[mark][0] <= at) mark++
      const [end, of, kind] = marks[mark], here = rest.slice(0, end - at), last = found.at(-1)
      if (last?.piece === piece && last.block === of && last.kind === kind) last.text += here
      else found.push({block: of, kind, piece, text: here})
      at += here.length
      rest = rest.slice(here.length)
    }
  }
  return found
}

// Make div, which shows an earlier state of these pieces, show them: what has not changed is left alone.
function showBlocks(div, pieces) {
  const wanted = segments(pieces), shown = (div.segments ??= [])
  const same = (a, b) => b && a.block === b.block && a.kind === b.kind && a.piece === b.piece && a.text === b.text
  let kept = 0
  while (kept < shown.length && same(shown[kept], wanted[kept])) kept++
  for (const {span} of shown.splice(kept)) {
    const parent = span.parentNode
    span.remove()
    if (!parent.childNodes.length) parent.remove()
  }
  for (const segment of wanted.slice(kept)) {
    const code = segment.kind !== "plain"
    let parent = div.lastElementChild
    if (parent?.dataset.block !== String(segment.block)) {
      parent = document.createElement(code ? "pre" : "p")
      parent.dataset.block = segment.block
      div.append(parent)
    }
    const span = document.createElement("span"), step = pieces[segment.piece][1]
    span.textContent = segment.text
    span.className = segment.kind
    if (step >= 0) span.dataset.step = step
    parent.append(span)
    shown.push({...segment, span})
  }
}

