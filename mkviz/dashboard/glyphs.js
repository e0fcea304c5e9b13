// Bokeh hands a glyph its rows once for every change of the glyph or of its source, in turns that go on when the message is over, with
// the rows counted when they began.  Where a message moves bars and then takes rows away, the turns of the first change ask for rows
// that are gone ("Size mismatch").  So they are handed over once, when a message has been applied whole; until then the old ones stay.
{
  const glyphs = window.Bokeh.require("models/renderers/glyph_renderer").GlyphRendererView.prototype
  const {update_data, set_visuals} = glyphs
  if (!update_data.whole) {
    const latest = new WeakMap()
    glyphs.update_data = async function () {
      const call = {}
      latest.set(this, call)
      await null
      if (latest.get(this) === call) await update_data.call(this)
    }
    glyphs.update_data.whole = true
    // what is painted meanwhile may ask for these by itself, and they are read from the new rows
    glyphs.set_visuals = async function () { if (this.all_indices === this.model.view.indices) await set_visuals.call(this) }
  }
}
