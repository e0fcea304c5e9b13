"""The engine: batching, queueing, stopping, failing.  The model is random and tiny, with the demo model's tokenizer."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from serving import Watch, generate, make_model, params, prompt, text_of, tokens_of

from engine.engine import Engine, StepFailed
from engine.generator import EngineGenerator
from mkviz.errors import MkvizError
from mkviz.protocols import GenerateRequest


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))[0]


@pytest.fixture
def engine(model):
    engine = Engine(model, sms=4, workers=2)
    yield engine
    engine.close()
    assert engine.pool.free == engine.pool.total
    assert not [t for t in threading.enumerate() if t is engine._thread]


# -- batching


def test_eight_at_once_give_the_same_bits_as_one_by_one(engine):
    watch = Watch(engine)
    settings = [{} if i % 2 else {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": i} for i in range(8)]
    alone = [tokens_of(generate(engine, prompt(i), **settings[i])) for i in range(8)]
    watch.go.clear()
    sequences = [engine.submit(prompt(i), params(**settings[i])) for i in range(8)]
    watch.go.set()
    together = [tokens_of(engine.stream(s)) for s in sequences]
    assert together == alone
    assert all(len(t) == 12 for t in alone)
    for i, sequence in enumerate(sequences):
        assert watch.of(i) == watch.of(sequence.request)
    batch = max(len({request for request, _ in plan}) for plan in watch.plans)
    assert batch >= 7  # the first may have begun alone


def test_seeds_reproduce_whatever_the_batch(engine):
    drawn = [tokens_of(generate(engine, prompt(1), temperature=1.0, seed=s)) for s in (5, 6, 5)]
    assert drawn[0] == drawn[2] != drawn[1]
    other = [tokens_of(generate(engine, prompt(1), temperature=1.0, seed=5, choice=c)) for c in (0, 1)]
    assert other[0] == drawn[0] != other[1]
    others = [engine.submit(prompt(i), params(max_tokens=60, temperature=1.0, seed=9)) for i in range(3)]
    assert tokens_of(generate(engine, prompt(1), temperature=1.0, seed=5)) == drawn[0]
    for sequence in others:
        sequence.cancelled = True


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_of_every_token(engine, temperature):
    """Against a log-softmax in f64 of the very logits that the step gave."""
    watch = Watch(engine)
    sequence = engine.submit(prompt(3), params(temperature=temperature, seed=2, logprobs=3))
    new = tokens_of(engine.stream(sequence))
    assert len(sequence.logprobs) == len(new) == 12
    for i, (token, told) in enumerate(zip(new, sequence.logprobs, strict=True)):
        logits = np.frombuffer(watch.logits[sequence.request, sequence.prompt_tokens - 1 + i], np.float32).astype(np.float64)
        want = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert told.chosen == pytest.approx(want[token], abs=4e-7)
        assert [t for t, _ in told.top] == np.argsort(-want)[:3].tolist()
        assert [v for _, v in told.top] == pytest.approx(np.sort(want)[:-4:-1].tolist(), abs=4e-7)
    assert not engine.submit(prompt(3), params(max_tokens=1)).logprobs


def test_a_row_without_finite_logits_fails_alone(engine):
    """Its request is told so; the one beside it goes on."""
    step = engine.backend.step

    def poisoned(plan):
        result = step(plan)
        for row in np.flatnonzero(plan.position == 30):
            result.logits[row] = np.nan
        return result

    engine.backend.step = poisoned
    bad, good = (engine.submit(prompt(i, n), params(temperature=1.0)) for i, n in ((0, 25), (1, 40)))
    assert len(tokens_of(engine.stream(good))) == 12
    with pytest.raises(MkvizError, match="logits: the largest is nan"):
        list(engine.stream(bad))
    assert bad.finish_reason == "failed" and bad.generated == 6  # of the rows at 24 to 29


def test_prefill_does_not_stop_decoding(engine):
    """While a prompt of 300 tokens is being read, the request before it gets a row in every step."""
    watch = Watch(engine)
    first = engine.stream(engine.submit(prompt(1, 3), params(max_tokens=40)))
    next(first)
    watch.go.clear()
    second = engine.submit(prompt(2, 300), params(max_tokens=2))
    watch.go.set()
    list(engine.stream(second))
    list(first)
    mixed = [plan for plan in watch.plans if len({request for request, _ in plan}) == 2]
    assert sum(request == second.request for plan in mixed for request, _ in plan) >= 300
    assert all(sum(request == 0 for request, _ in plan) == 1 for plan in mixed)
    assert max(len(plan) for plan in watch.plans) == 64


# -- queueing


def test_more_requests_than_the_batch_wait_in_order(model):
    engine = Engine(model, sms=4, workers=1, batch=2)
    watch = Watch(engine, held=True)
    sequences = [engine.submit(prompt(i), params(max_tokens=3 + i)) for i in range(6)]
    watch.go.set()
    assert [len(tokens_of(engine.stream(s))) for s in sequences] == [3, 4, 5, 6, 7, 8]
    running = [{request for request, _ in plan} for plan in watch.plans]
    assert max(map(len, running)) == 2
    first = [next(i for i, r in enumerate(running) if s.request in r) for s in sequences]
    assert first == sorted(first)
    engine.close()
    assert engine.pool.free == engine.pool.total


def test_more_requests_than_pages_wait(model):
    """Five pages of 64 tokens: prompts of two pages run one at a time beside one of a page, as each keeps one to grow into; one
    for all five waits for all, and nobody passes it."""
    engine = Engine(model, sms=4, workers=1, pages=5)
    watch = Watch(engine, held=True)
    sizes = [(60, 20), (100, 20), (60, 60), (257, 63), (10, 20)]
    sequences = [engine.submit(prompt(i, n), params(max_tokens=m)) for i, (n, m) in enumerate(sizes)]
    watch.go.set()
    assert [len(tokens_of(engine.stream(s))) for s in sequences] == [20, 20, 60, 63, 20]
    running = [{request for request, _ in plan} for plan in watch.plans]
    assert {0, 1} in running
    assert max(map(len, running)) == 2
    assert all(r == {3} for r in running if 3 in r)
    assert max(i for i, r in enumerate(running) if 3 in r) < min(i for i, r in enumerate(running) if 4 in r)
    assert engine.stats().preemptions == 0
    engine.close()
    assert engine.pool.free == engine.pool.total == 5


def test_pages_of_a_former_owner_are_cleared(model):
    engine = Engine(model, sms=4, workers=1, pages=2)
    generate(engine, prompt(1, 100))
    assert np.count_nonzero(engine.backend._arrays["kv"]) > 0
    watch = Watch(engine, held=True)
    sequence = engine.submit(prompt(2, 70), params())
    while sequence.state != "prefill" or not watch.waiting:
        time.sleep(0.001)
    assert np.count_nonzero(engine.backend._arrays["kv"][sequence.pages]) == 0
    watch.go.set()
    engine.close()


# -- stopping


def test_max_tokens(engine):
    pieces = generate(engine, prompt(1), max_tokens=5)
    assert [p.index for p in pieces] == [0, 1, 2, 3, 4]
    assert [p.finish_reason for p in pieces] == ["", "", "", "", "length"]
    assert [p.step for p in pieces] == list(range(5))
    times = [p.time for p in pieces]
    assert times == sorted(times) and times[0] > 0
    assert text_of(pieces) == engine.tokenizer.decode(tokens_of(pieces))


def test_stop_tokens_and_the_models_own(engine):
    tokens = tokens_of(generate(engine, prompt(3), max_tokens=20))
    token = tokens[7]
    first = tokens.index(token)
    pieces = generate(engine, prompt(3), max_tokens=20, stop_tokens=(token,))
    assert tokens_of(pieces) == tokens[: first + 1]
    assert pieces[-1].finish_reason == "stop"
    assert text_of(pieces) == engine.tokenizer.decode(tokens[:first])

    engine.config = replace(engine.config, eos=(1, token))
    assert tokens_of(generate(engine, prompt(3), max_tokens=20, ignore_eos=False)) == tokens[: first + 1]
    assert tokens_of(generate(engine, prompt(3), max_tokens=20)) == tokens


@pytest.mark.parametrize("seed", range(5))
def test_stop_strings_across_tokens(engine, seed):
    """Text up to the first place where a stop string stands, wherever pieces end; nothing of it goes out before."""
    free = generate(engine, prompt(seed), max_tokens=30, temperature=1.0, seed=seed)
    text = text_of(free)
    rng = np.random.default_rng(seed)
    ends = np.cumsum([len(p.text) for p in free])
    middle = int(ends[10])
    stops = [text[middle - 2 : middle + 3], text[middle + 5 : middle + 6] + "\0never", text[-3:]]
    stops = [stops[i] for i in rng.permutation(3)]
    pieces = generate(engine, prompt(seed), max_tokens=30, temperature=1.0, seed=seed, stop=tuple(stops))
    want = min(at for s in stops if (at := text.find(s)) >= 0)
    assert text_of(pieces) == text[:want]
    assert pieces[-1].finish_reason == "stop"
    assert tokens_of(pieces) == tokens_of(free)[: len(tokens_of(pieces))]
    assert ends[len(tokens_of(pieces)) - 1] > want  # stopped by the token that completed it


def test_closing_the_stream_frees_its_pages_and_the_others_go_on(engine):
    want = tokens_of(generate(engine, prompt(1), max_tokens=30))
    watch = Watch(engine, held=True)
    closed = engine.stream(engine.submit(prompt(2), params(max_tokens=400)))
    unread = engine.stream(engine.submit(prompt(3), params(max_tokens=400)))
    dropped = engine.stream(engine.submit(prompt(4), params(max_tokens=400)))
    kept = engine.submit(prompt(1), params(max_tokens=30))
    unread.close()  # before its first piece
    del dropped
    watch.go.set()
    next(closed)
    closed.close()
    assert list(closed) == list(unread) == []
    assert tokens_of(engine.stream(kept)) == want
    generate(engine, prompt(5), max_tokens=1)
    assert engine.batcher.running == []
    assert engine.pool.free == engine.pool.total


def test_a_queued_request_can_be_closed_from_another_thread(model):
    engine = Engine(model, sms=4, workers=1, batch=1)
    watch = Watch(engine, held=True)
    running = engine.stream(engine.submit(prompt(1), params(max_tokens=400)))
    queued = engine.stream(engine.submit(prompt(2), params()))
    got = []
    reader = threading.Thread(target=lambda: got.extend(queued))
    reader.start()
    queued.close()
    watch.go.set()
    reader.join(30)
    assert [(p.token, p.finish_reason) for p in got] in ([], [(-1, "stopped")])  # closed before or while it waited
    running.close()
    engine.close()


def test_close_with_requests_in_flight(model):
    engine = Engine(model, sms=4, workers=2, batch=2)
    streams = [engine.stream(engine.submit(prompt(i), params(max_tokens=400))) for i in range(4)]
    heads = [next(streams[0]), next(streams[1])]
    engine.close()
    ends = [list(s)[-1] for s in streams]
    assert all(p.token >= 0 for p in heads)
    assert [p.finish_reason for p in ends] == ["stopped"] * 4
    assert engine.pool.free == engine.pool.total
    with pytest.raises(MkvizError, match="engine: closed"):
        engine.submit(prompt(1), params())
    engine.close()


# -- failing


@pytest.mark.parametrize("where", ["step", "zero_pages"])
def test_a_failure_reaches_those_it_concerns_and_nobody_else(model, where):
    engine = Engine(model, sms=4, workers=2, batch=2)
    want = tokens_of(generate(engine, prompt(3)))
    watch = Watch(engine, held=True)
    sound, failures = getattr(engine.backend, where), iter([RuntimeError("a cosmic ray")])

    def failing(*args):
        if error := next(failures, None):
            raise error
        return sound(*args)

    setattr(engine.backend, where, failing)
    sequences = [engine.submit(prompt(i), params()) for i in (1, 2, 3)]
    watch.go.set()
    outcomes = []
    for sequence in sequences:
        try:
            outcomes.append(tokens_of(engine.stream(sequence)))
        except StepFailed as error:
            outcomes.append(str(error))
    assert "RuntimeError: a cosmic ray" in outcomes[0]
    assert outcomes[2] == want  # it was queued; what failed was the batch before it
    assert sequences[0].state == "failed"
    assert tokens_of(generate(engine, prompt(3))) == want
    engine.close()
    assert engine.pool.free == engine.pool.total


def refuse(engine, tokens, says, **settings):
    with pytest.raises(MkvizError, match=says):
        engine.submit(tokens, params(**settings))


def test_requests_that_can_never_run(engine, model):
    refuse(engine, [], "prompt: no tokens")
    refuse(engine, [5, 8192], "prompt: token 8192; 0 to 8191")
    refuse(engine, [5] * 512, "prompt: 512 tokens; at most 511 fit the context of 512")
    refuse(engine, [5] * 500, r"max_tokens: 13 after a prompt of 500 tokens; at most 12", max_tokens=13)
    assert len(generate(engine, [5] * 500, max_tokens=12)) == 12
    small = Engine(model, pages=2)
    refuse(small, [5] * 128, "prompt: 128 tokens; at most 127 fit the context of 128")
    small.close()
    for settings in ({"batch": 0}, {"batch": 65}, {"pages": 0}, {"sms": 0}, {"workers": -1}, {"mode": "int8"}):
        with pytest.raises(MkvizError, match=f"{next(iter(settings))}: "):
            Engine(model, **settings)


# -- what the sinks are told


class Heard:
    def __init__(self):
        self.steps, self.tokens, self.requests, self.graphs = [], [], [], {}

    def graph(self, graph_id, graph, schedule):
        self.graphs[graph_id] = graph

    def step(self, info, events):
        self.steps.append((info, len(events)))

    def token(self, info):
        self.tokens.append(info)

    def request(self, info):
        self.requests.append(info)

    def lost(self, records, steps=0):
        raise AssertionError("nothing is lost")


def test_sinks_hear_of_every_step_token_and_request(model):
    engine = Engine(model, sms=4, workers=2, lossless=True)
    heard = Heard()
    engine.add_sink(heard)
    sequences = [engine.submit(prompt(i, n), params(max_tokens=m), f"prompt {i}") for i, (n, m) in enumerate([(70, 5), (3, 9)])]
    pieces = [list(engine.stream(s)) for s in sequences]
    engine.remove_sink(heard)
    generate(engine, prompt(9))  # after it has gone
    engine.close()

    assert engine.drain.detached == []
    assert [info.step for info, _ in heard.steps] == list(range(len(heard.steps)))
    for info, events in heard.steps:
        assert events == len(heard.graphs[info.graph])
    for i, (sequence, mine) in enumerate(zip(sequences, pieces, strict=True)):
        told = [(t.index, t.token, t.text, t.step) for t in heard.tokens if t.request == i]
        assert told == [(p.index, p.token, p.text, p.step) for p in mine]
        assert [r.state for r in heard.requests if r.request == i] == ["queued", "prefill", "decode", "done"]
        last = [r for r in heard.requests if r.request == i][-1]
        assert (last.prompt_tokens, last.generated, last.finish_reason) == (sequence.prompt_tokens, len(mine), "length")
        assert last.prompt == f"prompt {i}"
        rows = [r for info, _ in heard.steps for r in info.rows if r.request == i]
        assert [r.position for r in rows] == list(range(sequence.prompt_tokens + len(mine) - 1))
        assert [r.token for r in rows] == sequence.tokens[:-1]
        assert [r.kind for r in rows] == ["prefill"] * sequence.prompt_tokens + ["decode"] * (len(mine) - 1)
    assert all(r.row == i for info, _ in heard.steps for i, r in enumerate(info.rows))


def test_tracing_off(model):
    engine = Engine(model, sms=4, workers=1, trace=False)
    assert len(generate(engine, prompt(1))) == 12
    assert not engine.backend.rings.live["head"].any()
    with pytest.raises(MkvizError, match="engine: tracing is off"):
        engine.add_sink(Heard())
    engine.close()


# -- the generator


def test_generator_uses_the_chat_template_or_not(engine):
    chat, raw = EngineGenerator(engine), EngineGenerator(engine, raw=True, live=False)
    question = "What is a list?"
    messages = [{"role": "user", "content": question}]
    outs = [
        text_of(g.stream(GenerateRequest(**request, max_tokens=8)))
        for g, request in ((chat, {"prompt": question}), (chat, {"messages": messages}), (raw, {"prompt": question}))
    ]
    assert outs[0] == outs[1] != outs[2]
    want = generate(engine, engine.tokenizer.encode(question), max_tokens=8, ignore_eos=False)
    assert outs[2] == text_of(want)
    for _ in range(200):
        if len(chat.source.snapshot().requests) >= 2:
            break
        time.sleep(0.05)
    assert {r.prompt for r in chat.source.snapshot().requests.values()} >= {question}


@pytest.mark.parametrize(("request_", "says"), [
    ({"prompt": " \n"}, "prompt: empty"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens: 0; at least 1"),
    ({"prompt": "x", "temperature": -1.0}, "temperature: -1.0"),
    ({"prompt": "x", "top_p": 0.0}, "top_p: 0.0"),
    ({"prompt": "x", "top_k": -2}, "top_k: -2"),
    ({"prompt": "x", "min_p": 2.0}, "min_p: 2.0"),
    ({"prompt": "x", "seed": -1}, "seed: -1"),
    ({"prompt": "x", "stop": ("a", "")}, "stop: "),
    ({"prompt": "x " * 600}, r"prompt: \d+ tokens; at most 511"),
])  # fmt: skip
def test_bad_requests_are_refused_before_the_first_piece(engine, request_, says):
    generator = EngineGenerator(engine, live=False)
    for ask in (generator.check, generator.stream):
        with pytest.raises(MkvizError, match=says):
            ask(GenerateRequest(**request_))
