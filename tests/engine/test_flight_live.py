"""The flight recorder as a sink of an engine that generates: it keeps the slowest steps, to be analysed like any others."""

from engine.engine import Engine
from engine.generator import EngineGenerator
from mkviz.accounting import account
from mkviz.cli import main
from mkviz.flight import FlightRecorder
from mkviz.many_steps import many_steps
from mkviz.protocols import GenerateRequest
from mkviz.trace import Trace


def test_the_slowest_steps_of_a_generation(tmp_path):
    engine = Engine(None, sms=2, workers=1, lossless=True)
    recorder = FlightRecorder("measured (cpu)", device="cpu", worst=2)
    try:
        generator = EngineGenerator(engine, live=False)
        generator.add_sink(recorder)
        list(generator.stream(GenerateRequest("Write a Python function that adds two numbers.", max_tokens=12)))
        generator.remove_sink(recorder)
    finally:
        engine.close()
    found = recorder.many_steps()
    assert len(found.times) == engine.backend.serial and not found.times["lost"].any()
    kept = recorder.store().snapshot().steps
    took = dict(zip(kept["step"].tolist(), (kept["end"] - kept["begin"]).tolist(), strict=True))
    for rows in found.shapes.values():
        times = dict(zip(found.times["step"][rows].tolist(), found.times["ns"][rows].tolist(), strict=True))
        for step in sorted(times, key=times.get)[-2:]:
            assert took[step] == times[step]
    trace = recorder.write(tmp_path / "flight.mkt")
    assert trace.label == "recorded (cpu), its slowest steps" and trace.complete
    told = account(trace)
    assert sum(told.totals.values()) == told.sm_time and told.totals["unknown"] == 0 and not any(told.faults.values())


def test_generate_keeps_the_slowest_steps_in_its_trace(tmp_path, capsys):
    path = tmp_path / "worst.mkt"
    prompt = ["generate", "Write a Python function that adds two numbers.", "--sms", "2", "--max-tokens", "12"]
    assert main([*prompt, "--trace", str(path), "--slowest", "1"]) == 0
    trace = Trace.open(path)
    assert (trace.label, trace.complete, trace.meta["flight"]) == ("recorded (cpu), its slowest steps", True, {"worst": 1})
    shapes = many_steps(trace).shapes
    assert 2 <= len(trace.steps) <= 2 * len(shapes)  # the slowest and a typical one of each
    capsys.readouterr()
    for wrong in (["--slowest", "2"], ["--trace", str(path), "--slowest", "0"]):
        assert main([*prompt, *wrong]) == 2
        assert "--slowest" in capsys.readouterr().err
