"""``panel serve apps/timeline.py apps/analyses.py``: the page of analyses beside the timeline."""

from mkviz.dashboard.analyses_page import analyses_page

analyses_page(home="timeline").servable()
