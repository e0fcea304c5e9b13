"""Program: a step graph and its schedule as the tables that the kernel walks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.builder import OP, StepGraph, layer_splits
from engine.config import ModelConfig
from engine.cuda.abi import LAYER, STORERS, TASK
from engine.cuda.weights import PackedWeights
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.schedule import Schedule

_ROUTED = [OP["expert_up"], OP["expert_down"]]
_VECTOR = [OP[name] for name in ("embed", "merge", "pick", "sample", "norm", "top_k")]  # no products: a storer alone does them


@dataclass(frozen=True, eq=False)
class Program:
    """``tasks`` TASK[n] in the order of the SMs' lists, ``task_ptr`` u32[sms + 1], ``storer_first`` u32[sms, storers]: index in
    the SM's list of each storer's first task, ``layers`` LAYER[layers]."""

    graph: Graph
    schedule: Schedule
    tasks: np.ndarray
    task_ptr: np.ndarray
    storer_first: np.ndarray
    layers: np.ndarray
    picked_counter: int
    head_tiles: int


def make_program(config: ModelConfig, built: StepGraph, schedule: Schedule, weights: PackedWeights) -> Program:
    """Raises MkvizError where the schedule claims tasks (the kernel walks owned lists only), where a task waits for a part of a
    counter's arrivals (the kernel asks a counter once a step), or has more waits or raises than there is room for."""
    g = built.graph
    if len(schedule.queue):
        raise MkvizError(f"policy {schedule.policy!r} on the cuda backend", "one that owns every task, such as round_robin")
    for i in np.flatnonzero(g.wait_need != g.arrivals[g.wait_counter])[:1].tolist():
        name, all_of_them = g.counters[g.wait_counter[i]], int(g.arrivals[g.wait_counter[i]])
        raise MkvizError(f"a wait for {int(g.wait_need[i])} arrivals at {name}", f"all {all_of_them} on the cuda backend")
    tasks = np.zeros(len(g), TASK)
    for name in ("op", "layer", "slot", "tile"):
        tasks[name] = getattr(g, name).astype(np.int64) & 0xFFFFFFFF
    tasks["id"] = np.arange(len(g))
    for i, name in enumerate("abcd"):
        tasks[name] = built.args[:, i]
    tasks["blocks"] = 1
    like = g.op.astype(np.int32) << 16 | g.layer + 1
    alike = np.argsort(like, kind="stable")
    for at in np.split(alike, np.flatnonzero(np.diff(like[alike])) + 1):
        part = tasks[at]
        weights.bind(part, g.ops[g.op[at[0]]], int(g.layer[at[0]]))
        tasks[at] = part
    for kind, ptr, fields in (
        ("wait", g.wait_ptr, {"wait": g.wait_counter, "need": g.wait_need, "wait_arrivals": g.arrivals[g.wait_counter]}),
        ("raise", g.raise_ptr, {"raise": g.raise_counter}),
    ):
        count = np.diff(ptr)
        for t in np.flatnonzero(count > 2)[:1].tolist():
            raise MkvizError(f"task {t} ({g.label(t)}): {count[t]} {kind}s", "at most 2 on the cuda backend")
        tasks[kind + "s"] = count
        for i in range(2):
            at = np.flatnonzero(count > i)
            for name, values in fields.items():
                tasks[name][at, i] = values[ptr[at] + i]
    index = {name: i for i, name in enumerate(g.counters)}
    layers = np.zeros(len(config.layers), LAYER)
    for i, spec in enumerate(config.layers):
        layer = layers[i]
        weights.bind_layer(layer, i)
        layer["rope"], layer["window"] = spec.rope, config.window if spec.attention == "sliding" else 0
        layer["splits"], layer["routed"] = layer_splits(config, i, built.shape), spec.mlp == "moe"
        first = index[f"qkv.{i}.0"]
        layer["qkv_counter"], layer["qkv_arrivals"], layer["qkv_step"] = first, g.arrivals[first], 1
        if spec.mlp == "moe":
            router = index[f"router.{i}" if f"top_k.{i}" not in index else f"top_k.{i}"]
            layer["router_counter"], layer["router_arrivals"] = router, g.arrivals[router]
    ordered = tasks[schedule.order]
    storer_first = np.zeros((schedule.sms, STORERS), np.uint32)
    for sm in range(schedule.sms):
        a, b = schedule.order_ptr[sm], schedule.order_ptr[sm + 1]
        ordered["order"][a:b] = np.arange(b - a)
        ordered["routed"][a:b] = _routed_layers(ordered[a:b])
        storer_first[sm] = _assign_storers(ordered[a:b])
    head_tiles = int((g.op == OP["lm_head"]).sum())
    return Program(
        g, schedule, ordered, schedule.order_ptr.astype(np.uint32), storer_first, layers, index["picked"], head_tiles
    )


def _assign_storers(tasks: np.ndarray) -> np.ndarray:
    """Say of each task of an SM's list whose it is and where his next one stands; the index of each storer's first.

    The last storer has the tasks without products, the others finished tiles in turn: a merge waits for other SMs, and tiles
    of experts behind it would wait with it, or it with them.
    """
    vector = np.isin(tasks["op"], _VECTOR)
    tasks["storer"] = np.where(vector, STORERS - 1, (np.cumsum(~vector) - 1) % (STORERS - 1))
    first = np.full(STORERS, len(tasks), np.uint32)
    for storer in range(STORERS):
        mine = np.flatnonzero(tasks["storer"] == storer)
        tasks["next"][mine] = np.append(mine[1:], len(tasks))[: len(mine)]
        first[storer] = mine[0] if len(mine) else len(tasks)
    return first


def _routed_layers(tasks: np.ndarray) -> np.ndarray:
    """i64 per task of an SM's list: how many routed layers the list has entered by then, this task's included."""
    routed = np.isin(tasks["op"], _ROUTED)
    _, first = np.unique(tasks["layer"][routed], return_index=True)
    entered = np.zeros(len(tasks), np.int64)
    entered[np.flatnonzero(routed)[first]] = 1
    return np.cumsum(entered)
