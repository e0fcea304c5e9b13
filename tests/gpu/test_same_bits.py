"""Same input, same bits: whatever the timing, the batch, the copy path, or what lies in memory that nobody has written."""

import numpy as np
import pytest
from cases import CASES
from checkpoints import make_checkpoint
from rows import Rows, demo_directory, same_bits
from stepping import make_plan, open_cuda

pytestmark = pytest.mark.gpu

REPEATS = 200
INPUTS = {"rope_table", "abort", "stop", "go", "page_table", "kv"}  # what a step reads and has not written itself
NAN16, ONES32, ONES64 = 0x7FFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def prompts(backend, lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(10, backend.config.vocab, n).tolist() for n in lengths]


def bits(logits: list[np.ndarray]) -> list[np.ndarray]:
    return [x.view(np.uint32) for x in logits]


@pytest.fixture(scope="module", params=["demo", "llama-576", "qwen3moe-256"])
def directory(request, tmp_path_factory):
    if request.param == "demo":
        return demo_directory()
    directory = tmp_path_factory.mktemp(request.param, numbered=False)
    family, settings = CASES[request.param]
    make_checkpoint(directory, family, **settings)
    return directory


def mixed_step(backend):
    """A step of eight rows over three sequences, two of them longer than a split: prefill and decode together."""
    rows = Rows(backend, prompts(backend, (300, 70, 530)))
    while rows.done != [299, 66, 527]:
        left = [end - done for end, done in zip((299, 66, 527), rows.done, strict=True)]
        counts = [min(n, 8 // sum(x > 0 for x in left)) for n in left]
        rows.step(counts)
    rows.step([1, 4, 3])
    return rows.plans[-1], rows.results[-1].logits.copy()


def test_200_repeats_of_a_step(directory, evidence):
    backend = open_cuda(directory)
    plan, first = mixed_step(backend)
    same = [same_bits(backend.step(plan).logits, first) for _ in range(REPEATS)]
    evidence.add("repeats", model=directory.name, rows=len(plan), runs=REPEATS, identical=sum(same))
    assert all(same)


@pytest.mark.parametrize("most", [1, 8])
def test_one_models_kernel_gives_the_same_bits(directory, most, evidence, monkeypatch):
    """The kernel with the model's sizes as constants, against the one for all models."""
    from engine.cuda.backend import CudaBackend

    backend = open_cuda(directory)
    tokens = prompts(backend, (300, 90) if most > 1 else (70,))
    expected = Rows(backend, tokens, seed=6).run(most=most)
    monkeypatch.setattr(CudaBackend, "known", True)
    for trace in (0, 1):
        got = Rows(open_cuda(directory, trace=trace), tokens, seed=6).run(most=most)
        same = all(same_bits(a, b) for a, b in zip(got, expected, strict=True))
        evidence.add("one model's kernel", model=directory.name, rows=most, trace=trace, identical=same)
        assert same


def test_many_splits_are_merged_alike(directory, evidence, monkeypatch):
    """Of 14 splits, two batches of a merge: by the kernels for one row and for eight, for all models and for this one."""
    from engine.cuda.backend import CudaBackend

    got = []
    for known, alone in ((False, 0), (False, 8), (True, 0), (True, 8)):
        monkeypatch.setattr(CudaBackend, "known", known)
        backend = open_cuda(directory)
        if backend.config.max_positions < 3500:
            pytest.skip("its context is shorter")
        rows = Rows(backend, prompts(backend, (3496,)))
        while rows.done[0] < 3496 - alone:
            rows.step([8])
        for _ in range(alone):
            rows.step([1])
        got.append(rows.logits[0][-8:])
        backend.close()
    same = [same_bits(x, got[0]) for x in got]
    evidence.add("merges of many splits", model=directory.name, identical=sum(same), of=len(same))
    assert all(same)


def test_200_runs_with_delays(directory, evidence):
    """Delays of up to 2 us at every role edge, drawn anew for each run; the expectation comes from a kernel without."""
    _, expected = mixed_step(open_cuda(directory))
    backend = open_cuda(directory, delays=1)
    plan, first = mixed_step(backend)
    same = [same_bits(first, expected)]
    for seed in range(2, REPEATS + 1):
        backend.delays = seed
        same.append(same_bits(backend.step(plan).logits, expected))
    evidence.add("delays", model=directory.name, rows=len(plan), runs=len(same), identical=sum(same))
    assert len(same) == REPEATS and all(same)


def test_delays_over_many_steps_of_a_launch(directory, evidence):
    """Steps that follow each other on the device: whatever runs ahead into the next step must find what it waits for."""
    backend = open_cuda(directory, delays=1)
    plan, _ = mixed_step(backend)
    last = [int(np.flatnonzero(plan.sequence == s)[-1]) for s in range(3)]
    pages = np.stack([np.arange(12 * s, 12 * s + 12) for s in range(3)])
    after = make_plan(plan.token[last], plan.position[last], [0, 1, 2], pages)
    backend.zero_pages(list(range(36)))
    runs = []
    for seed in range(20):
        backend.delays = seed
        backend.run(after, 40)
        runs.append(backend.greedy_steps.copy())
    same = [np.array_equal(r, runs[0]) for r in runs]
    evidence.add("delays, 40 steps a launch", model=directory.name, runs=len(runs), identical=sum(same))
    assert all(same)


@pytest.mark.parametrize("seed", range(3))
def test_a_row_does_not_depend_on_its_batch(directory, seed, evidence):
    """Five sequences in steps of 1 to 8 rows of any mixture, against each alone, one row a step."""
    backend = open_cuda(directory)
    tokens = prompts(backend, (130, 1, 64, 270, 65), seed)
    mixed = Rows(backend, tokens, seed=seed).run(most=6)
    for own, together in zip(tokens, mixed, strict=True):
        alone = Rows(backend, [own], seed=seed)
        while alone.done[0] < len(own):
            alone.step([1])
        assert same_bits(alone.logits[0], together)
    evidence.add("batch", model=directory.name, seed=seed, rows=sum(map(len, tokens)), identical=True)


def test_fewer_sms_and_other_schedules(directory, evidence):
    """The same bits from 132 SMs, 57 and 8, and from lists in another order."""
    expected = None
    for options in ({}, {"sms": 57}, {"sms": 8}, {"policy": "layered"}):
        backend = open_cuda(directory, **options)
        logits = Rows(backend, prompts(backend, (70, 300)), seed=3).run(most=8)
        expected = expected or logits
        same = all(same_bits(a, b) for a, b in zip(logits, expected, strict=True))
        evidence.add("schedule", model=directory.name, sms=backend.sms, policy=backend.policy, identical=same)
        assert same


def test_tracing_changes_no_bit(directory):
    expected = None
    for trace in (0, 1, 2):
        backend = open_cuda(directory, trace=trace)
        logits = Rows(backend, prompts(backend, (70, 300)), seed=6).run(most=8)
        expected = expected or logits
        assert all(same_bits(a, b) for a, b in zip(logits, expected, strict=True)), f"trace {trace}"


def test_rows_that_want_no_logits_change_nothing(directory):
    backend = open_cuda(directory)
    tokens, positions = [11, 12, 13, 14, 15], range(5)
    every = backend.step(make_plan(tokens, positions))
    plan = make_plan(tokens, positions)
    plan.wants_logits[:] = [False, True, False, False, True]
    with backend._stream:
        backend._arrays["logits"].fill(np.nan)
    some = backend.step(plan)
    assert same_bits(some.logits[[1, 4]], every.logits[[1, 4]])
    assert np.isnan(backend._arrays["logits"].get()[[0, 2, 3]]).all(), "the kernel has stored what nobody wants"
    assert some.greedy.tolist() == [-1, every.greedy[1], -1, -1, every.greedy[4]]


def test_counters_wrap_around(directory):
    """The words that count arrivals pass 2^32 between two steps, and inside a launch."""
    backend = open_cuda(directory)
    plan = make_plan([11, 12, 13], [0, 0, 0], range(3), [[i] for i in range(3)])
    expected = backend.step(plan).logits.copy()
    backend.run(plan, 6)
    tokens = backend.greedy_steps.copy()
    program, arrays, epoch = next(iter(backend._programs.values()))[1:]
    arrivals = program.graph.arrivals.astype(np.int64)
    for steps, begin in ((1, 2**32 // int(arrivals.max()) - 3), (6, 2**32 - 3)):
        words = np.zeros((len(arrivals), 32), np.uint32)
        words[:, 0] = begin * arrivals & 0xFFFFFFFF
        arrays["counters"].set(words.reshape(-1))
        epoch[0] = begin
        for _ in range(6 // steps):
            backend.run(plan, steps)
            if steps == 1:
                assert same_bits(backend._arrays["logits"][:3].get(), expected)
        assert np.array_equal(backend.greedy_steps, tokens[:steps])


def test_a_launch_that_is_stopped(directory, evidence):
    """The stop word ends a launch after a whole step; what it has done is right, and the next launch goes on."""
    backend = open_cuda(directory)
    plan = make_plan([11], [0], pages=[np.arange(8)])
    backend.run(plan, 256)
    tokens = backend.greedy_steps.copy()
    backend.start(plan, 256)
    backend.stop()
    backend.finish()
    done = len(backend.greedy_steps)
    evidence.add("stop word", model=directory.name, asked=256, done=done)
    assert 1 <= done < 256 and np.array_equal(backend.greedy_steps, tokens[:done])
    backend.run(plan, 256)
    assert np.array_equal(backend.greedy_steps, tokens)


def test_the_portable_copy_path(directory, evidence, monkeypatch):
    """cp.async as on sm_80, run on this GPU: the same bits as bulk copies."""
    from engine.cuda import backend as module

    backend = open_cuda(directory)
    tokens = prompts(backend, (300, 90))
    expected = Rows(backend, tokens, seed=4).run(most=8)
    defines = module.kernel_defines
    monkeypatch.setattr(module, "kernel_defines", lambda *a: defines(*a) | {"MK_BULK": 0})
    portable = Rows(open_cuda(directory), tokens, seed=4).run(most=8)
    same = all(same_bits(a, b) for a, b in zip(portable, expected, strict=True))
    evidence.add("portable path", model=directory.name, rows=sum(map(len, tokens)), identical=same)
    assert same


# -- what nobody has written leaks nowhere


def poison(backend, pages: bool) -> None:
    """NaNs and wild indices wherever a step has to write before it reads; in the KV pages and rings too where ``pages``."""
    with (
        backend._stream
    ):  # in order with the steps: on a stream of their own they would come whenever the GPU has time for them
        for name, array in backend._arrays.items():
            if name not in INPUTS:
                array.fill({2: NAN16, 4: np.nan if array.dtype == np.float32 else ONES32, 8: ONES64}[array.dtype.itemsize])
        if pages:
            backend._arrays["kv"].fill(NAN16)
            backend.rings.records.fill(ONES32)


@pytest.mark.parametrize("trace", [0, 1])
def test_poison_leaks_nothing(directory, trace, evidence):
    """Scratch, logits and rows beyond the step's are poisoned before every step, pages and rings once, before they open."""
    clean = open_cuda(directory, trace=trace)
    tokens = prompts(clean, (66, 300, 9))
    expected = Rows(clean, tokens, seed=5).run(most=6)

    dirty = open_cuda(directory, trace=trace)
    poison(dirty, pages=True)
    step = dirty.step

    def poisoned_step(plan):
        poison(dirty, pages=False)
        return step(plan)

    dirty.step = poisoned_step
    got = Rows(dirty, tokens, seed=5).run(most=6)
    same = all(same_bits(a, b) for a, b in zip(got, expected, strict=True))
    evidence.add("poison", model=directory.name, trace=trace, rows=sum(map(len, tokens)), identical=same)
    assert same


def test_poison_reaches_the_logits_where_it_should(directory):
    """A check of the check: a page that is not zeroed does leak its NaNs."""
    backend = open_cuda(directory)
    poison(backend, pages=True)
    logits = backend.step(make_plan([11, 12], [0, 1])).logits
    assert np.isnan(logits).any()


def test_a_poisoned_ring_gives_no_record_of_its_own(directory):
    from mkviz.drain import Drain

    backend = open_cuda(directory, trace=1)
    with backend._stream:
        backend.rings.records.fill(ONES32)
    drain = Drain(backend.rings.link(), expects_meta=False)
    for at in range(5):
        backend.step(make_plan([20 + at], [at]))
    stats = drain.close()
    assert stats.torn == stats.lost == 0
    assert stats.written == 5 * len(backend.graphs[0][0])
