"""Costs by op on what the CPU engine was measured to take: fitted to one batch and its prompt, judged on another."""

import numpy as np
import pytest

from engine.engine import Engine
from engine.sampling import SamplingParams
from mkviz.costs_judge import judge
from mkviz.record import KIND_MASK, KIND_TASK
from mkviz.replayable import Replayable
from mkviz.trace import Trace, TraceWriter

PROMPT = list(range(40, 48))
DENSE = ("qkv", "o_proj", "dense_up", "dense_down")


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    """Of the demo model, three times: a prompt of 8 tokens and then 5 steps of one row; then that of three requests at once."""
    path = tmp_path_factory.mktemp("costs") / "batches.mkt"
    engine = Engine(sms=2, workers=2, pages=8, prefix_cache=False, lossless=True)
    writer = TraceWriter(path, kind="measured", device="cpu")
    engine.add_sink(writer)
    for batch in (1, 1, 1, 3):
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        for sequence in [engine.submit(PROMPT[i:] + PROMPT[:i], params) for i in range(batch)]:
            list(engine.stream(sequence))
    engine.remove_sink(writer)
    writer.close()
    engine.close()
    return Trace.open(path)


def of_kind(trace, rows, prefill):
    return [i.step for i in trace.infos() if (len(i.rows), sum(r.kind == "prefill" for r in i.rows)) == (rows, prefill)]


def took(trace, steps, op):
    """Mean ns of math of the tasks of an op, straight from the records."""
    times = []
    for step in steps:
        events = trace.events(steps=step)
        graph = trace.graphs[next(i.graph for i in trace.infos() if i.step == step)][0]
        mine = (graph.op[events["task"]] == graph.ops.index(op)) & (events["flags"] & KIND_MASK == KIND_TASK)
        times.append((events["end"] - events["begin"])[mine])
    return float(np.mean(np.concatenate(times)))


def test_what_a_row_adds_is_that_between_the_two_kinds_of_steps(trace):
    """Two kinds of steps leave no choice: 1 row and 8 rows of the same tiles, whose costs a line goes through."""
    one, eight = of_kind(trace, 1, 0), of_kind(trace, 8, 8)
    assert len(one) == 15 and len(eight) == 3
    found = judge(trace, trace, one[:4] + eight, of_kind(trace, 3, 0)[-4:])
    ops, checked = found.frame("op").set_index("op"), 0
    for op in DENSE:
        cost, low, high = found.costs.ops[op], took(trace, one[:4], op), took(trace, eight, op)
        row = (high - low) / 7
        if not 0 < row < low:  # a machine that others use may take longer for one row than for eight
            continue
        checked += 1
        graph = next(iter(trace.graphs.values()))[0]
        size = graph.bytes[graph.op == graph.ops.index(op)].mean()  # what is not for flops is for itself or for bytes
        assert cost.flops == "told" and cost.base + cost.per_byte * size == pytest.approx(low - row, rel=0.02, abs=2)
        # of all tiles' mean; three rows in a graph of four
        assert ops.loc[op, "predicted"] / ops.loc[op, "tasks"] == pytest.approx(low + 2 * row, rel=0.02)
        assert ops.loc[op, "recorded"] / ops.loc[op, "tasks"] == pytest.approx(
            took(trace, of_kind(trace, 3, 0)[-4:], op), rel=0.02
        )
    assert checked
    assert found.costs.ops["lm_head"].flops == "lent"  # one row in either
    assert found.steps[0].rows == 3 and all(step.predicted > 0 for step in found.steps)


def test_work_of_a_measured_step_is_what_its_rows_and_routes_say(trace):
    """Of 3 rows in a graph of 4, by the shapes of the demo model: hidden 256, a dense layer of 768, eight of experts of 64,
    four of which each row is routed to, a vocabulary of 8192."""
    step = of_kind(trace, 3, 0)[0]
    (fitted,) = Replayable.of(trace).fitted([step])
    graph, flops = fitted.step.graph, fitted.work.flops
    assert abs(fitted.error) < 1e-3 and graph.meta["rows"] == 4
    expected = {"lm_head": 3 * 8192 * 256, "dense_up": 3 * 2 * 768 * 256, "dense_down": 3 * 768 * 256,
                "expert_up": 8 * 3 * 4 * 2 * 64 * 256, "expert_down": 8 * 3 * 4 * 64 * 256}  # fmt: skip
    for op, macs in expected.items():
        assert flops[graph.op == graph.ops.index(op)].sum() == pytest.approx(2 * macs), op
    read = fitted.work.bytes[graph.op == graph.ops.index("expert_down")].sum()
    slots = len({(layer, slot) for layer, slot, *_ in next(i for i in trace.infos() if i.step == step).routes})
    assert read == pytest.approx(slots * 64 * 256 * 2)  # bf16, of the slots that rows share
