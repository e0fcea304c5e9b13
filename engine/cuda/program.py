"""Program: a step graph and its schedule as the tables that the kernel walks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.builder import OP, OPS, StepGraph, layer_splits
from engine.config import ModelConfig
from engine.cuda.abi import LAYER, ROWS, STORERS, TASK
from engine.cuda.weights import PackedWeights
from engine.tiling import Tiling
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.policies import make_schedule
from mkviz.schedule import Schedule

MANY_SPLITS = 64  # merged one batch behind the other these take longer than the experts beside them
_ROUTED = np.isin(OPS, ["expert_up", "expert_down"])
VECTOR = ("embed", "merge", "pick", "sample", "norm", "top_k")  # no products: a storer alone does them


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


def tiling_of(config: ModelConfig, tiling: Tiling, bucket: int) -> Tiling:
    """The tiling of steps in the kernel for ``bucket`` rows."""
    merge = -(-config.head_dim // 32) if bucket == 1 else 1  # an element a lane
    return replace(tiling, norm_tasks=bucket > ROWS, top_k_tasks=bucket > 1, merge=merge, teams=2 if bucket == 1 else 1)


def dealt(graph: Graph, sms: int, policy: str, bucket: int) -> Schedule:
    """The schedule of a step's graph.  In the kernel for one row nobody waits for the page that the step writes, and an SM with
    attention is as late as three tiles of experts take (docs/decisions/0010).  A merge takes splits there as they come, by a
    storer that does nothing else meanwhile: one of many begins with attention (docs/decisions/0014)."""
    one = policy == "balanced" and bucket == 1
    early = graph.meta["splits"] > MANY_SPLITS
    more = {"attention_bytes": 192 << 10, "fresh_bytes": 0, "merges_beside": not early}
    return make_schedule(graph, sms, policy, **(more if one else {}))


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
    like = g.op.astype(np.int32) << 16 | g.layer + 1
    alike = np.argsort(like, kind="stable")
    tasks = _taken(tasks, alike)
    for at in np.split(np.arange(len(g)), np.flatnonzero(np.diff(like[alike])) + 1):
        first = alike[at[0]]
        weights.bind(tasks[at[0] : at[-1] + 1], g.ops[g.op[first]], int(g.layer[first]))
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
    place = np.empty(len(g), np.int64)
    place[alike] = np.arange(len(g))
    ordered = _taken(tasks, place[schedule.order])
    sm = np.repeat(np.arange(schedule.sms), np.diff(schedule.order_ptr))
    ordered["order"] = np.arange(len(ordered)) - schedule.order_ptr[sm]
    ordered["routed"] = _routed_layers(ordered, sm)
    storer_first = _assign_storers(ordered, sm, schedule.order_ptr)
    head_tiles = int((g.op == OP["lm_head"]).sum())
    return Program(
        g, schedule, ordered, schedule.order_ptr.astype(np.uint32), storer_first, layers, index["picked"], head_tiles
    )


def _taken(tasks: np.ndarray, at: np.ndarray) -> np.ndarray:
    """TASK[]: tasks[at], moved as words rather than field by field."""
    return tasks.view(np.uint64).reshape(len(tasks), -1).take(at, axis=0).view(TASK)[:, 0]


def _assign_storers(tasks: np.ndarray, sm: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """Say of each task, in the order of the SMs' lists, whose it is and where in the list his next one stands; u32[sms,
    storers]: each storer's first.

    The last storer has the tasks without products, the others finished tiles in turn: a merge waits for other SMs, and tiles
    of experts behind it would wait with it, or it with them.  Samples are dealt to all of them, the last one first: they wait
    for all tiles of the step, so that no tile is behind them in any list, and are the only ones at work then.
    """
    vector, sms, length = np.isin(OPS, VECTOR)[tasks["op"]], len(ptr) - 1, np.diff(ptr)
    sample = tasks["op"] == OP["sample"]
    tasks["storer"] = np.where(vector, STORERS - 1, _before(~vector, sm, ptr) % (STORERS - 1))
    tasks["storer"][sample] = STORERS - 1 - _before(sample, sm, ptr)[sample] % STORERS
    whose = sm * STORERS + tasks["storer"]
    by_storer = np.argsort(whose, kind="stable")
    whose, order = whose[by_storer], tasks["order"][by_storer].astype(np.int64)
    starts = np.diff(whose, prepend=-1) != 0
    follower = np.append(order[1:], 0)
    tasks["next"][by_storer] = np.where(np.append(starts[1:], True), length[whose // STORERS], follower)
    first = np.repeat(length, STORERS).astype(np.uint32)
    first[whose[starts]] = order[starts]
    return first.reshape(sms, STORERS)


def _before(some: np.ndarray, sm: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """i64 per task, in the order of the SMs' lists: how many of ``some`` stand before it in its SM's."""
    count = np.concatenate([[0], np.cumsum(some)])
    return count[:-1] - count[ptr[sm]]


def _routed_layers(tasks: np.ndarray, sm: np.ndarray) -> np.ndarray:
    """i64 per task, in the order of the SMs' lists: how many routed layers its SM has entered by then, this task's included."""
    at = np.flatnonzero(_ROUTED[tasks["op"]])
    _, first = np.unique(sm[at] * (1 << 16) + tasks["layer"][at].astype(np.int64), return_index=True)
    entered = np.zeros(len(tasks) + 1, np.int64)
    entered[at[first] + 1] = 1
    entered = np.cumsum(entered)
    begins = np.searchsorted(sm, np.arange(sm[-1] + 1))
    return entered[1:] - entered[begins[sm]]
