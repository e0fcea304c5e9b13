"""A machine of two SMs whose rings are drained, and a sink that remembers: what tests of the drain share."""

from mkviz.drain import Drain
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.ring import HostRings, RingWriter
from mkviz.schedule import Schedule


class Recorder:
    """A sink that remembers every call."""

    def __init__(self):
        self.calls, self.steps, self.lost_records, self.lost_steps = [], [], 0, 0

    def graph(self, graph_id, graph, schedule):
        self.calls.append(("graph", graph_id))

    def step(self, info, events):
        self.calls.append(("step", info.step))
        self.steps.append((info, events))

    def token(self, info):
        self.calls.append(("token", info.index))

    def request(self, info):
        self.calls.append(("request", info.state))

    def lost(self, records, steps=0):
        self.lost_records += records
        self.lost_steps += steps

    def close(self, complete=True):
        self.calls.append(("close", complete))

    @property
    def numbers(self):
        return [info.step for info, _ in self.steps]


class Machine:
    """Two SMs playing a graph of five tasks: SM 0 does tasks 0..2, SM 1 tasks 3..4, each 100 ns, 1000 ns a step."""

    tasks = ([0, 1, 2], [3, 4])

    def __init__(self, capacity=64, capture=False, **options):
        self.rings = HostRings(2, capacity, capture=capture)
        self.writers = [RingWriter(self.rings, r) for r in range(2)]
        self.drain, self.sink = Drain(self.rings.link(), **options), Recorder()
        self.drain.add_sink(self.sink)
        builder = GraphBuilder("five", ["op"])
        for _ in range(5):
            builder.task("op")
        self.graph, self.schedule = builder.build(), Schedule.from_lists([list(t) for t in self.tasks])
        for writer in self.writers:
            writer.anchor(1)

    def time(self, step):
        return 10**6 + 1000 * step

    def play(self, step, sm, tasks=None):
        writer = self.writers[sm]
        writer.anchor(self.time(step), step=step)
        writer.step(step)
        for k, task in enumerate(self.tasks[sm] if tasks is None else tasks):
            writer.write(task, step, self.time(step) + 100 * k, 10, 20, 80, 90)
        writer.step(step + 1)

    def run(self, *steps, meta=True):
        for step in steps:
            if meta:
                self.drain.step_meta(StepInfo(step, 0, 0, 0))
            self.play(step, 0)
            self.play(step, 1)

    def polls(self, n=2):
        for _ in range(n):
            self.drain.poll()
