"""The engine cuts the graph of a step anew for a machine with more SMs than its backend plays."""

import types

import numpy as np

from engine.builder import StepShape, build_graph
from engine.config import load_config
from engine.generator import EngineGenerator
from engine.models import resolve_model
from engine.tiling import Tiling


def test_the_same_step_with_tiles_for_132_sms_and_weights_of_two_bytes():
    config = load_config(resolve_model(None))
    engine = types.SimpleNamespace(config=config, device="cpu", add_sink=lambda sink: None)
    played = build_graph(config, StepShape(8, 2), Tiling.for_sms(config, 16), weight_bytes=4).graph
    graph = EngineGenerator(engine).tiled(played, 132)
    o_proj = graph.ops.index("o_proj")
    assert (played.op == o_proj).sum() == 9 * 16  # 9 layers; 256 rows of hidden, 16 a tile
    assert (graph.op == o_proj).sum() == 9 * 64  # 4 a tile, the least there is
    assert (graph.meta["rows"], graph.meta["splits"]) == (8, 2)
    assert graph.flops.sum() == played.flops.sum()  # the same work
    weights = np.isin(graph.op, [graph.ops.index(op) for op in ("qkv", "o_proj", "lm_head")])
    same = np.isin(played.op, [played.ops.index(op) for op in ("qkv", "o_proj", "lm_head")])
    assert 2 * graph.bytes[weights].sum() == played.bytes[same].sum()
