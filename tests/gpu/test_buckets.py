"""Steps of up to 256 rows on the GPU: the same bits as in steps of eight, whatever is mixed, traced, delayed or poisoned."""

import numpy as np
import pytest
from cases import CASES
from checkpoints import make_checkpoint
from rows import Rows, demo_directory, same_bits
from stepping import make_plan, open_cuda
from test_same_bits import poison, prompts

from mkviz.drain import Drain

pytestmark = pytest.mark.gpu

WIDEST = (64, 128, 256)
LENGTHS = (700, 130, 1, 64, 270, 65, 33, 128)


@pytest.fixture(scope="module", params=["demo", "llama-576", "qwen3moe-256", "cohere-2048"])
def directory(request, tmp_path_factory):
    if request.param == "demo":
        return demo_directory()
    directory = tmp_path_factory.mktemp("buckets") / request.param
    family, settings = CASES[request.param]
    directory.mkdir()
    make_checkpoint(directory, family, **settings)
    return directory


@pytest.fixture(scope="module")
def narrow(directory):
    backend = open_cuda(directory)
    logits = Rows(backend, prompts(backend, LENGTHS), seed=3).run(most=8)
    backend.close()
    return logits


def wide(directory, rows, seed, **options):
    backend = open_cuda(directory, rows=rows, **options)
    return Rows(backend, prompts(backend, LENGTHS), seed=seed).run(most=rows)


@pytest.mark.parametrize("rows", [16, 32, 64, 128, 256])
def test_same_bits_in_every_bucket(directory, narrow, rows, evidence):
    got = wide(directory, rows, seed=rows)
    same = [same_bits(a, b) for a, b in zip(got, narrow, strict=True)]
    worst = max(float(np.nanmax(np.abs(a - b))) for a, b in zip(got, narrow, strict=True))
    evidence.add(
        "bucket", model=directory.name, bucket=rows, sequences=len(same), identical=sum(same), largest_difference=worst
    )
    assert all(same)


@pytest.mark.parametrize("bucket", WIDEST)
@pytest.mark.parametrize("options", [{"trace": 1}, {"trace": 2}, {"sms": 57}, {"delays": 5}, {"policy": "layered"}], ids=str)
def test_same_bits_however_it_runs(directory, narrow, options, bucket, evidence):
    got = wide(directory, bucket, seed=9, **options)
    same = all(same_bits(a, b) for a, b in zip(got, narrow, strict=True))
    evidence.add(f"bucket {bucket}", model=directory.name, identical=same, **options)
    assert same


@pytest.mark.parametrize("bucket", WIDEST)
def test_poison_leaks_nothing_in_wide_steps(directory, narrow, bucket, evidence):
    backend = open_cuda(directory, rows=bucket)
    poison(backend, pages=True)
    step = backend.step

    def poisoned_step(plan):
        poison(backend, pages=False)
        return step(plan)

    backend.step = poisoned_step
    got = Rows(backend, prompts(backend, LENGTHS), seed=2).run(most=bucket)
    same = all(same_bits(a, b) for a, b in zip(got, narrow, strict=True))
    evidence.add(f"poison, bucket {bucket}", model=directory.name, identical=same)
    assert same


@pytest.mark.parametrize("bucket", WIDEST)
def test_a_prompt_of_3000_tokens_while_seven_rows_decode(directory, bucket, evidence):
    """Greedy tokens and logits of all eight sequences, against each of them alone in steps of eight rows at most."""
    backend = open_cuda(directory, rows=bucket)
    if backend.config.max_positions < 3100:
        pytest.skip(f"a context of {backend.config.max_positions}")
    tokens = prompts(backend, (9, 17, 33, 64, 65, 100, 129), seed=1)
    long = prompts(backend, (3000,), seed=2)[0]
    rows = Rows(backend, [*tokens, long], seed=1)
    while any(rows.done[i] < len(tokens[i]) for i in range(7)):
        rows.step([min(8, len(t) - d) for t, d in zip(tokens, rows.done, strict=False)] + [0])
    steps = 0
    while rows.done[7] < 3000:
        for i in range(7):  # each goes on by its own greedy token
            rows.tokens[i].append(int(rows.logits[i][-1].argmax()))
        rows.step([1] * 7 + [min(bucket - 7, 3000 - rows.done[7])])
        steps += 1
    narrow = open_cuda(directory)
    same = 0
    for i in range(8):
        alone = Rows(narrow, [rows.tokens[i]], seed=i).run(most=8)[0]
        same += same_bits(alone, rows.logits[i])
    evidence.add(
        "prefill beside decode", model=directory.name, bucket=bucket, prompt=3000, decoding=7, steps=steps, identical=same
    )
    assert same == 8


@pytest.mark.parametrize(("rows", "bucket"), [(40, 64), (100, 128), (200, 256)])
def test_many_wide_steps_in_one_launch(directory, rows, bucket):
    """So many rows decode twelve steps: the tokens of eight-row launches."""
    steps, i32 = 12, np.int32
    tokens = np.random.default_rng(4).integers(10, 200, rows).astype(i32)
    pages = np.arange(rows, dtype=i32)[:, None]
    backend = open_cuda(directory, rows=bucket)
    backend.run(make_plan(tokens, np.zeros(rows, i32), range(rows), pages), steps)
    together = backend.greedy_steps.copy()
    few = open_cuda(directory)
    for i in range(0, rows, 8):
        n = min(8, rows - i)
        few.run(make_plan(tokens[i : i + 8], np.zeros(n, i32), range(n), pages[i : i + 8]), steps)
        assert np.array_equal(few.greedy_steps, together[:, i : i + 8]), i


@pytest.mark.parametrize("bucket", WIDEST)
def test_records_of_wide_steps(bucket):
    """Four steps of a little less than the bucket, by rings that hold them all."""
    backend, n = open_cuda(demo_directory(), rows=bucket, trace=1, ring_capacity=None), bucket - 4
    drain, graphs, results = Drain(backend.rings.link(), expects_meta=False), 0, []
    for at in range(0, 4 * n, n):
        results.append(backend.step(make_plan(20 + np.arange(n), range(at, at + n))))
        while graphs < len(backend.graphs):
            drain.graph(graphs, *backend.graphs[graphs])
            graphs += 1
        drain.poll()
    stats = drain.close()
    assert stats.torn == stats.lost == 0
    assert stats.written == sum(len(backend.graphs[r.graph][0]) for r in results)
