"""``mkviz bench decode`` on the device: the read stream's rate is one that memory can have, and the baseline computes what the
megakernel computes, every way it is run."""

import json

import numpy as np
import pytest

from mkviz.cli import main
from mkviz.trace import Trace

pytestmark = pytest.mark.gpu

SHAPES = [("smollm2-135m", 3), ("llama-3.2-1b", 2), ("north-mini-code", 2)]  # the last: a dense layer and a routed one


@pytest.mark.timeout(600)  # torch compiles a few kernels for each batch
@pytest.mark.parametrize(("shape", "layers"), SHAPES)
def test_the_baseline_computes_the_same_every_way(tmp_path, evidence, shape, layers):
    path = tmp_path / "decode.json"
    sizes = ["--batch", "1", "3", "--context", "5000", "--steps", "4", "--runs", "3"]
    assert main(["bench", "decode", "--shape", shape, "--layers", str(layers), *sizes, "--baseline", "--json", str(path)]) == 0
    told = json.loads(path.read_text(encoding="utf-8"))
    for point in told["points"]:
        baseline = point["baseline"]
        failed = {f"{way['attention']}, {way['experts']}": way["failed"] for way in baseline["tried"] if "failed" in way}
        distances = [way["logits_distance"] for way in baseline["tried"] if "failed" not in way]
        evidence.add("baseline", shape=shape, layers=layers, batch=point["batch"], distance=max(distances), failed=failed)
        # bf16 activations on both sides, rounded in different places: where that turns a route near a tie, a way is far off
        assert np.median(distances) < 0.03 and max(distances) < 0.5, distances
        assert 0 < point["share"] < 1
    evidence.add("read stream", shape=shape, what=told["ceiling"]["what"], gb_s=told["ceiling"]["gb_s"])
    assert len({rate["what"] for rate in told["ceiling"]["measured"]}) == 2  # so few layers might lie in a cache
    assert 100 < told["ceiling"]["gb_s"] < 10_000


@pytest.mark.timeout(600)
def test_ablations_give_the_same_tokens(tmp_path, evidence):
    """Each is another graph or another kernel of the same decode; their traces are whole."""
    path = tmp_path / "decode.json"
    sizes = ["--layers", "3", "--batch", "1", "3", "--context", "5000", "--steps", "4", "--runs", "3"]
    command = ["bench", "decode", "--shape", "north-mini-code", *sizes, "--ablate", "--traces", str(tmp_path)]
    assert main([*command, "--json", str(path)]) == 0
    for point in json.loads(path.read_text(encoding="utf-8"))["points"]:
        assert len(point["ablations"]) == 6
        for entry in point["ablations"]:
            evidence.add("ablation", batch=point["batch"], name=entry["name"], ratio=entry["ratio"])
            assert entry["same_tokens"], entry["name"]
            trace = Trace.open(tmp_path / f"{entry['name']}-{point['batch']}x5000.mkt.zip")
            assert len(trace.events()) == 2 * entry["tasks"]
