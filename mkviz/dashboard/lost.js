// The connection is gone: say so, ask for the server until it answers, then load the page anew at the same address.
// Bokeh's own reconnecting is left alone: it keeps half a message that was cut off and then reads the next one wrongly,
// and it takes a new document without its binary arrays.
if (!window.mkvizLost) {
  window.mkvizLost = true
  const banner = document.createElement("div")
  banner.className = "mkviz-banner"
  banner.setAttribute("role", "alert")
  banner.textContent = "Disconnected: the server does not answer. This page resumes when it is back."
  document.body.append(banner)
  const ask = async () => {
    try {
      if ((await fetch(location.href, {cache: "no-store"})).ok) { location.reload(); return }
    } catch { /* still away */ }
    setTimeout(ask, 1000)
  }
  setTimeout(ask, 500)
}
