"""The engine as a server uses it: constraints, log-probabilities of prompts, cancelling, a full queue, stuck steps, figures."""

import argparse
import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from serving import Watch, generate, make_model, params, prompt, tokens_of

from engine.adjust import adjust
from engine.commands import add_engine_arguments, open_engine
from engine.engine import Engine, QueueFull, StepFailed
from engine.shapes import shape
from mkviz.errors import MkvizError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(made):
    return made[0]


@pytest.fixture
def engine(model):
    engine = Engine(model, sms=4, workers=2)
    yield engine
    engine.close()
    assert engine.pool.free == engine.pool.total


def until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


# -- what changes the pick


def test_penalties_and_biases_in_a_greedy_run(engine):
    """Token for token the largest of the adjusted logits, taken from the model's own, which log-probabilities are of."""
    watch, settings = Watch(engine), {"frequency_penalty": 1.5, "repetition_penalty": 1.4, "logit_bias": {9: 4.0, 11: -100}}
    sequence = engine.submit(prompt(1), params(max_tokens=40, logprobs=0, **settings))
    new = tokens_of(engine.stream(sequence))
    assert new != tokens_of(generate(engine, prompt(1), max_tokens=40))
    for i, token in enumerate(new):
        row = np.frombuffer(watch.logits[sequence.request, sequence.prompt_tokens - 1 + i], np.float32)
        assert adjust(row, sequence.params, prompt(1), new[:i]).argmax() == token
        exact = row.astype(np.float64)
        assert sequence.logprobs[i].chosen == pytest.approx(exact[token] - np.log(np.exp(exact).sum()), abs=1e-6)


def test_a_bias_forces_and_bans(engine):
    assert tokens_of(generate(engine, prompt(2), logit_bias={1234: 100}, temperature=1.0)) == [1234] * 12
    free = tokens_of(generate(engine, prompt(2), max_tokens=1))
    assert tokens_of(generate(engine, prompt(2), max_tokens=1, logit_bias={free[0]: -100})) != free
    with pytest.raises(MkvizError, match="logit_bias: token 8192; 0 to 8191"):
        generate(engine, prompt(2), logit_bias={8192: 1})


def test_nothing_ends_before_min_tokens(engine):
    tokens = tokens_of(generate(engine, prompt(3), max_tokens=20))
    stops = (tokens[0], tokens[4])
    assert len(tokens_of(generate(engine, prompt(3), max_tokens=20, stop_tokens=stops))) == 1
    later = tokens_of(generate(engine, prompt(3), max_tokens=20, stop_tokens=stops, min_tokens=10))
    assert len(later) > 10 and not set(stops) & set(later[:10])


class Spell:
    """Allows one of some spellings, token by token, and ends with it."""

    def __init__(self, *spellings, ends=True):
        self.spellings, self.taken, self.ends = spellings, [], ends

    def mask(self, generated):
        assert generated == self.taken
        allowed = np.zeros(8192, bool)
        allowed[[s[len(generated)] for s in self.spellings if s[: len(generated)] == generated]] = True
        return allowed

    def accept(self, token):
        self.taken.append(token)
        return self.ends and self.taken in self.spellings


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_decides_what_may_come(engine, temperature):
    spellings = [[50, 60, 70], [50, 61], [51, 60, 70, 80]]
    constraint = Spell(*spellings)
    sequence = engine.submit(prompt(1), params(temperature=temperature), constraint=constraint)
    pieces = list(engine.stream(sequence))
    assert tokens_of(pieces) in spellings and constraint.taken == tokens_of(pieces)
    assert pieces[-1].finish_reason == "stop"
    assert "".join(p.text for p in pieces) == engine.tokenizer.decode(tokens_of(pieces))


def test_a_constraint_may_end_with_the_models_own_end(engine):
    """Where nothing but the end token is left, also for a request that ignores it or has not made its least."""
    eos = 70  # a token whose text would show
    engine.config = replace(engine.config, eos=(eos,))
    assert engine.tokenizer.decode([eos])
    sequence = engine.submit(prompt(1), params(min_tokens=5), constraint=Spell([50, 60, eos]))
    pieces = list(engine.stream(sequence))
    assert tokens_of(pieces) == [50, 60, eos] and pieces[-1].finish_reason == "stop"
    assert "".join(p.text for p in pieces) == engine.tokenizer.decode([50, 60])
    sequence = engine.submit(prompt(1), params(), constraint=Spell([50, eos, 61], ends=False))
    assert sequence.params.ignore_eos
    with pytest.raises(IndexError):  # it is ignored, and the constraint knows nothing more
        list(engine.stream(sequence))


def test_a_constraint_that_fails_concerns_its_own_request(engine):
    class Nothing(Spell):
        def mask(self, generated):
            return np.zeros(8192, bool)

    class Broken(Spell):
        def accept(self, token):
            raise ZeroDivisionError("a bug in a grammar")

    bad = [engine.submit(prompt(1), params(), constraint=c) for c in (Nothing(), Broken([50, 60]))]
    good = engine.submit(prompt(1), params())
    for sequence, error in zip(bad, (MkvizError, ZeroDivisionError), strict=True):
        with pytest.raises(error):
            list(engine.stream(sequence))
        assert sequence.state == sequence.finish_reason == "failed"
    assert len(tokens_of(engine.stream(good))) == 12


def test_log_probabilities_of_a_prompt_are_transformers(engine, made):
    tokens = prompt(4, 150)
    sequences = [engine.submit(tokens, params(max_tokens=2, prompt_logprobs=2)) for _ in range(2)]
    for sequence in sequences:
        list(engine.stream(sequence))
    with torch.no_grad():
        want = torch.log_softmax(made[1](torch.tensor([tokens])).logits[0].double(), -1).numpy()
    told = sequences[0].prompt_logprobs
    assert told == sequences[1].prompt_logprobs and len(told) == 150 and told[0] is None
    for i, of in enumerate(told[1:]):
        assert of.chosen == pytest.approx(want[i, tokens[i + 1]], abs=2e-4)
        assert [value for _, value in of.top] == pytest.approx(np.sort(want[i])[:-3:-1].tolist(), abs=2e-4)
    assert sequences[0].cached_tokens == 0


# -- ending


def test_cancelled_requests_have_no_row_in_the_next_step(engine):
    """Running, reading its prompt, queued: whoever is cancelled while a step runs is in none after it."""
    engine.batch = engine.batcher.batch = 2
    watch = Watch(engine)
    decodes = engine.submit(prompt(1), params(max_tokens=400))
    until(lambda: decodes.state == "decode")
    watch.go.clear()
    reads, queued, kept = (engine.submit(prompt(i, n), params(max_tokens=5)) for i, n in ((2, 400), (3, 10), (4, 10)))
    until(lambda: watch.waiting)
    step = len(watch.plans)
    if reads.state == "queued":  # it came a moment too late for the step that is held
        watch.go.set()
        until(lambda: reads.state == "prefill")
        watch.go.clear()
        until(lambda: watch.waiting)
        step = len(watch.plans)
    for sequence in (decodes, reads, queued):
        engine.stream(sequence).close()
    watch.go.set()
    assert len(tokens_of(engine.stream(kept))) == 5
    gone = {s.request for s in (decodes, reads, queued)}
    assert not [r for plan in watch.plans[step + 1 :] for r, _ in plan if r in gone]
    assert {s.finish_reason for s in (decodes, reads, queued)} == {"stopped"} and not queued.started
    assert engine.stats().finished == {"stop": 0, "length": 1, "stopped": 3, "failed": 0}


def test_a_full_queue_refuses_and_says_when_to_come_again(model):
    engine = Engine(model, sms=4, workers=1, batch=2, queue=3)
    watch = Watch(engine, held=True)
    sequences = [engine.submit(prompt(i), params()) for i in range(5)]
    with pytest.raises(QueueFull, match=r"queue: full, \d requests wait; try again in \d+ s") as refused:
        engine.submit(prompt(9), params())
    assert refused.value.retry_after >= 1
    assert engine.stats().refused == 1
    watch.go.set()
    assert [len(tokens_of(engine.stream(s))) for s in sequences] == [12] * 5
    until(lambda: not engine.stats().running)
    assert len(generate(engine, prompt(9))) == 12
    engine.close()
    for settings in ({"queue": -1}, {"itl_budget_ms": 0}, {"step_timeout": 0}, {"context": 1}, {"context": 513}):
        with pytest.raises(MkvizError, match=f"{next(iter(settings))}: "):
            Engine(model, **settings)


def test_a_reader_that_is_a_queue_of_an_event_loop(engine):
    async def read():
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue()

        class Out:
            def put(self, piece):
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        engine.submit(prompt(1), params(max_tokens=5), out=Out())
        return [await pieces.get() for _ in range(5)]

    assert [p.finish_reason for p in asyncio.run(read())] == ["", "", "", "", "length"]

    class Gone:
        def put(self, piece):
            raise RuntimeError("Event loop is closed")

    sequence = engine.submit(prompt(1), params(max_tokens=400), out=Gone())
    until(lambda: sequence.ended)
    assert sequence.finish_reason == "stopped" and sequence.generated < 5


# -- steps that do not end


def test_a_stuck_step_fails_those_in_it_and_the_engine_goes_on(model):
    engine = Engine(model, sms=4, workers=1, batch=2, step_timeout=0.3)
    want = tokens_of(generate(engine, prompt(3)))
    watch = Watch(engine, held=True)
    sequences = [engine.submit(prompt(i), params()) for i in (1, 2, 3)]
    streams = [engine.stream(s) for s in sequences]
    with pytest.raises(StepFailed, match=r"step \d+: no end after"):
        next(streams[0])
    until(lambda: engine.stats().stuck)
    assert watch.waiting  # the step still runs, and has its pages
    assert engine.pool.free < engine.pool.total
    watch.go.set()
    assert tokens_of(streams[2]) == want
    assert sequences[0].generated == 0 and sequences[0].out.empty()  # what the step computed after all is not told
    stats = engine.stats()
    assert not stats.stuck and 1 <= stats.finished["failed"] <= 2
    assert tokens_of(generate(engine, prompt(3))) == want
    engine.close()
    assert engine.pool.free == engine.pool.total


def test_a_step_that_never_ends_does_not_keep_close(model):
    engine = Engine(model, sms=4, workers=1, step_timeout=0.2)
    watch = Watch(engine, held=True)
    stream = engine.stream(engine.submit(prompt(1), params()))
    with pytest.raises(StepFailed):
        next(stream)
    engine.close()
    assert engine._thread.is_alive()
    watch.go.set()
    engine._thread.join(30)
    assert not engine._thread.is_alive()


# -- what is told


def test_who_makes_room_says_so(model):
    """Three requests that grow to three pages each, in six: the last makes room, and gives the tokens that it gives alone."""
    engine = Engine(model, sms=4, workers=2, pages=6, lossless=True)
    asked = [(prompt(i, 60), 120) for i in range(3)]
    alone = [tokens_of(generate(engine, tokens, max_tokens=count)) for tokens, count in asked]
    told, rows = [], []

    class Heard:
        def request(self, info):
            told.append((info.request, info.state, info.generated))

        def step(self, info, events):
            rows.extend((r.request, r.position, r.kind) for r in info.rows)

        def graph(self, *_): ...
        def token(self, info): ...
        def lost(self, *_): ...

    engine.add_sink(heard := Heard())
    watch = Watch(engine, held=True)
    sequences = [engine.submit(tokens, params(max_tokens=count), salt=str(i)) for i, (tokens, count) in enumerate(asked)]
    watch.go.set()
    assert [tokens_of(engine.stream(s)) for s in sequences] == alone
    engine.remove_sink(heard)
    engine.close()
    assert engine.drain.detached == []
    last = sequences[2]
    assert [s.preemptions for s in sequences] == [0, 0, 1] and engine.stats().preemptions == 1
    states = [(state, n) for request, state, n in told if request == last.request]
    assert [state for state, _ in states] == ["queued", "prefill", "decode", "preempted", "prefill", "decode", "done"]
    held = dict(states[3:4])["preempted"]
    assert held > 60 and states[4][1] == held and states[5][1] == held + 1
    mine = [(position, kind) for request, position, kind in rows if request == last.request]
    again = next(i for i, (position, _) in enumerate(mine) if i and position <= mine[i - 1][0])
    assert mine[:again] == [(p, "prefill" if p < 60 else "decode") for p in range(60 + held - 1)]
    assert mine[again:] == [(p, "prefill" if p < 60 + held else "decode") for p in range(mine[again][0], 60 + 120 - 1)]


def test_figures_and_times(engine):
    watch = Watch(engine)
    first = engine.submit(prompt(1, 100), params(max_tokens=50), salt="a", label="chat-1")
    list(engine.stream(first))
    others = [engine.submit(prompt(1, 100), params(max_tokens=10), salt=salt) for salt in ("a", "b")]
    for sequence in others:
        list(engine.stream(sequence))
    until(lambda: not engine.stats().running)
    stats = engine.stats()
    assert [s.cached_tokens for s in (first, *others)] == [0, 64, 0]
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (300, 64, 70)
    assert stats.prefill_rows == 300 - 64 and stats.decode_rows == 49 + 9 + 9
    assert stats.steps == len(watch.plans)
    assert stats.finished == {"stop": 0, "length": 3, "stopped": 0, "failed": 0}
    assert (stats.running, stats.waiting, stats.preempted, stats.stuck) == (0, 0, 0, False)
    assert stats.pages_free == stats.pages_total and stats.pages_cached == 2 + 0 + 1
    for s in (first, *others):
        assert s.arrived <= s.started < s.first_token < s.last_token <= s.ended
    assert first.label == "chat-1" and others[0].request == first.request + 1


def test_a_shape_without_weights_is_for_the_device_that_draws_them():
    with pytest.raises(MkvizError, match="backend: cpu; cuda for a shape without weights"):
        Engine(shape("north-mini-code"), context=1000)


def test_context_and_pages_bound_what_is_asked(model):
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    engine = open_engine(parser.parse_args(["--model", model, "--sms", "4", "--context", "100", "--pages", "3"]))
    assert engine.context == 100 and engine.pool.total == 3
    assert len(generate(engine, prompt(1, 90), max_tokens=10)) == 10
    with pytest.raises(MkvizError, match="prompt: 100 tokens; at most 99 fit the context of 100"):
        generate(engine, prompt(1, 100))
    engine.close()
