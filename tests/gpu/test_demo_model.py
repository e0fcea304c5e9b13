"""The demo model on the GPU against the CPU interpreter in bf16 mode, which rounds where the kernel rounds."""

import numpy as np
import pytest

from engine.checkpoint import Weights
from engine.config import load_config
from engine.cpu.backend import CpuBackend
from engine.models import DEMO
from engine.plan import StepPlan

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model():
    config = load_config(DEMO)
    return config, Weights.open(DEMO, config)


def make_plan(tokens, positions, sequences=None, pages=None, wants=True):
    n = len(tokens)
    sequences = np.zeros(n, np.int32) if sequences is None else np.asarray(sequences, np.int32)
    pages = np.arange(32, dtype=np.int32)[None] if pages is None else pages
    return StepPlan(np.asarray(tokens, np.int32), np.asarray(positions, np.int32), sequences, np.full(n, wants), pages)


def feed(backend, tokens, start=0, rows=8):
    """Logits of every token, fed as causal rows of one sequence."""
    out = []
    for at in range(start, len(tokens), rows):
        part = tokens[at : at + rows]
        out.append(backend.step(make_plan(part, range(at, at + len(part)))).logits.copy())
    return np.concatenate(out)


def test_logits_of_a_prompt(model):
    from engine.cuda.backend import CudaBackend

    config, weights = model
    tokens = np.random.default_rng(0).integers(10, config.vocab, 300)
    exact = feed(CpuBackend(config, weights, mode="fp32"), tokens, rows=64)
    rounded = feed(CpuBackend(config, weights, mode="bf16"), tokens, rows=64)
    ours = feed(CudaBackend(config, weights, trace=1), tokens)
    noise = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    error = np.linalg.norm(ours - exact) / np.linalg.norm(exact)
    print(f"error {error:.2e}, of the interpreter's bf16 mode {noise:.2e}, between them {np.linalg.norm(ours - rounded) / np.linalg.norm(exact):.2e}")
    assert error < 1.5 * noise


def test_rows_one_by_one_have_the_same_bits(model):
    from engine.cuda.backend import CudaBackend

    config, weights = model
    tokens = np.random.default_rng(1).integers(10, config.vocab, 100)
    backend = CudaBackend(config, weights, trace=0)
    together = feed(backend, tokens)
    alone = feed(backend, tokens, rows=1)
    assert np.array_equal(together.view(np.uint32), alone.view(np.uint32))


def test_many_steps_in_one_launch(model):
    from engine.cuda.backend import CudaBackend

    config, weights = model
    tokens = np.random.default_rng(2).integers(10, config.vocab, 17)
    backend = CudaBackend(config, weights, trace=0)
    feed(backend, tokens)
    first = backend.step(make_plan(tokens[-1:], [16]))
    one_by_one, token = [], int(first.greedy[0])
    for at in range(17, 57):
        one_by_one.append(token)
        token = int(backend.step(make_plan([token], [at])).greedy[0])
    backend.run(make_plan(tokens[-1:], [16]), 40)
    assert backend.greedy_steps[:, 0].tolist() == one_by_one


def test_records_of_every_task(model):
    from engine.cuda.backend import CudaBackend
    from mkviz.drain import Drain
    from mkviz.protocols import StepInfo

    config, weights = model
    tokens = np.random.default_rng(3).integers(10, config.vocab, 64)
    backend = CudaBackend(config, weights, trace=1)
    drain = Drain(backend.rings.link(), expects_meta=False)
    steps = []

    class Sink:
        def graph(self, *a): ...
        def step(self, info: StepInfo, events): steps.append((info, events.copy()))
        def token(self, *a): ...
        def request(self, *a): ...
        def lost(self, *a): ...
        def close(self, *a): ...

    drain.add_sink(Sink())
    graphs = 0
    for at in range(0, 64, 8):
        backend.step(make_plan(tokens[at : at + 8], range(at, at + 8)))
        while graphs < len(backend.graphs):
            drain.graph(graphs, *backend.graphs[graphs])
            graphs += 1
        drain.poll()
    stats = drain.close()
    print(stats)
    assert stats.lost == 0 and stats.torn == 0 and len(steps) == 8
    graph, schedule = backend.graphs[0]
    for _, e in steps:
        assert np.array_equal(np.sort(e["task"]), np.arange(len(graph)))
        for a, b in (("claim", "ready"), ("ready", "begin"), ("begin", "end"), ("end", "publish")):
            assert (e[a] <= e[b]).all(), (a, b)
    e = steps[-1][1]
    print("step ns", e["publish"].max() - e["claim"].min())
