"""Which SMs are shown and how high each is; sub-lanes, their bars and words."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from two_lanes import two_lanes

from mkviz.dashboard import lanes, role_bars
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.scene import Look
from mkviz.dashboard.session import Session
from mkviz.dashboard.timeline import Timeline, uncovered


@pytest.mark.parametrize(
    ("sms", "of", "shown"),
    [(None, 4, (0, 4)), ((1, 2), 4, (1, 3)), ((3, 4), 4, (0, 4)), ((9, 1), 4, (3, 4)), ((-2, 3), 8, (0, 3)),
     ((0, 0), 4, (0, 1)), ((2, 5), 0, (0, 0))],
)  # fmt: skip
def test_window(sms, of, shown):
    assert lanes.window(sms, of) == range(*shown)


def test_in_words_and_back():
    assert [lanes.words(r, 8) for r in (range(8), range(2, 3), range(2, 5))] == ["all 8 SMs", "SM 2", "SM 2 – 4"]
    assert [lanes.parse(t) for t in ("2-4", "3-3", "4-2", "", "a-b", "-1-2")] == [(2, 3), (3, 1), None, None, None, None]


@pytest.fixture
def scene():
    return two_lanes()


def shown(scene, **look):
    """A timeline of the scene, 200 px high."""
    timeline, scene = Timeline(), replace(scene, look=Look(**look))
    timeline.update(scene, 200)
    return timeline, scene


def test_heights_lead_back_to_lanes_and_roles(scene):
    timeline, _ = shown(scene, roles=True)
    for lane in (0, 1):
        for role in range(4):
            y = timeline.y_of(lane, role)
            assert (timeline.lane_at(y), timeline.role_at(y)) == (lane, role)
    assert timeline.y_of(0, 0) == 1.875 and timeline.y_of(1, 3) == 0.125  # lane 0's loader on top
    assert timeline.lane_at(2.05) == -1  # the row of steps
    timeline, _ = shown(scene, sms=(1, 1))
    assert (timeline.y_of(1), timeline.lane_at(0.5), timeline.role_at(0.5)) == (0.5, 1, None)
    assert timeline.root.yaxis[0].major_label_overrides == {0.5: "SM 1"}


def test_only_the_lanes_in_view_are_drawn(scene):
    timeline, _ = shown(scene, sms=(1, 1))
    assert sorted(timeline.rects.data["left"].tolist()) == [0, 0.45] and set(timeline.rects.data["y"]) == {0.5}
    timeline, scene = shown(scene)
    assert sorted(timeline.rects.data["left"].tolist()) == [0, 0, 0.45]
    index, _ = replace(scene, look=Look(sms=(1, 1))).image_u8()
    whole, _ = scene.image_u8()
    assert len(whole) == 2 and (index == whole[1:]).all()


def test_bars_of_the_roles_by_hand(scene):
    timeline, scene = shown(scene, roles=True)
    bars = timeline.rects.data
    drawn = {
        (round(left, 3), round(right, 3), float(y))
        for left, right, y, alpha in zip(*(bars[k] for k in ("left", "right", "y", "alpha")), strict=True)
        if alpha > 0 and right > left
    }
    assert drawn == {  # µs; heights are 1.875 ... 1.125 for SM 0, 0.875 ... 0.125 for SM 1
        (0.0, 0.4, 1.375), (0.4, 0.41, 1.125),  # qkv on SM 0: math and storer; it reads nothing
        (0.0, 0.3, 0.375), (0.3, 0.31, 0.125),
        (0.42, 0.45, 0.875), (0.42, 0.45, 0.625), (0.45, 0.9, 0.375), (0.9, 0.91, 0.125),  # attention: loader, feeder, ...
    }  # fmt: skip
    waits = timeline.waits.data
    assert list(zip(waits["left"], waits["right"], waits["y"], strict=True)) == [(0.3, 0.42, 0.375)]  # math of SM 1
    assert timeline.roles_title.visible and "level 1" in timeline.roles_title.text and "all 2 SMs" in timeline.roles_title.text
    timeline.update(replace(scene, look=Look()), 200)
    assert not timeline.roles_title.visible


def test_a_label_ends_where_the_next_bar_covers_its_own():
    left, right, y = np.array([[0, 5, 1, 7, 5], [9, 9, 2, 8, 6], [1, 1, 1, 2, 0.5]])  # 0 is covered from 1 on, 1 ends before 5
    assert uncovered(left, right, y).tolist() == [1, 9, 2, 8, 6]
    assert uncovered(*np.zeros((3, 0))).tolist() == []


def test_hover_says_which_role(scene):
    scene = replace(scene, look=Look(roles=True))
    assert role_bars.tip(scene, 440, 1, 0).startswith("<b>loader: attention")
    assert role_bars.tip(scene, 905, 1, 3).startswith("<b>storer: attention")
    assert "last bytes not told" in role_bars.tip(scene, 440, 1, 0)
    assert role_bars.tip(scene, 440, 0, 0) == "" and role_bars.tip(scene, 440, 1, 3) == ""


@pytest.fixture
def session(scene):
    snapshot = replace(scene.snapshot, lanes=64, lane_ptr=np.pad(scene.snapshot.lane_ptr, ((0, 0), (0, 62)), mode="edge"))
    hub, panels = Hub(openers={}), Panels()
    hub.add_source("two", SimpleNamespace(snapshot=lambda: snapshot, label="two", kind="simulated"))
    session = Session(hub, panels)
    panels.connect(session)
    session.choose("two")
    session.height = 480.0
    session.go(0, 1000)
    session.send()
    return session


def test_keys(session):
    def after(key):
        session._key(key)
        return session.look.roles, session.look.sms

    assert after("r") == (True, (0, 10))  # 480 px hold ten SMs of four sub-lanes of 12 px
    assert after("arrowdown") == (True, (10, 10))
    assert after("+") == (True, (12, 5)) and after("arrowup") == (True, (7, 5))
    assert after("-") == (True, (4, 10))
    for _ in range(3):
        session.acked = session.seq  # the page has drawn what was sent
        session._key("-")
    assert session.look.sms is None and session.scene.lanes == range(64)
    assert session.scene.role_image.grid.shape[0] == 256  # all SMs, a row of pixels per sub-lane
    assert after("r") == (False, None)


def test_a_pinned_task_is_brought_into_view(session):
    session._key("r")
    session._key("arrowdown")
    session.pinned = (7, 2)  # on SM 1
    session.send()
    assert session.look.sms == (0, 10)
    session._key("arrowdown")
    assert session.look.sms == (10, 10)  # but the user may look elsewhere
