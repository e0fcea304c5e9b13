"""Recordings that come with mkviz: offered to every page, opened when one is chosen."""

import pytest

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.recordings import FOLDER, recordings
from mkviz.errors import MkvizError
from mkviz.store import LiveStore

NORTH = "recorded on H200: north mini code 6 layers 8K"


def test_every_file_is_offered_and_says_what_it_is():
    assert len(recordings()) == len(list(FOLDER.iterdir())) >= 2
    assert recordings()[NORTH].name == "h200-north-mini-code-6-layers-8K.mkt.zip"


def test_a_recording_is_opened_once_and_only_when_chosen():
    hub = Hub(openers={})
    before = hub.names
    assert NORTH in before and hub.sources == {}
    source = hub.source(NORTH)
    assert (source.kind, source.lanes) == ("recorded", 132)
    assert source.label.startswith("recorded") and "NVIDIA H200" in source.label
    assert len(source.snapshot().steps) == 2
    assert hub.source(NORTH) is source and list(hub.sources) == [NORTH]
    assert [n for n in hub.names if n in before] == before  # opening moves nothing in the list
    assert hub.first == ""  # nobody else's page shows it unasked


def test_what_is_open_comes_before_what_is_on_offer():
    hub = Hub(openers={})
    hub.add_source("live: demo", LiveStore())
    simulations = ["simulated on H200: demo", "simulated on H200, a kernel per op: demo"]
    assert hub.names == ["live: demo", *simulations, *recordings()] and hub.first == "live: demo"
    assert hub.source("nothing of that name") is None


def test_an_offer_that_does_not_open_says_why_and_can_be_tried_again():
    hub, tries = Hub(openers={}), []

    def open_source():
        tries.append(1)
        if len(tries) == 1:
            raise MkvizError("no steps yet", "generate something first")
        return LiveStore()

    hub.offer("later", open_source)
    with pytest.raises(MkvizError, match="no steps yet"):
        hub.source("later")
    assert hub.source("later") is hub.sources["later"] and len(tries) == 2
