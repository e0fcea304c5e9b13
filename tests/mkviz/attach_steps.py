"""Steps for the tests of attaching; as a script, a server that is told such steps for ever: ``attach_steps.py TASKS``."""

import sys
import time

import numpy as np

from mkviz.graph import GraphBuilder
from mkviz.protocols import Row, StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule

SMS = 3


def graph_of(tasks, name="g"):
    builder = GraphBuilder(name, ("a", "b"))
    done = builder.counter("done")
    for i in range(tasks):
        builder.task("ab"[i % 2], layer=i, waits=[done] if i == tasks - 1 else [], raises=[done] if i < tasks - 1 else [])
    return builder.build(), Schedule.from_lists([list(range(i, tasks, SMS)) for i in range(SMS)])


def step_of(number, tasks, graph=0):
    events = np.zeros(tasks, EVENT)
    events["step"], events["task"], events["sm"] = number, np.arange(tasks), np.arange(tasks) % SMS
    events["claim"] = events["ready"] = number * 10_000 + np.arange(tasks) * 10
    events["begin"], events["end"], events["publish"] = events["ready"] + 1, events["ready"] + 7, events["ready"] + 8
    events["fill"], events["last_wait"] = number % 16, number % 7
    rows = [Row(0, number % 3, number, 17, "decode")]
    return StepInfo(number, graph, number * 10_000, number * 10_000 + tasks * 10, rows, [(0, 1, 2, 3)]), events


if __name__ == "__main__":
    from mkviz.attach.server import AttachServer

    tasks = int(sys.argv[1])
    server = AttachServer("measured (cpu)", name="killed")
    server.graph(0, *graph_of(tasks))
    for number in range(1 << 30):
        server.step(*step_of(number, tasks))
        time.sleep(0.01)
