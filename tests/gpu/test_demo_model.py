"""The demo model on the GPU against the CPU interpreter in bf16 mode, which rounds where the kernel rounds; its records."""

import numpy as np
import pytest
from cases import CASES
from checkpoints import make_checkpoint
from reference import relative
from rows import demo_directory, open_backend, same_bits
from stepping import feed, make_plan, open_cuda

from engine.engine import Engine
from engine.sampling import SamplingParams
from mkviz.drain import Drain
from mkviz.record import KIND_MASK, KIND_PHASES, KIND_TASK

pytestmark = pytest.mark.gpu


def tokens_of(backend, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(10, backend.config.vocab, count)


def test_logits_of_a_prompt():
    backend = open_cuda(demo_directory(), trace=1)
    tokens = tokens_of(backend, 300, 0)
    exact, rounded = (feed(open_backend(demo_directory(), mode=mode, sms=16), tokens, rows=64) for mode in ("fp32", "bf16"))
    ours = feed(backend, tokens)
    noise, error = relative(rounded, exact), relative(ours, exact)
    print(f"error {error:.2e}, of the interpreter's bf16 mode {noise:.2e}, between them {relative(ours, rounded):.2e}")
    assert error < 1.5 * noise


def test_rows_one_by_one_have_the_same_bits():
    backend = open_cuda(demo_directory())
    tokens = tokens_of(backend, 100, 1)
    assert same_bits(feed(backend, tokens), feed(backend, tokens, rows=1))


def test_many_steps_in_one_launch():
    backend = open_cuda(demo_directory())
    tokens = tokens_of(backend, 17, 2)
    feed(backend, tokens)
    first = backend.step(make_plan(tokens[-1:], [16]))
    one_by_one, token = [], int(first.greedy[0])
    for at in range(17, 57):
        one_by_one.append(token)
        token = int(backend.step(make_plan([token], [at])).greedy[0])
    backend.run(make_plan(tokens[-1:], [16]), 40)
    assert backend.greedy_steps[:, 0].tolist() == one_by_one


class Steps:
    """A sink that keeps (info, events) of every step."""

    def __init__(self):
        self.steps = []

    def step(self, info, events):
        self.steps.append((info, events.copy()))

    def graph(self, *a): ...
    def token(self, *a): ...
    def request(self, *a): ...
    def lost(self, *a): ...
    def close(self, *a): ...


@pytest.mark.parametrize("trace", [1, 2])
def test_records_of_every_task(trace):
    backend = open_cuda(demo_directory(), trace=trace)
    tokens = tokens_of(backend, 64, 3)
    drain, sink, graphs = Drain(backend.rings.link(), expects_meta=False), Steps(), 0
    drain.add_sink(sink)
    for at in range(0, 64, 8):
        backend.step(make_plan(tokens[at : at + 8], range(at, at + 8)))
        while graphs < len(backend.graphs):
            drain.graph(graphs, *backend.graphs[graphs])
            graphs += 1
        drain.poll()
    stats = drain.close()
    assert stats.lost == 0 and stats.torn == 0 and len(sink.steps) == 8
    graph, _ = backend.graphs[0]
    for _, e in sink.steps:
        kind = e["flags"] & KIND_MASK
        assert np.array_equal(np.sort(e["task"][kind != KIND_PHASES]), np.arange(len(graph)))
        assert np.array_equal(np.sort(e["task"][kind == KIND_PHASES]), np.sort(phased(graph, e))) if trace == 2 else True
        e = e[kind == KIND_TASK]
        for a, b in (("claim", "ready"), ("ready", "begin"), ("begin", "end"), ("end", "publish")):
            assert (e[a] <= e[b]).all(), (a, b)


def test_records_of_large_tasks(tmp_path):
    """Tasks of five chunks and of forty: feeders are ahead of the loader, which the ring holds back."""
    family, settings = CASES["llama-2560"]
    make_checkpoint(tmp_path, family, **settings | {"vocab_size": 32064, "num_hidden_layers": 1})
    backend = open_cuda(tmp_path, trace=1)
    drain, sink = Drain(backend.rings.link(), expects_meta=False), Steps()
    drain.add_sink(sink)
    for step in range(6):
        rows = (8, 1)[step % 2]
        at = 8 * (step // 2) + 8 * (step % 2)
        backend.step(make_plan(tokens_of(backend, rows, step), range(at, at + rows)))
    stats = drain.close()
    assert stats.lost == stats.torn == 0 and len(sink.steps) == 6
    for _, e in sink.steps:
        for a, b in (("claim", "ready"), ("ready", "begin"), ("begin", "end"), ("end", "publish")):
            assert (e[a] <= e[b]).all(), (a, b)
        assert (e["publish"] - e["claim"] < 10_000_000).all()  # ns: no difference has wrapped


def test_several_requests_at_once_through_the_engine():
    """Four requests batched by the engine, prompts and decode rows in the same steps, against each by itself."""
    prompts = ["def reverse(items):", "class Stack:", "import sys\n\ndef main():\n    print(", "# a"]

    def tokens(engine, texts):
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        sequences = [engine.submit(engine.tokenizer.encode(text), params, text) for text in texts]
        return [[piece.token for piece in engine.stream(s)] for s in sequences]

    engine = Engine(backend="cuda")
    together = tokens(engine, prompts)
    alone = [tokens(engine, [text])[0] for text in prompts]
    engine.close()
    assert together == alone and all(len(t) >= 40 for t in together)


def phased(graph, events) -> np.ndarray:
    """Tasks of a step that have a record of their phases: those with products that had work."""
    worked = events["task"][(events["flags"] & KIND_MASK) == KIND_TASK]
    without = [graph.ops.index(op) for op in ("embed", "merge", "pick", "top_k", "norm") if op in graph.ops]
    return worked[~np.isin(graph.op[worked], without)]


def test_routes_name_the_experts_and_their_rows():
    """The routes table of a step against the CPU's of the same rows."""
    backend, cpu = open_cuda(demo_directory(), trace=1), open_backend(demo_directory(), mode="bf16", sms=16)
    tokens = tokens_of(backend, 8, 4)
    for rows in (8, 3, 1):  # fewer rows than before: nothing of the step before may stay
        plan = make_plan(tokens[:rows], range(rows))
        assert backend.step(plan).routes == cpu.step(plan).routes
