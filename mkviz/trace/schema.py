"""Schema: the tables of a trace, and how graphs and events travel through them.

All times are integer ns on the trace's clock.  ``tasks`` and ``counters`` are static, one set of rows per graph; the other
tables grow while recording.  Segment n of a table is the file ``<table>-<n>.parquet``; n is the same for what was flushed at
the same time, and ``meta.json`` says how many flushes are whole.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.record import EVENT
from mkviz.schedule import Schedule

FORMAT, VERSION = "mkviz trace", 1
META = "meta.json"

_word = pa.dictionary(pa.int32(), pa.string())

TABLES: dict[str, pa.Schema] = {
    name: pa.schema(list(columns.items()))
    for name, columns in {
        # sm -1: claimed at run time; order: position in Schedule.order, or in its queue when claimed (-1: in neither)
        "tasks": {
            "graph": pa.int32(), "task": pa.int32(), "op": _word, "layer": pa.int16(), "slot": pa.int16(), "tile": pa.int32(),
            "bytes": pa.int64(), "flops": pa.int64(), "wait_counter": pa.list_(pa.int32()), "wait_need": pa.list_(pa.uint32()),
            "raise_counter": pa.list_(pa.int32()), "sm": pa.int16(), "order": pa.int32(), "load_order": pa.int32(),
        },
        "counters": {"graph": pa.int32(), "counter": pa.int32(), "name": pa.string(), "arrivals": pa.uint32()},
        "records": {
            "step": pa.int64(), "claim": pa.int64(), "ready": pa.int64(), "begin": pa.int64(), "end": pa.int64(),
            "publish": pa.int64(), "task": pa.uint32(), "sm": pa.uint16(), "last_wait": pa.uint16(), "role": pa.uint8(),
            "fill": pa.uint8(), "flags": pa.uint8(),
        },
        "steps": {
            "step": pa.int64(), "graph": pa.int32(), "begin": pa.int64(), "end": pa.int64(), "rows": pa.int32(),
            "records": pa.int32(), "lost": pa.int64(),
        },
        "rows": {
            "step": pa.int64(), "row": pa.int32(), "request": pa.int64(), "position": pa.int32(), "token": pa.int32(),
            "kind": _word,
        },
        "routes": {"step": pa.int64(), "layer": pa.int16(), "slot": pa.int16(), "expert": pa.int16(), "rows": pa.int32()},
        # one row for each change of a request's state
        "requests": {
            "request": pa.int64(), "state": _word, "time": pa.int64(), "prompt_tokens": pa.int32(), "generated": pa.int32(),
            "prompt": pa.string(), "finish_reason": _word, "label": pa.string(), "cached": pa.int32(),
        },
        "tokens": {
            "request": pa.int64(), "index": pa.int32(), "token": pa.int32(), "text": pa.string(), "step": pa.int64(),
            "time": pa.int64(),
        },
        # sm -1: ns beside the host's monotonic ns, in cycles
        "clocks": {"sm": pa.int32(), "step": pa.int64(), "ns": pa.int64(), "cycles": pa.uint64()},
    }.items()
}  # fmt: skip

EVENT_FIELDS = tuple(TABLES["records"].names)


def segment_name(table: str, number: int) -> str:
    return f"{table}-{number:06d}.parquet"


def label_of(kind: str, device: str) -> str:
    """The words that every view shows: ``measured (cpu)``, ``recorded on NVIDIA H200``."""
    return f"{kind} ({device})" if device == "cpu" else f"{kind} on {device}" if device else kind


def table_of_rows(name: str, rows: list[tuple]) -> pa.Table:
    schema = TABLES[name]
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def table_of_events(events: np.ndarray) -> pa.Table:
    """A ``records`` table of EVENT[k]."""
    arrays = [pa.array(np.ascontiguousarray(events[name])) for name in EVENT_FIELDS]
    return pa.Table.from_arrays(arrays, schema=TABLES["records"])


def events_of_table(table: pa.Table) -> np.ndarray:
    """EVENT[k] of a ``records`` table."""
    out = np.zeros(len(table), EVENT)
    for name in EVENT_FIELDS:
        out[name] = table[name].to_numpy()
    return out


def tables_of_graph(graph_id: int, graph: Graph, schedule: Schedule) -> tuple[pa.Table, pa.Table, dict]:
    """(tasks, counters, what ``meta.json`` keeps of the graph).  Raises MkvizError when a task is scheduled twice."""
    tasks, order, load_order = len(graph), schedule.order, schedule.load_order
    scheduled = np.concatenate([order, schedule.queue])
    if len(np.unique(scheduled)) < len(scheduled) or len(np.unique(load_order)) < len(load_order):
        raise MkvizError(f"graph {graph.name}: its schedule holds a task twice", "`mkviz schedule check` names it")
    position, load = np.full(tasks, -1, np.int32), np.full(tasks, -1, np.int32)
    position[schedule.queue] = np.arange(len(schedule.queue))
    position[order] = np.arange(len(order))
    load[load_order] = np.arange(len(load_order))

    def lists(ptr, values, kind):
        return pa.ListArray.from_arrays(pa.array(ptr, pa.int32()), pa.array(values, kind))

    op = pa.DictionaryArray.from_arrays(pa.array(graph.op, pa.int32()), pa.array(graph.ops, pa.string()))
    table = pa.Table.from_arrays(
        [
            pa.array(np.full(tasks, graph_id), pa.int32()), pa.array(np.arange(tasks), pa.int32()), op,
            pa.array(graph.layer, pa.int16()), pa.array(graph.slot, pa.int16()), pa.array(graph.tile, pa.int32()),
            pa.array(graph.bytes, pa.int64()), pa.array(graph.flops, pa.int64()),
            lists(graph.wait_ptr, graph.wait_counter, pa.int32()), lists(graph.wait_ptr, graph.wait_need, pa.uint32()),
            lists(graph.raise_ptr, graph.raise_counter, pa.int32()),
            pa.array(schedule.sm_of(tasks), pa.int16()), pa.array(position), pa.array(load),
        ],
        schema=TABLES["tasks"],
    )  # fmt: skip
    counters = table_of_rows(
        "counters",
        [(graph_id, c, name, int(n)) for c, (name, n) in enumerate(zip(graph.counters, graph.arrivals, strict=True))],
    )
    header = {"name": graph.name, "ops": list(graph.ops), "meta": graph.meta, "hash": graph.hash, "policy": schedule.policy,
              "sms": schedule.sms}  # fmt: skip
    return table, counters, header


def graph_of_tables(tasks: pa.Table, counters: pa.Table, header: dict) -> tuple[Graph, Schedule]:
    """Inverse of :func:`tables_of_graph`; the tables hold this graph's rows only, in order."""
    tasks, ops = tasks.combine_chunks(), tuple(header["ops"])

    def column(name, kind):
        return tasks[name].to_numpy().astype(kind)

    def csr(name, kind):
        arrays = tasks[name].combine_chunks()
        ptr = np.zeros(len(tasks) + 1, np.int32)
        np.cumsum(arrays.value_lengths().to_numpy(zero_copy_only=False), out=ptr[1:])
        return ptr, arrays.flatten().to_numpy().astype(kind)

    op_id = {name: i for i, name in enumerate(ops)}
    op = np.array([op_id[name] for name in tasks["op"].to_pylist()], np.uint8)
    wait_ptr, wait_counter = csr("wait_counter", np.int32)
    raise_ptr, raise_counter = csr("raise_counter", np.int32)
    graph = Graph(
        header["name"], ops, op, column("layer", np.int16), column("slot", np.int16), column("tile", np.int32),
        column("bytes", np.int64), column("flops", np.int64), wait_ptr, wait_counter, csr("wait_need", np.uint32)[1],
        raise_ptr, raise_counter, tuple(counters["name"].to_pylist()), header["meta"],
    )  # fmt: skip
    sm, order, load_order = column("sm", np.int64), column("order", np.int64), column("load_order", np.int64)

    def listed(mask, position):
        found = np.flatnonzero(mask)
        return found[np.argsort(position[found])].astype(np.int32)

    ptr = np.zeros(header["sms"] + 1, np.int32)
    np.cumsum(np.bincount(sm[sm >= 0], minlength=header["sms"]), out=ptr[1:])
    return graph, Schedule(
        header["sms"], ptr, listed(sm >= 0, order), listed((sm < 0) & (order >= 0), order),
        listed(load_order >= 0, load_order), header["policy"],
    )  # fmt: skip
