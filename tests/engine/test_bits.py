"""Same input, same bits: whatever the order of play, the timing, the tiling, the policy, and whoever else is in the batch."""

from dataclasses import fields, replace

import numpy as np
import pytest
from checkpoints import make_checkpoint
from rows import Rows, open_backend, same_bits

from engine.builder import StepShape, build_graph
from engine.config import load_config
from engine.tiling import Tiling
from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder
from mkviz.policies import POLICIES, make_schedule
from mkviz.schedule import Schedule

WINDOW = 300  # in two or three splits; the longest sequence has three to merge, whose order shows in the bits
MODELS = {
    # family, settings: both kinds of block, of RoPE, of router; shared experts; biases; weights in bf16, f16 (widened) and f32
    "cohere": ("cohere2_moe", {"sliding_window": WINDOW, "num_shared_experts": 1, "storage": "bfloat16"}),
    "qwen-moe": ("qwen3_moe", {"decoder_sparse_step": 2, "norm_topk_prob": True, "head_dim": 24}),
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "storage": "float16"}),
}
LENGTHS = (1, 5, 17, 64, 65, 530)


class Case:
    """A tiny checkpoint, six sequences, and the logits that one worker gives them one by one, row by row."""

    def __init__(self, directory, name, mode="fp32"):
        family, settings = MODELS[name]
        self.directory, self.mode = directory, mode
        make_checkpoint(directory, family, num_hidden_layers=2, max_position_embeddings=1024, **_two_layers(family), **settings)
        self.config = load_config(directory)
        rng = np.random.default_rng(7)
        self.tokens = [rng.integers(0, self.config.vocab, n).tolist() for n in LENGTHS]
        backend = open_backend(directory, sms=1, workers=1, mode=mode)
        self.want = []
        for tokens in self.tokens:
            rows = Rows(backend, [tokens])
            while rows.done[0] < len(tokens):
                rows.step([1])
            self.want += rows.logits

    def check(self, rng, choice, most=20, **options):
        rows = Rows(open_backend(self.directory, mode=self.mode, **options), [self.tokens[i] for i in choice], rng)
        for i, logits in zip(choice, rows.run(most), strict=True):
            assert same_bits(logits, self.want[i]), f"sequence {i}, {options}"


def _two_layers(family):
    if family != "cohere2_moe":
        return {}
    return {"layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"]}


@pytest.fixture(scope="module", params=MODELS)
def case(request, tmp_path_factory):
    return Case(tmp_path_factory.mktemp("model"), request.param)


def random_tiling(rng, config) -> Tiling:
    """Any tiling: no result may depend on where one tile ends.  A head norm needs its head in one tile."""
    half = config.head_dim // 2
    sizes = {f.name: int(rng.integers(1, 70)) for f in fields(Tiling)}
    pairs = half if config.qk_norm else int(rng.integers(1, half + 1))
    return Tiling(**sizes | {"qkv_pairs": pairs, "lm_head": sizes["lm_head"] + 8})


def random_options(rng, config) -> dict:
    return {"sms": int(rng.integers(1, 40)), "policy": str(rng.choice(list(POLICIES))), "tiling": random_tiling(rng, config)}


def random_choice(rng) -> list[int]:
    """Some short sequences, in any order; now and then the long one."""
    choice = rng.permutation(5)[: rng.integers(1, 6)].tolist()
    return choice if rng.random() < 0.8 else [*choice[:2], 5]


@pytest.mark.parametrize("part", range(4))
def test_random_graphs_and_policies_in_a_random_order(case, part):
    """25 random tilings, SM counts, policies and batches a part, played by one worker that takes SMs at random."""
    for seed in range(part * 25 + 1, part * 25 + 26):
        rng = np.random.default_rng(seed)
        options = random_options(rng, case.config) | {"workers": 1, "seed": seed}
        case.check(rng, random_choice(rng), int(rng.integers(2, 30)), **options)


def test_threads_with_jitter(case):
    for seed in range(1, 13):
        rng = np.random.default_rng(1000 + seed)
        options = random_options(rng, case.config) | {"workers": int(rng.integers(2, 5)), "seed": seed, "jitter_ns": 20_000}
        case.check(rng, rng.permutation(4)[:3].tolist(), **options)


def test_prompts_in_steps_of_256_rows(case):
    """Beside one another, and beside a row that decodes."""
    rows = Rows(open_backend(case.directory, rows=256), [case.tokens[i] for i in (5, 1, 4)])
    for counts in ([0, 4, 0], [191, 1, 64], [256, 0, 0], [83, 0, 1]):
        rows.step(counts)
    assert [len(plan) for plan in rows.plans[1:3]] == [256, 256]
    assert [graph.meta["rows"] for graph, _ in rows.backend.graphs.values()][1:] == [256, 256, 128]
    assert all(same_bits(logits, case.want[i]) for i, logits in zip((5, 1, 4), rows.logits, strict=True))


def test_mixed_precision_in_any_batch(tmp_path):
    """bf16 mode: as independent of the batch, and near fp32, as 8 bits of mantissa allow."""
    case = Case(tmp_path, "cohere", mode="bf16")
    for seed in range(1, 9):
        rng = np.random.default_rng(seed)
        case.check(rng, random_choice(rng), workers=1, seed=seed, **random_options(rng, case.config))
    full = Rows(open_backend(tmp_path), case.tokens)
    for rounded, logits in zip(case.want, full.run(), strict=True):
        error = np.abs(rounded - logits)
        assert not same_bits(rounded, logits)
        assert np.sqrt((error**2).mean()) < 2**-6 * np.sqrt((logits**2).mean())


# -- what cannot run is refused before anything runs


@pytest.fixture(scope="module")
def bound(tmp_path_factory):
    """(backend, its step graph of one row, a schedule of it)"""
    directory = tmp_path_factory.mktemp("model")
    make_checkpoint(directory, "cohere2_moe")
    backend = open_backend(directory, sms=4, workers=1)
    built = build_graph(backend.config, StepShape.covering(1, 1), backend.tiling)
    return backend, built, make_schedule(built.graph, 4, "round_robin")


def refused(bound, graph=None, schedule=None, says=""):
    backend, built, sound = bound
    with pytest.raises(MkvizError, match=says):
        backend.bind(replace(built, graph=graph or built.graph), schedule or sound)
    assert backend.graphs == {}


def changed(graph, waits=None, drop=()):
    """The graph with ``waits`` ({task: counters}) added and the tasks of ``drop`` raising nothing."""
    b = GraphBuilder(graph.name, graph.ops)
    for name in graph.counters:
        b.counter(name)
    for t in range(len(graph)):
        more = (waits or {}).get(t, [])
        b.task(graph.ops[graph.op[t]], layer=int(graph.layer[t]), slot=int(graph.slot[t]), tile=int(graph.tile[t]),
               waits=graph.waits(t) + more, raises=[] if t in drop else graph.raises(t))  # fmt: skip
    return b.build()


def task(graph, label):
    return next(t for t in range(len(graph)) if graph.label(t) == label)


def test_sound_ones_are_bound(bound, tmp_path):
    make_checkpoint(tmp_path, "cohere2_moe")
    backend = open_backend(tmp_path, sms=4, workers=1)
    backend.bind(replace(bound[1], graph=changed(bound[1].graph)), bound[2])
    assert list(backend.graphs) == [0]


def test_a_missing_producer_is_refused(bound):
    graph = bound[1].graph
    up = task(graph, "expert_up · layer 2 · slot 1 · tile 0")
    arrivals = int(graph.arrivals[graph.raises(up)[0]])
    refused(bound, changed(graph, drop=[up]), says=rf"expert_down · layer 2 · tile 0 waits for {arrivals} arrivals at counter "
                                                   rf"hidden\.2; it has {arrivals - 1} in a step")  # fmt: skip
    routers = [t for t in range(len(graph)) if graph.label(t).startswith("router · layer 3")]
    refused(bound, changed(graph, drop=routers), says=r"expert_up · layer 3 .* counter router\.3, which nobody raises")


def test_a_cycle_is_refused(bound):
    graph = bound[1].graph
    first = task(graph, "qkv · layer 1 · tile 0")
    later = graph.counters.index("attention.1")
    refused(bound, changed(graph, waits={first: [later]}),
            says=r"has a cycle: .*qkv · layer 1 · tile 0 \(waits for attention\.1\) → attention · layer 1")  # fmt: skip


def test_a_swapped_ring_order_is_refused(bound):
    _, built, sound = bound
    load = sound.load_order.copy()
    at = int(sound.order_ptr[2])
    load[[at + 3, at + 4]] = load[[at + 4, at + 3]]
    runs, loads = (built.graph.label(int(a[at + 3])) for a in (sound.order, load))
    refused(bound, schedule=replace(sound, load_order=load), says=f"SM 2 loads {loads} .* where it runs {runs} ")


def test_a_deadlock_is_refused(bound):
    sound = bound[2]
    lists = [sound.tasks_of(s).tolist() for s in range(4)]
    lists[1].reverse()
    refused(bound, schedule=Schedule.from_lists(lists), says="deadlock: SM ")


def test_a_schedule_over_other_sms_is_refused(bound):
    refused(bound, schedule=make_schedule(bound[1].graph, 5, "round_robin"), says="schedule over 5 SMs; 4, as many as")
