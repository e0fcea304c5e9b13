"""The player on a step worked by hand (two_lanes): where the playhead is, keys, events, the address."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from two_lanes import two_lanes

from mkviz.dashboard import counters, play
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.panels import Panels
from mkviz.dashboard.session import Session
from mkviz.progress import CounterState


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves (s)."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(play.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def session(clock):
    snapshot = two_lanes().snapshot
    hub, panels = Hub(openers={}), Panels()
    hub.add_source("two", SimpleNamespace(snapshot=lambda: snapshot, label="two", kind="simulated"))
    session = Session(hub, panels)
    panels.connect(session)
    session.choose("two")
    session.go(0, 1000)
    session.send()
    return session


def words(session):
    return session.panels.playhead.counters.object


def test_a_step_takes_as_long_as_it_is_told(session, clock):
    player = session.player
    session._key("p")
    assert player.on and player.running and player.number == 7 and player.now == 0
    clock.now += 2.5
    assert player.now == pytest.approx(250)  # a quarter of 10 s of a step of 1000 ns
    player.set_pace(100)
    clock.now += 10
    assert player.now == pytest.approx(350)  # from where it was, a tenth of the step
    session._key(" ")
    clock.now += 50
    assert not player.running and player.now == pytest.approx(350)
    session._key(" ")
    clock.now += 1000
    player.tick()
    assert player.now == 1000 and not player.running  # it rests at the end
    session._key(" ")
    assert player.running and player.now == 0  # and goes on from the begin
    assert not session.paused  # space was the player's


def test_event_by_event_with_the_counter_filling_up(session):
    player, seen = session.player, []
    for _ in range(4):
        session._key("arrowright")
        seen.append(player.now)
    assert seen == [300, 310, 400, 410] and not player.running
    assert "2 of 2" in words(session) and "last raised by qkv · layer 3 · tile 0 on SM 0" in words(session)
    assert "publish of qkv · layer 3 · tile 0 on SM 0" in words(session)
    session._key("arrowleft")
    assert player.now == 400 and "1 of 2" in words(session) and "1 SM waits for it" in words(session)
    assert "1 of 2" in words(session) and "tile 1 on SM 1" in words(session)


def test_only_events_of_the_lanes_in_view(session):
    session.set_look(sms=(1, 1))
    session._key("arrowright")
    session._key("arrowright")
    session._key("arrowright")
    assert session.player.now == 450  # 300, 310, then attention: SM 0's 400 and 410 are left out


def test_escape_leaves_and_leaves_the_rest(session):
    session.pinned = (7, 2)
    session._key("p")
    session._key("Escape")
    assert not session.player.on and session.pinned == (7, 2) and not session.panels.playhead.counters.visible
    assert session.panels.playhead.clock.data["on"] == [0]
    session._key("Escape")
    assert session.pinned is None


def test_the_address_brings_it_back(session, clock):
    player = session.player
    session._key("p")
    assert player.state() == {"play": "7"}
    clock.now += 4
    player.set_pace(30)
    player.run(False)
    state = player.state()
    assert state == {"play": "7", "at": "0.400", "pace": "30"}
    player.leave()
    assert player.state() == {}
    player.restore(state)
    assert player.on and not player.running and player.now == 400 and player.pace == 30
    player.leave()
    player.restore({"play": "7"})
    assert player.running and player.now == 0
    player.leave()
    for bad in ({"play": "x"}, {"play": "7", "at": "x"}, {"play": "8"}):
        player.leave()
        player.restore(bad)
    assert not player.on and "step 8 is not kept" in session.panels.chat.note


def test_the_snapshot_rests_while_a_step_is_played(session):
    first, newer = session.snapshot(), two_lanes().snapshot
    session._key("p")
    session.hub.add_source("two", SimpleNamespace(snapshot=lambda: newer, label="two", kind="simulated"))
    assert session.snapshot() is first
    session._key("Escape")
    assert session.snapshot() is newer


def test_another_source_ends_it(session):
    session._key("p")
    session.source_name = ""
    session.choose("two")
    assert not session.player.on


def test_which_counters_are_listed(monkeypatch):
    monkeypatch.setattr(counters, "SHOWN", 3)

    def state(counter, value, last):
        return CounterState(counter, value, 4, 0, 0, 0.0, last, 0)

    states = [state(0, 4, 10), state(1, 2, 90), state(2, 4, 30), state(3, 4, 20), state(4, 1, 5)]
    assert [s.counter for s in counters.chosen(states)] == [1, 4, 2]  # those that fill up, then the one met last
    unraised = [replace(state(5, 0, 0), waiting=1), replace(state(6, 0, 0), waiting=9)]
    monkeypatch.setattr(counters, "AWAITED", 1)
    assert [s.counter for s in counters.chosen([*states, *unraised])] == [1, 4, 6]  # before those met
