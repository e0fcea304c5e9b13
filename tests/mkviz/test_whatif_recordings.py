"""What if, on the recordings of an H200 that the package has, and as a command."""

import json
from pathlib import Path

import numpy as np
import pytest

import mkviz
from mkviz.accounting import account
from mkviz.cli import main
from mkviz.trace import Trace
from mkviz.whatif import BOUND, whatif

RECORDINGS = Path(mkviz.__file__).parent / "recordings"


@pytest.mark.parametrize("name", ["h200-demo-model", "h200-north-mini-code-6-layers-8K"])
def test_steps_of_an_h200_are_replayed_within_one_percent(name):
    of = RECORDINGS / f"{name}.mkt.zip"
    steps = Trace.open(of).table("steps", ["step"])["step"].to_pylist()
    found = whatif(of, steps[0], kernel_per_op=True)
    (p,) = found.predictions
    assert abs(p.fitted.error) < 0.01
    assert [step for step, _ in found.held_out] == steps[1:] and abs(found.held_out[0][1]) < BOUND  # fitted to one, on another
    assert p.told and p.change > 0.05  # launches and empty pipelines between 70 kernels are no gain
    assert p.fitted.step.row_of.shape == (len(p.fitted.case.graph),)
    before = account(of, steps[0]).totals["compute"]
    assert {kind: ns for kind, ns, _ in p.kinds()}["compute"] == pytest.approx(before, rel=0.05)


def test_merges_beside_the_math_are_replayed_beside_it():
    """The megakernel's storers merge attention splits while math goes on; on one lane the lists could not have run so."""
    (p,) = whatif(RECORDINGS / "h200-north-mini-code-6-layers-8K.mkt.zip", faster={"merge": 1.1}).predictions
    graph = p.fitted.case.graph
    assert {graph.ops[i] for i in np.unique(graph.op[p.fitted.case.beside])} == {"merge"}
    lanes = p.fitted.case.records.lanes
    assert (lanes.begin < lanes.free).any()


def test_costs_that_nobody_judged_are_off_on_the_step_itself_and_nowhere_else():
    found = whatif(RECORDINGS / "h200-demo-model.mkt.zip", 18, rows=4)
    (p,) = found.predictions
    assert any(note.startswith("nobody judged these costs on a step of 4 rows") for note in found.notes)
    assert p.out_of_sample is None and p.margin > abs(p.fitted.error)
    assert p.doubt.startswith(f" (costs by op are off by up to {p.margin:.1%} on the step itself)")


def test_the_command(tmp_path, capsys):
    of = str(RECORDINGS / "h200-demo-model.mkt.zip")
    assert main(["whatif", of, "--step", "17", "--faster", "attention=2", "--faster", "qkv=1.5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "recorded on NVIDIA H200 · what if: attention 2 times faster, qkv 1.5 times faster\nstep 17: recorded 178.6"
    )
    assert "costs by op, on steps that they were not fitted to: step 18 " in out
    assert main(["whatif", of, "--json", "--in-sequence", "--step", "17", "--step", "18"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["change"] == "what runs beside o_proj after it" and out["held_out"] == []
    assert [p["step"] for p in out["predictions"]] == [17, 18]
    for p in out["predictions"]:
        assert sum(row["after"] for row in p["blame"]) == p["changed"]
        assert p["recorded"] == pytest.approx(p["replayed"] / (1 + p["error"]))
    assert main(["whatif", of, "--faster", "attention"]) == 2
    assert "'attention': an op and how many times faster" in capsys.readouterr().err
    assert main(["whatif", of]) == 2
    assert "nothing is to change" in capsys.readouterr().err
