"""Task tables of an engine with an inter-token budget: the longest ones first, the others while nobody waits."""

import time

import pytest
from serving import generate, make_model, params, prompt, tokens_of

from engine.builder import StepShape
from engine.engine import Engine
from engine.tables import build_tables

LONGEST = [(1, 2), (2, 2), (4, 2), (8, 2), (16, 4), (32, 4), (64, 4)]
SHORTER = [(rows, 1) for rows in (1, 2, 4, 8, 16, 32, 64)]  # contexts of 512, in splits of 256; wide steps: powers of four


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))[0]


def shapes(engine):
    return [(g.meta["rows"], g.meta["splits"]) for g, _ in list(engine.backend.graphs.values())]


def test_with_a_budget_no_step_waits_for_its_task_table(model, monkeypatch):
    """The tables of the longest steps are there, and serve shorter ones until these have their own."""
    lengths = (5, 300, 80, 200)
    plain = Engine(model, sms=4, workers=2)
    alone = [tokens_of(generate(plain, prompt(i, n), max_tokens=20)) for i, n in enumerate(lengths)]
    plain.close()
    monkeypatch.setattr("engine.engine.build_tables", lambda *a: build_tables(*a) and [])  # the others never come
    engine, heard = Engine(model, sms=4, workers=2, itl_budget_ms=50), []

    class Heard:
        def graph(self, graph_id, graph, schedule):
            heard.append(graph_id)

        def step(self, info, events):
            assert info.graph in heard

        def request(self, info): ...
        def token(self, info): ...
        def lost(self, *_): ...

    engine.add_sink(Heard())
    streams = [engine.stream(engine.submit(prompt(i, n), params(max_tokens=20))) for i, n in enumerate(lengths)]
    assert [tokens_of(s) for s in streams] == alone
    engine.close()
    assert shapes(engine) == LONGEST
    assert engine.drain.detached == [] and 2 <= len(heard) == len(set(heard)) <= len(LONGEST)  # of each that ran, once
    assert engine.batcher.step_time.estimate(1, 100) > 0


def test_the_other_task_tables_are_built_while_no_request_is_there(model):
    engine = Engine(model, sms=4, workers=2, itl_budget_ms=50)
    step, built = engine.backend.step, []

    def counted(plan):
        before = len(engine.backend.graphs)
        result = step(plan)
        built.append(len(engine.backend.graphs) - before)
        return result

    engine.backend.step = counted
    streams = [engine.stream(engine.submit(prompt(i, 100), params(max_tokens=30))) for i in range(3)]
    assert [len(tokens_of(s)) for s in streams] == [30] * 3
    assert len(built) > 30 and not any(built)
    deadline = time.monotonic() + 60
    while len(shapes(engine)) < 14 and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.close()
    assert shapes(engine) == LONGEST + SHORTER


def test_a_task_table_that_cannot_be_built_is_done_without(model, monkeypatch, capsys):
    engine = Engine(model, sms=4, workers=2)
    monkeypatch.setattr(engine.backend, "program", lambda shape: 1 / 0)
    with engine._wake:
        engine._tables = [StepShape(1, 1), StepShape(2, 1)]
        engine._wake.notify()
    deadline = time.monotonic() + 60
    while engine._tables and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.undo()
    assert len(tokens_of(generate(engine, prompt(1, 9), max_tokens=5))) == 5
    engine.close()
    assert capsys.readouterr().err.count("task tables: division by zero") == 1
