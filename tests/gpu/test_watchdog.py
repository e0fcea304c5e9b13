"""A step that cannot end ends all the same: within its budget, saying who waits for whom, and the next request runs."""

import re
import time

import numpy as np
import pytest
from rows import demo_directory, same_bits
from stepping import feed, make_plan, open_cuda

from engine.builder import StepShape
from mkviz.errors import MkvizError
from mkviz.policies import make_schedule
from mkviz.schedule import Schedule

pytestmark = pytest.mark.gpu

BUDGET = 20_000  # polls
TOKENS = [11, 12, 13, 14, 15]

# what is left out of the schedule -> the counter that then lacks an arrival
FAULTS = {
    "embed · tile 0": "x.0",
    "qkv · layer 3 · tile 5": "qkv.3.0",
    "router · layer 2 · tile 0": "router.2",
    "attention · layer 4 · tile 1": "attention.4",
    "o_proj · layer 1 · tile 7": "o.1.7",
    "expert_up · layer 5 · slot 0 · tile 3": "hidden.5",
    "dense_down · layer 0 · tile 3": "x.1",
    "lm_head · tile 4": "logits",
}


@pytest.fixture(scope="module")
def backend():
    backend = open_cuda(demo_directory(), poll_budget=BUDGET)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def right():
    return feed(open_cuda(demo_directory()), TOKENS)


def build(backend, rows: int = len(TOKENS)):
    built = backend.graph_of(StepShape.covering(rows, rows))
    return built, make_schedule(built.graph, backend.sms)


def without(built, schedule, label: str) -> Schedule:
    """The schedule without one task."""
    (task,) = [t for t in range(len(built.graph)) if built.graph.label(t) == label]
    lists = [schedule.tasks_of(s) for s in range(schedule.sms)]
    return Schedule.from_lists([tasks[tasks != task].tolist() for tasks in lists], policy="faulty")


def stuck(backend, plan, steps: int = 1) -> tuple[str, float]:
    """(message, seconds) of a step that cannot end."""
    from engine.cuda.backend import StuckStep

    begin = time.monotonic()
    with pytest.raises(StuckStep) as error:
        backend.run(plan, steps)
    return str(error.value), time.monotonic() - begin


@pytest.mark.parametrize("rows", [1, len(TOKENS)])  # one row has a kernel of its own, where nobody waits for counters
@pytest.mark.parametrize("label", FAULTS)
def test_a_missing_producer(backend, right, label, rows, evidence):
    built, schedule = build(backend, rows)
    faulty = without(built, schedule, label)
    backend.bind(built, faulty, validate=False)
    said, seconds = stuck(backend, make_plan(TOKENS[:rows], range(rows)))
    evidence.add("watchdog", missing=label, rows=rows, said=said, seconds=seconds)
    begin = r"step stuck: .* \(task (\d+)\) on SM (\d+) (?:loader|feeder|math|storer) waits for counter (\S+): (\d+) of (\d+);"
    first = re.match(begin, said)
    assert first, said
    task, sm, have, all_of_them = (int(first[i]) for i in (1, 2, 4, 5))
    assert task in faulty.tasks_of(sm).tolist(), "the SM that waits is the one that has the task"
    counter = built.graph.counters.index(first[3])
    waits = [c for c, _ in built.graph.waits(task)]
    if built.graph.label(task).startswith("expert"):  # the loader must know the experts first
        routed = "top_k" if rows > 1 else "router"
        waits.append(built.graph.counters.index(f"{routed}.{built.graph.layer[task]}"))
    assert counter in waits
    assert have < all_of_them == built.graph.arrivals[counter]
    # however far from it the first to give up was
    producers = int(built.graph.arrivals[built.graph.counters.index(FAULTS[label])])
    assert f" {FAULTS[label]}: {producers - 1} of {producers}; raised by {label} on no SM; give every task to an SM" in said

    backend.bind(built, schedule)
    backend.zero_pages([0])
    assert same_bits(feed(backend, TOKENS, rows=rows), right), "the request after a stuck one is wrong"


def test_a_step_that_never_comes(backend, right, evidence):
    """Without a pick, the first step of a launch ends for nobody, and the second never begins."""
    built, schedule = build(backend)
    backend.bind(built, without(built, schedule, "pick · tile 0"), validate=False)
    plan = make_plan(TOKENS, [0] * 5, range(5), [[i] for i in range(5)])
    said, seconds = stuck(backend, plan, steps=3)
    evidence.add("watchdog", missing="pick · tile 0", said=said, seconds=seconds)
    assert re.match(r"step stuck: the next step on SM \d+ \w+ waits for counter picked: 7 of 8;", said)
    assert "raised by pick · tile 0 on no SM" in said
    backend.bind(built, schedule)
    backend.zero_pages(list(range(5)))
    assert same_bits(feed(backend, TOKENS), right)


def test_no_budget_at_all(backend, right):
    """A budget of no polls at all is spent at the first real wait, whichever role's that is."""
    built, schedule = build(backend)
    backend.bind(built, schedule)
    budget, backend.poll_budget = backend.poll_budget, 0
    plan = make_plan(TOKENS, [0] * 5, range(5), [[i] for i in range(5)])
    said, _ = stuck(backend, plan, steps=3)
    assert "waits for" in said
    backend.poll_budget = budget
    backend.zero_pages(list(range(5)))
    assert same_bits(feed(backend, TOKENS), right)


def test_many_stuck_steps_in_a_row(backend, right):
    """Whatever is on its way when a launch is given up does not reach into the next one."""
    built, schedule = build(backend)
    for label in list(FAULTS)[:6] * 3:
        backend.bind(built, without(built, schedule, label), validate=False)
        stuck(backend, make_plan(TOKENS, range(len(TOKENS))))
    backend.bind(built, schedule)
    backend.zero_pages([0])
    assert same_bits(feed(backend, TOKENS), right)


def test_records_after_a_stuck_step():
    """The rings survive: what the stuck step wrote is counted, and the steps after it are delivered whole."""
    from mkviz.drain import Drain

    backend = open_cuda(demo_directory(), poll_budget=BUDGET, trace=1)
    steps = []

    class Sink:
        def step(self, info, events):
            steps.append((info.step, len(events)))

        def graph(self, *a): ...
        def token(self, *a): ...
        def request(self, *a): ...
        def lost(self, *a): ...
        def close(self, *a): ...

    drain = Drain(backend.rings.link(), expects_meta=False)
    drain.add_sink(Sink())
    built, schedule = build(backend)
    backend.bind(built, schedule)
    drain.graph(0, built.graph, schedule)
    plan = make_plan(TOKENS, range(len(TOKENS)))
    backend.step(plan)
    drain.poll()
    backend.bind(built, without(built, schedule, "lm_head · tile 4"), validate=False)
    stuck(backend, plan)
    backend.bind(built, schedule)
    for _ in range(3):
        backend.step(plan)
        drain.poll()
    stats = drain.close()
    assert stats.torn == 0
    whole = [step for step, events in steps if events == len(built.graph)]
    assert whole == [0, 2, 3, 4]


# -- what the device refuses


def test_too_little_memory_on_this_device(evidence):
    """Refused before anything is allocated: what is free afterwards is what was free before."""
    import cupy

    before = cupy.cuda.runtime.memGetInfo()[0]
    said = r"memory of .+: [\d.]+ GB needed \(.*KV pages [\d.]+ GB.*\), [\d.]+ GB free"
    with pytest.raises(MkvizError, match=said) as error:
        open_cuda(demo_directory(), pages=10_000_000)
    assert cupy.cuda.runtime.memGetInfo()[0] == before
    evidence.add("too little memory", said=str(error.value))


def test_plans_that_do_not_fit(backend):
    def refused(match, plan, steps=1):
        with pytest.raises(MkvizError, match=match):
            backend.run(plan, steps)

    refused("rows: 9 in one step; at most 8", make_plan(range(9), range(9)))
    refused("position 2048; below the model's context of 2048", make_plan([1], [2048]))
    refused("sequences: 9 in one step; at most 8", make_plan([1], [0], [0], np.zeros((9, 1))))
    refused("several rows of a sequence; 1, or one row of each", make_plan([1, 2], [0, 1]), steps=2)
    refused("steps: 257 in one launch; 1 to 256", make_plan([1], [0]), steps=257)
