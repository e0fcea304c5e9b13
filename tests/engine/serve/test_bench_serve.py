"""mkviz bench serve: its figures by hand from times that are known, and a run against the server of the tests."""

import argparse
import asyncio
import json
import math

import httpx
import pytest
from served import KEY

from engine.bench.client import Answer, Client
from engine.bench.load import Load
from engine.bench.serve import BenchServe, line, measure, percentiles, summary
from engine.bench.workloads import WORKLOADS, Text, Workload, sample, turns
from mkviz.errors import MkvizError


def arguments(*argv):
    parser = argparse.ArgumentParser()
    BenchServe().add_arguments(parser)
    return parser.parse_args(argv)


def test_figures_of_known_times():
    """Two answers of five and three tokens in two seconds, and one that failed."""
    workload = WORKLOADS["chat"]
    answers = [
        Answer("chat", 0, sent=10.0, came=[10.2, 10.3, 10.5, 10.6, 10.7], prompt_tokens=60, cached_tokens=10, tokens=5),
        Answer("chat", 0, sent=10.0, came=[10.4, 10.5, 10.9], prompt_tokens=70, tokens=3),
        Answer("chat", 0, sent=10.0, error="500 x"),
    ]
    told = summary(workload, workload, answers, seconds=2.0)
    assert (told["answers"], told["errors"], told["tokens"], told["pieces"]) == (3, 1, 8, 8)
    assert (told["prompt_tokens"], told["cached_tokens"], told["cut"]) == (130, 10, False)
    assert math.isclose(told["ttft_ms"]["p50"], 300) and math.isclose(told["ttft_ms"]["max"], 400)
    gaps = sorted([100, 200, 100, 100, 100, 400])
    assert (
        told["itl_ms"]["count"] == 6 and math.isclose(told["itl_ms"]["p50"], 100) and math.isclose(told["itl_ms"]["max"], 400)
    )
    assert math.isclose(told["itl_ms"]["p99"], gaps[4] + 0.95 * (gaps[5] - gaps[4]))
    assert math.isclose(told["tok_s"], 4) and math.isclose(told["tok_s_each"]["max"], 4 / 0.5)
    assert "1 of 3 FAILED: 500 x" in line(told) and "first token p50 300.0 ms" in line(told)
    assert percentiles([]) == {"count": 0}


def test_lengths_are_cut_to_the_context_and_no_further():
    for workload in WORKLOADS.values():
        for context in (512, 2048, 8192, 1 << 17):
            used = workload.within(context)
            assert used.length * 1.2 <= context and used.prompt <= workload.prompt and used.output >= 1
        assert workload.within(1 << 17) is workload
    with pytest.raises(MkvizError, match="a context of 20 tokens"):
        WORKLOADS["chat"].within(20)


def test_texts_are_the_seeds_but_never_begin_alike():
    workload = Workload("x", "x", 100, 1, turns=3, more=50)
    first, again, other = (list(turns(workload, Text(4.0, seed))) for seed in ("a", "a", "b"))
    assert [len(text) for text in first] == [400, 200, 200] and len(sample()) == 2000
    rest = [[text.partition("\n")[2] for text in one] for one in (first, again, other)]
    assert rest[0] == rest[1] != rest[2]
    assert len({text.partition("\n")[0] for text in first + again + other}) == 9


def test_a_run_against_a_server(server, demo, capsys):
    before = demo.stats()
    args = arguments("--workload", "agent", "--requests", "1", "--context", "400", "--api-key", KEY)
    told = asyncio.run(measure(f"{server[0]}/v1", args))
    json.dumps(told, allow_nan=False)
    (agent,) = told["workloads"]
    assert (agent["name"], agent["answers"], agent["errors"], agent["cut"], told["model"]) == ("agent", 6, 0, True, "demo")
    assert [a["turn"] for a in agent["each"]] == [0, 1, 2, 3, 4, 5] and agent["used"]["output"] >= 1
    assert agent["cached_tokens"] > 0  # later turns go on from earlier ones
    assert demo.stats().generated_tokens - before.generated_tokens == 1 + agent["tokens"]  # one to learn tokens' length
    assert "multi-turn agent" in capsys.readouterr().out


def test_an_open_loop_begins_without_waiting_for_ends(monkeypatch):
    """Requests that never end until all have begun: in a closed loop of one, they would wait for ever."""
    begun, all_begun = [], asyncio.Event()

    async def ask(answer, output, prompt):
        begun.append(prompt)
        if len(begun) == 4:
            all_begun.set()
        await all_begun.wait()
        return answer

    client = Client("http://x", "m", None, {}, 1)
    monkeypatch.setattr(client, "ask", ask)
    answers = asyncio.run(asyncio.wait_for(Load(4, concurrency=1, rate=200.0).run(client, WORKLOADS["code"], 4.0), 20))
    assert len(answers) == 4


def test_refusals_are_kept_and_a_wrong_address_is_one_line(server):
    async def refused():
        client = Client(server[0], "nobody", KEY, {}, 10)
        answers = await Load(1).run(client, WORKLOADS["agent"].within(520), 4.0)
        await client.close()
        return answers

    answers = asyncio.run(refused())
    assert (
        len(answers) == 1
        and answers[0].error.startswith("404")
        and summary(*[WORKLOADS["agent"]] * 2, answers, 1.0)["errors"] == 1
    )
    with pytest.raises(MkvizError, match="nobody answers"):
        asyncio.run(measure("http://127.0.0.1:9", arguments()))
    with pytest.raises(MkvizError, match="answers 404"):
        asyncio.run(measure(f"{server[0]}/x", arguments("--api-key", KEY)))


def test_events_that_are_errors_fail_their_answer(monkeypatch):
    """A stream that breaks off with an error event, from a transport without a network."""
    events = 'data: {"choices": [{"text": "a"}]}\n\ndata: {"error": {"message": "gone"}}\n\ndata: [DONE]\n\n'
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=events))

    async def ask():
        client = Client("http://x", "m", None, {}, 1)
        client._http = httpx.AsyncClient(base_url="http://x", transport=transport)
        return await client.ask(Answer("code", 0, 0.0), 5, "prompt")

    answer = asyncio.run(ask())
    assert len(answer.came) == 1 and "gone" in answer.error


@pytest.mark.parametrize(
    "given", [("--rate", "0"), ("--rate", "nan"), ("--timeout", "-1"), ("--timeout", "nan"), ("--requests", "0")]
)
def test_numbers_that_are_none_to_measure_by_are_refused(given):
    option, value = given
    with pytest.raises(MkvizError, match=rf"{option}: {float(value):.3g}.*; a positive number"):
        BenchServe().run(arguments("--url", "http://127.0.0.1:9", *given))
