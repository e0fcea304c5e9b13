"""``panel serve apps/timeline.py``: the page of timeline and text.  Traces named after ``--args`` are opened too."""

import sys

from mkviz.dashboard.hub import hub
from mkviz.dashboard.page import page

for path in sys.argv[1:]:
    if f"trace: {path}" not in hub.sources:
        hub.open_trace(path)

if not sys.argv[1:]:
    hub.warm_up()
page().servable()
