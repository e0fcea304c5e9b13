"""The line under the text: whoever spoke last is heard until somebody has something new to say."""

from types import SimpleNamespace

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import Session
from mkviz.store import LiveStore

WAIT = 30  # s; a thread that does not come within it never will


def test_an_error_stays_though_a_generation_ended_before_it():
    source = LiveStore("simulated (nothing)", "simulated")
    hub = Hub({"one": lambda model=None: SimpleNamespace(source=source, stream=lambda request: iter(()))})
    panels = Panels()
    session = Session(hub, panels)
    panels.connect(session)
    session.generate("hello", "demo", 5)
    session.generation._thread.join(WAIT)
    session.tick()
    assert panels.chat.note.startswith("done") and not panels.chat.running
    session.generate("", "demo", 5)
    session.tick()
    assert panels.chat.note == "the prompt is empty; write what the model should answer" and panels.chat.note_kind == "error"
