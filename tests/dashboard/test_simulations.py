"""Simulations of what is open: offered beside it, opened when chosen, of the generator's own tiles."""

import types

import pytest
from two_lanes import two_lanes

from mkviz.dashboard.hub import Hub
from mkviz.dashboard.simulations import simulations
from mkviz.store import LiveStore, store_of

NAMES = ["simulated on H200: demo", "simulated on H200, a kernel per op: demo"]


def test_a_live_generator_is_offered_on_an_h200_with_tiles_of_its_own():
    asked = []
    live = LiveStore()

    def tiled(graph, sms):
        asked.append(sms)
        return graph

    hub = Hub({"one": lambda model=None: types.SimpleNamespace(source=live, tiled=tiled)})
    assert not set(NAMES) & set(hub.names)
    hub.generator("demo")
    assert hub.names[:3] == ["live: demo", *NAMES]
    first, second = (hub.source(name) for name in NAMES)
    assert (first.kind, first.label, first.of) == ("simulated", "simulated (H200)", live)
    assert second.label == "simulated (H200, a kernel per op)"
    assert hub.source(NAMES[0]) is first and asked == []  # nothing runs before there is a step
    assert hub.names[:3] == ["live: demo", *NAMES]  # no simulations of simulations
    scene = two_lanes()
    live.graph(0, *scene.snapshot.graphs[0])
    live.step(scene.snapshot.infos[0], events_of(scene.snapshot))
    assert len(first.wait().steps) == 1 and asked == [132] and first.lanes == 132


def events_of(snapshot):
    from numpy import repeat, zeros

    from mkviz.record import EVENT

    events = zeros(len(snapshot), EVENT)
    for name in ("task", "begin", "end", "ready", "claim", "publish", "last_wait"):
        events[name] = getattr(snapshot, name)
    events["sm"], events["step"] = repeat([0, 1], [1, 2]), 7
    return events


@pytest.mark.parametrize("name", ["trace: a/b.mkt", "recorded on H200: b"])
def test_a_trace_too_and_one_that_takes_its_place(name):
    snapshot = two_lanes().snapshot
    hub = Hub(openers={})
    hub.add_source(name, store_of(events_of(snapshot), snapshot.graphs))
    simulated = f"simulated on H200: {name.partition(': ')[2]}"
    source = hub.source(simulated)
    assert source.of is hub.sources[name] and source.wait().steps["step"].tolist() == [7]
    hub.add_source(name, LiveStore())  # opened again
    assert hub.source(simulated).of is hub.sources[name]
    assert simulations(simulated, hub.sources[simulated]) == {}
