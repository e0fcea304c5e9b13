"""``mkviz generate`` and ``mkviz schedule``, through the command line: text, traces, and what goes wrong in one line."""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rows import Rows, demo_directory, open_backend

from engine.chat import render_chat
from engine.cpu.backend import CpuBackend
from engine.generator import open_generator
from engine.tokenizer import Tokenizer
from mkviz.cli import main
from mkviz.policies import POLICIES
from mkviz.ring import HostLink
from mkviz.schedule import Schedule
from mkviz.trace import Trace, TraceWriter, writer

PROMPT = "Write a function that adds two numbers."
CODE = "def add(a, b):"
ENDLESS = ("--raw", CODE, "--max-tokens", "1900")  # the model repeats itself


@pytest.fixture(scope="module")
def answers():
    """(text after the chat template, text after the bare code): 20 greedy tokens each, straight from the backend."""
    tokenizer = Tokenizer.open(demo_directory())
    chat = tokenizer.encode(render_chat(tokenizer, [{"role": "user", "content": PROMPT}]), special=False)
    tokens = Rows(open_backend(demo_directory()), [chat, tokenizer.encode(CODE)]).greedy(20)
    return [tokenizer.decode(t) for t in tokens]


def generate(*more):
    return main(["generate", *more, "--max-tokens", "20"])


def fails(capsys, code, says, argv):
    """Runs a command that must fail in one line on stderr; returns its stdout."""
    assert main(argv) == code
    out, err = capsys.readouterr()
    line = err.splitlines()[-1]
    assert line.startswith("error: ")
    assert says in line
    assert "Traceback" not in err
    return out


def test_text_and_figures(capsys, answers):
    assert generate(PROMPT) == 0
    out, err = capsys.readouterr()
    assert out == answers[0] + "\n"
    assert err.splitlines()[-1].startswith("20 tokens, first after ")
    assert generate(CODE, "--raw", "--sms", "3", "--workers", "1", "--policy", "claimed") == 0
    assert capsys.readouterr().out == answers[1] + "\n"


def test_prompt_from_stdin(capsys, answers, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert generate("-") == 0
    assert capsys.readouterr().out == answers[0] + "\n"


def test_sampling_and_stop_strings(capsys, answers):
    texts = []
    filters = ("--temperature", "1.5", "--top-k", "200", "--top-p", "0.99", "--min-p", "1e-4")
    for seed in ("3", "3", "4"):
        assert generate(PROMPT, *filters, "--seed", seed) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    middle = len(answers[0]) // 2
    stop = answers[0][middle : middle + 4]
    assert generate(PROMPT, "--stop", "never said", "--stop", stop) == 0
    assert capsys.readouterr().out == answers[0][: answers[0].index(stop)] + "\n"


def test_trace(capsys, tmp_path, answers):
    path = tmp_path / "out.mkt"
    assert generate(PROMPT, "--trace", str(path)) == 0
    out, err = capsys.readouterr()
    assert out == answers[0] + "\n"
    assert f"trace: {path}" in err
    trace = Trace.open(path)
    assert (trace.complete, trace.lost, trace.label) == (True, (0, 0), "recorded (cpu)")
    assert "".join(trace.tokens["text"].to_pylist()) == answers[0]
    assert trace.requests["state"].to_pylist() == ["queued", "prefill", "decode", "done"]
    steps = trace.steps.to_pydict()
    assert steps["step"] == list(range(20))  # a prompt of one step, whose last row makes the first token
    records = trace.records.to_pydict()
    tasks = {graph_id: len(graph) for graph_id, (graph, _) in trace.graphs.items()}
    for step, graph in zip(steps["step"], steps["graph"], strict=True):
        mine = sorted(t for t, s in zip(records["task"], records["step"], strict=True) if s == step)
        assert mine == list(range(tasks[graph]))
    assert len(trace.routes) > 0


def test_a_trace_names_the_gpu(tmp_path, monkeypatch):
    """Not only that there was one: a simulation is fitted to traces of the machine that it knows, by this name."""
    monkeypatch.setattr(CpuBackend, "device", SimpleNamespace(name="NVIDIA H200"), raising=False)
    path = tmp_path / "out.mkt"
    assert generate(PROMPT, "--trace", str(path)) == 0
    trace = Trace.open(path)
    assert (trace.meta["device"], trace.meta["label"]) == ("NVIDIA H200", "measured on NVIDIA H200")
    assert trace.label == "recorded on NVIDIA H200"
    with closing(open_generator(sms=2, workers=1)) as generator:
        assert generator.source.label == "measured on NVIDIA H200"


def test_existing_paths_are_not_overwritten_unasked(capsys, tmp_path):
    trace, file, folder = tmp_path / "out.mkt", tmp_path / "file", tmp_path / "folder"
    assert generate(PROMPT, "--trace", str(trace)) == 0
    before = Trace.open(trace).meta["recording"]
    file.write_text("precious")
    folder.mkdir()
    (folder / "precious").touch()
    capsys.readouterr()
    for path in (trace, file, folder):
        assert fails(capsys, 2, f"trace {path} exists", ["generate", PROMPT, "--trace", str(path)]) == ""
    for path in (file, folder):
        fails(capsys, 2, f"{path} is not a trace", ["generate", PROMPT, "--trace", str(path), "--overwrite"])
    assert Trace.open(trace).meta["recording"] == before
    assert file.read_text() == "precious"
    assert generate(PROMPT, "--trace", str(trace), "--overwrite") == 0
    assert Trace.open(trace).meta["recording"] != before
    fails(capsys, 2, "cannot be created", ["generate", PROMPT, "--trace", str(file / "below.mkt")])


@pytest.mark.parametrize(("argv", "says"), [
    ([""], "prompt: empty; some text"),
    ([" \n"], "prompt: empty; some text"),
    (["word " * 3000], "tokens; at most 2047 fit the context of 2048"),
    ([PROMPT, "--max-tokens", "0"], "max_tokens: 0; at least 1"),
    ([PROMPT, "--max-tokens", "5000"], "max_tokens: 5000 after a prompt of"),
    ([PROMPT, "--temperature", "-1"], "temperature: -1.0"),
    ([PROMPT, "--min-p", "-0.5"], "min_p: -0.5; 0 (all) to 1"),
    ([PROMPT, "--seed", "-1"], "seed: -1; 0 to 2^64 - 1"),
    ([PROMPT, "--stop", ""], "stop: ('',); no empty strings"),
    ([PROMPT, "--sms", "-2"], "sms: -2; at least 1"),
    ([PROMPT, "--workers", "-1"], "workers: -1; at least 1"),
    ([PROMPT, "--policy", "best"], "unknown policy 'best'; one of "),
    ([PROMPT, "--max-tokens", "many"], "mkviz generate: argument --max-tokens"),
    ([], "the following arguments are required: prompt"),
])  # fmt: skip
def test_bad_input(capsys, tmp_path, argv, says):
    path = tmp_path / "out.mkt"
    assert fails(capsys, 2, says, ["generate", *argv, "--trace", str(path)]).strip() == ""
    assert not path.exists()


def broken_model(directory, break_it):
    for file in demo_directory().iterdir():
        if file.is_file():
            shutil.copy(file, directory)
    break_it(directory)
    return str(directory)


def cut(directory, name="model-00002-of-00002.safetensors"):
    path = directory / name
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(("break_it", "says"), [
    (cut, "model-00002-of-00002.safetensors"),
    (lambda d: (d / "model-00001-of-00002.safetensors").unlink(), "model-00001-of-00002.safetensors"),
    (lambda d: (d / "model-00001-of-00002.safetensors").write_bytes(b"not weights"), "model-00001-of-00002.safetensors"),
    (lambda d: (d / "config.json").write_text("{"), "config.json"),
    (lambda d: (d / "config.json").write_text('{"model_type": "gpt2"}'), "gpt2"),
    (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json"),
])  # fmt: skip
def test_broken_models(capsys, tmp_path, break_it, says):
    assert fails(capsys, 2, says, ["generate", PROMPT, "--model", broken_model(tmp_path, break_it)]) == ""


def test_missing_model(capsys, tmp_path):
    fails(capsys, 2, "nowhere", ["generate", PROMPT, "--model", str(tmp_path / "nowhere")])


def test_a_full_disk_ends_the_trace_but_not_the_text(capsys, tmp_path, answers, monkeypatch):
    """The disk takes four segments, then nothing."""
    path, write, written = tmp_path / "out.mkt", writer._write, []

    def full(path, data):
        if path.suffix == ".parquet":
            written.append(path)
        if len(written) > 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(writer, "_write", full)
    monkeypatch.setattr("mkviz.trace.TraceWriter", partial(TraceWriter, segment_records=2000))
    out = fails(capsys, 2, "No space left on device; ", ["generate", PROMPT, "--max-tokens", "60", "--trace", str(path)])
    assert out.startswith(answers[0])
    trace = Trace.open(path)
    assert not trace.complete
    steps = trace.steps["step"].to_pylist()
    assert steps == list(range(len(steps)))
    assert 0 < len(steps) < 60
    assert out.startswith("".join(trace.tokens["text"].to_pylist()))
    records = trace.records["step"].to_numpy()
    counts = np.bincount(records, minlength=len(steps))
    assert [len(trace.graphs[g][0]) for g in trace.steps["graph"].to_pylist()] == counts.tolist()


@pytest.mark.parametrize("broken", ["link", "step", "both"])
def test_a_device_that_breaks_costs_no_step_before_it(capsys, tmp_path, monkeypatch, broken):
    """From the twelfth step on, as after an illegal access: no step runs, or nothing can be copied, or neither."""
    path, steps, step, read = tmp_path / "out.mkt", [], CpuBackend.step, HostLink.read_live

    def fails_when_broken(part, call):
        def wrapped(*args):
            if len(steps) > 11 and broken in (part, "both"):
                raise RuntimeError(f"an illegal memory access, at {part}")
            return call(*args)

        return wrapped

    def run(self, plan):
        steps.append(plan)
        time.sleep(0.05)  # more than twice the drain's interval: it has read the step before
        return fails_when_broken("step", step)(self, plan)

    monkeypatch.setattr(CpuBackend, "step", run)
    monkeypatch.setattr(HostLink, "read_live", fails_when_broken("link", read))
    argv = ["generate", "--raw", CODE, "--max-tokens", "40", "--trace", str(path)]
    assert main(argv) != 0
    assert "an illegal memory access, at " in capsys.readouterr().err
    trace = Trace.open(path)
    assert not trace.complete
    told = trace.steps["step"].to_pylist()
    assert told == list(range(len(told))) and len(told) >= 8
    assert set(trace.records["step"].to_pylist()) == set(told)


def mkviz(*argv, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-m", "mkviz", *argv], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options)  # fmt: skip


def test_as_a_process(answers):
    process = mkviz("generate", PROMPT, "--max-tokens", "20")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, answers[0] + "\n")
    assert "20 tokens, first after" in err


def test_interrupted(tmp_path):
    """Ctrl-C ends generation with 130, and the trace holds what was printed."""
    path = tmp_path / "out.mkt"
    process = mkviz("generate", *ENDLESS, "--trace", str(path))
    head = process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    trace = Trace.open(path)
    assert not trace.complete
    text = "".join(trace.tokens["text"].to_pylist())
    assert text.startswith((head + rest).removesuffix("\n"))
    assert len(trace.steps) >= len(trace.tokens) > 0
    assert set(trace.records["step"].to_pylist()) == set(trace.steps["step"].to_pylist())


def test_a_reader_who_goes_away_costs_no_trace(tmp_path):
    path = tmp_path / "out.mkt"
    process = mkviz("generate", *ENDLESS, "--trace", str(path))
    process.stdout.read(40)
    process.stdout.close()
    assert process.wait(120) == 141
    assert process.stderr.read().count("Traceback") == 0
    trace = Trace.open(path)
    assert len(trace.steps) > 0
    assert not trace.complete


# -- mkviz schedule


def test_schedule_show(capsys):
    assert main(["schedule", "show", "--sms", "8", "--rows", "3", "--context", "700", "--policy", "list"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "4 rows · 4 splits" in out[0]
    table = {line.split()[0]: line.split() for line in out[2:] if line}
    # 9 layers of q, k, v and o; 8 of 16 experts of gate, up and down; one dense layer; each stored element two bytes
    attention = 9 * 256 * (8 + 2 * 2) * 64
    assert int(table["all"][1]) == sum(int(line[1]) for op, line in table.items() if op in OPS)
    assert table["qkv"][2:4] == [f"{2 * attention / 1e6:.2f}", "MB"]
    assert table["lm_head"][2:4] == [f"{2 * 8192 * 256 / 1e6:.2f}", "MB"]
    assert out[-2].startswith("schedule list: 8 SMs, ")


OPS = ("embed", "qkv", "attention", "merge", "o_proj", "router", "expert_up", "dense_up", "expert_down", "dense_down",
       "lm_head", "pick")  # fmt: skip


def test_schedule_dump(capsys, tmp_path):
    assert main(["schedule", "dump", "--sms", "4"]) == 0
    text = capsys.readouterr().out
    tasks = [json.loads(line) for line in text.splitlines()]
    assert [t["task"] for t in tasks] == list(range(len(tasks)))
    assert {t["op"] for t in tasks} == set(OPS) - {"merge"}
    assert {t["sm"] for t in tasks} == {0, 1, 2, 3}
    raised = {c for t in tasks for c in t["raises"]}
    assert {c for t in tasks for c, _ in t["waits"]} <= raised
    arrivals = {c: sum(c in t["raises"] for t in tasks) for c in raised}
    assert all(need <= arrivals[c] for t in tasks for c, need in t["waits"])
    path = tmp_path / "tasks.jsonl"
    assert main(["schedule", "dump", "--sms", "4", "--out", str(path)]) == 0
    assert path.read_text() == text
    fails(capsys, 2, f"--out {tmp_path}: ", ["schedule", "dump", "--out", str(tmp_path)])


def test_schedule_check(capsys, monkeypatch):
    assert main(["schedule", "check", "--sms", "5", "--rows", "8"]) == 0
    assert "acyclic, every wait satisfiable, no deadlock" in capsys.readouterr().out

    def backwards(graph, sms):
        return Schedule.from_lists([list(range(len(graph)))[::-1], *[[]] * (sms - 1)], policy="backwards")

    monkeypatch.setitem(POLICIES, "backwards", backwards)
    fails(capsys, 2, "deadlock: SM 0 holds pick", ["schedule", "check", "--sms", "2", "--policy", "backwards"])


@pytest.mark.parametrize(("argv", "says"), [
    (["--sms", "0"], "--sms: 0; at least 1"),
    (["--rows", "257"], "257 rows in one step; 1 to 256"),
    (["--rows", "0"], "0 rows in one step; 1 to 256"),
    (["--rows", "4", "--context", "3"], "--context: 3; at least the 4 rows"),
    (["--context", "5000"], "--context: 5000; at least the 1 rows, at most the model's 2048"),
    (["--policy", "best"], "unknown policy 'best'"),
])  # fmt: skip
def test_schedule_bad_input(capsys, argv, says):
    fails(capsys, 2, says, ["schedule", "show", *argv])
