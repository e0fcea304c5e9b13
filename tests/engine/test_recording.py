"""A recording loses nothing when its drain gets no processor; without ``lossless`` the engine does not wait, and says so."""

import numpy as np
import pytest

from engine.engine import Engine
from engine.generator import EngineGenerator
from mkviz.protocols import GenerateRequest
from mkviz.record import KIND_MASK, KIND_TASK

TOKENS = 40


class Recorder:
    """A sink that keeps (graph, tasks) of each step, and what it was told is lost."""

    def __init__(self):
        self.graphs, self.steps, self.lost_counts = {}, {}, np.zeros(2, int)

    def graph(self, graph_id, graph, schedule):
        self.graphs[graph_id] = graph

    def step(self, info, events):
        self.steps[info.step] = info, events

    def token(self, info):
        pass

    def request(self, info):
        pass

    def lost(self, records, steps=0):
        self.lost_counts += records, steps

    def close(self, complete=True):
        pass


def generate_with_a_starved_drain(lossless: bool) -> tuple[Recorder, int]:
    """(what a sink got, steps run): two SMs, rings of two prompt steps or four others, a drain that does not poll by itself."""
    engine = Engine(None, sms=2, workers=1, ring_capacity=512, lossless=lossless)
    engine.drain.interval = 1e6
    sink = Recorder()
    try:
        engine.drain._thread.join(0.1)  # it may be in its first, short wait
        engine.add_sink(sink)
        request = GenerateRequest("Write a Python function that adds two numbers.", max_tokens=TOKENS)
        list(EngineGenerator(engine, live=False).stream(request))
        engine.remove_sink(sink)
    finally:
        engine.close()
    return sink, engine.backend.serial


@pytest.fixture(scope="module")
def recorded():
    return generate_with_a_starved_drain(lossless=True)


def test_every_task_of_every_step_is_recorded_once(recorded):
    sink, steps = recorded
    assert list(sink.steps) == list(range(steps)) and steps > 20
    for info, events in sink.steps.values():
        assert sorted(events["task"].tolist()) == list(range(len(sink.graphs[info.graph])))
    assert sink.lost_counts.tolist() == [0, 0]


def test_the_wait_for_room_lies_between_steps(recorded):
    """No task of a step lies outside of it, and steps do not overlap: what is between them is nobody's step time."""
    sink, _ = recorded
    ends = 0
    for info, events in sink.steps.values():
        tasks = events[events["flags"] & KIND_MASK == KIND_TASK]
        assert ends <= info.begin == tasks["ready"].min()
        assert info.end == tasks["publish"].max()
        ends = info.end


def test_without_it_steps_are_lost_and_counted_to_the_record():
    sink, steps = generate_with_a_starved_drain(lossless=False)
    lost_records, lost_steps = sink.lost_counts
    assert lost_steps > 0 and len(sink.steps) + lost_steps == steps
    held = sum(len(events) for _, events in sink.steps.values())
    prompt, decode = (len(graph) for graph in sink.graphs.values())
    assert held + lost_records == prompt + (steps - 1) * decode


def test_an_sm_claims_its_next_task_when_the_last_is_done_whoever_plays_others_meanwhile(recorded):
    """So what lies between claim and ready is a wait for counters, and a lack of workers lies between ready and begin."""
    sink, _ = recorded
    for _, events in sink.steps.values():
        order = events[np.argsort(events["begin"])]  # one worker: tasks run one at a time
        first = [events["claim"][events["sm"] == sm].min() for sm in range(2)]
        assert max(first) <= order["begin"][0]
        for task, begin in zip(order[:-1], order["begin"][1:], strict=True):
            later = events["claim"][(events["sm"] == task["sm"]) & (events["claim"] >= task["publish"])]
            assert len(later) == 0 or later.min() <= begin
