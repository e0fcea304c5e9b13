"""The simulator against traces: figures read off a step by hand, and the error that they leave."""

import numpy as np
import pytest
from test_simulated import PLAIN, chain

from mkviz.calibration import fit, math_of, replayed
from mkviz.cli import main
from mkviz.errors import MkvizError
from mkviz.protocols import StepInfo
from mkviz.record import EVENT, FLAG_BYTES_LAST, KIND_SKIPPED, NO_WAIT
from mkviz.trace import Trace, TraceWriter


def step(number=0, end=2000):
    """SM 0 runs task 0 from 0 to 1000 and publishes 300 later.  SM 1 sees it 200 after that, needs 50 to be fed, works for 350,
    and its last store takes until ``end``."""
    events = np.zeros(2, EVENT)
    events["task"], events["sm"], events["step"], events["last_wait"] = [0, 1], [0, 1], number, [NO_WAIT, 0]
    events["ready"], events["begin"] = [0, 1500], [0, 1550]
    events["end"], events["publish"] = [1000, 1900], [1300, end]
    for name in ("claim", "ready", "begin", "end", "publish"):
        events[name] += 10_000 * number
    return events


def trace(path, *steps, device="a plain one", kind="measured"):
    writer = TraceWriter(path, kind=kind, device=device)
    writer.graph(0, *chain())
    for events in steps:
        writer.step(StepInfo(int(events["step"][0]), 0, int(events["claim"].min()), int(events["publish"].max())), events)
    writer.close()
    return Trace.open(path)


def test_the_hand_over_of_a_step_read_off_by_hand():
    graph, events = chain()[0], step()
    machine = fit(graph, events, PLAIN)
    assert (machine.publish_ns, machine.hop_ns, machine.feed_ns) == (300, 200, 50)
    assert math_of(graph, events, PLAIN).tolist() == [1000, 350]
    events["flags"][1] = FLAG_BYTES_LAST  # ready to begin says nothing of feeding then
    assert fit(graph, events, PLAIN).feed_ns == PLAIN.feed_ns
    events["claim"][1] = 1400  # taken up after its producer had published: ready to late tells no hop
    assert fit(graph, events, PLAIN).hop_ns == PLAIN.hop_ns


def test_the_error_on_a_trace(tmp_path):
    (found,) = replayed(trace(tmp_path / "a.mkt", step(0, end=2000), step(1, end=2500), step(2, end=2000)), PLAIN)
    assert (found.steps, found.measured) == (3, 2000)
    assert found.simulated == 100 + 5 + 7 + 50 + 5  # as the machine is
    assert found.fitted == 1000 + 300 + 200 + 50 + 350 + 300
    assert (found.error, found.fitted_error) == pytest.approx((167 / 2000 - 1, 0.1))
    first, second = found.to_text().splitlines()
    assert first == "chain: simulated 0.2 µs, measured 2.0 µs (3 steps), error -91.6%"
    assert second.endswith("(publish 300 ns, hop 200 ns, feed 50 ns, math per op): simulated 2.2 µs, error +10.0%")


def test_steps_that_are_not_whole_do_not_count(tmp_path):
    short, skipped = step(1)[:1], step(2)
    skipped["flags"][1] = KIND_SKIPPED
    found = replayed(trace(tmp_path / "a.mkt", step(0), short, skipped), PLAIN)
    assert [f.steps for f in found] == [2]
    with pytest.raises(MkvizError, match="no whole step"):
        replayed(trace(tmp_path / "b.mkt", short), PLAIN)


@pytest.mark.parametrize(("device", "kind", "what"), [("cpu", "measured", "is of cpu"), ("plain", "simulated", "a simulation")])
def test_only_what_the_machine_describes(tmp_path, device, kind, what):
    with pytest.raises(MkvizError, match=what):
        replayed(trace(tmp_path / "a.mkt", step(), device=device, kind=kind), PLAIN)


def test_the_command_prints_it(tmp_path, capsys):
    trace(tmp_path / "a.mkt", step(), device="NVIDIA H200")
    assert main(["schedule", "simulate", "--against", str(tmp_path / "a.mkt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("chain: simulated ") and "measured 2.0 µs (1 step), error" in lines[0]
    assert "fitted to the trace (publish 300 ns, hop 200 ns, feed 50 ns, math per op)" in lines[1]
    for option in ("--no-prefetch", "--barrier-per-op", "--trace=b.mkt"):
        assert main(["schedule", "simulate", "--against", str(tmp_path / "a.mkt"), option]) == 2
        assert f"--against with {option.split('=')[0]}; one of them" in capsys.readouterr().err
