"""Wire: what a server and a viewer say to each other, as bytes.

A message is two little-endian lengths (u32 of the header, u64 of the body), a JSON header and a body: Arrow IPC streams, end
to end, of the tables that ``tables`` in the header names with their lengths.  The tables are those of a trace
(:mod:`mkviz.trace.schema`), so nothing but numbers and words travels.  Every header has a ``kind``:

========  ===========================================================================================================
hello     the viewer first: ``protocol``, ``mkviz``, ``run`` (of the server that it knows, or ""), ``next`` (number of
          the next message it wants).  The server's answer: ``protocol``, ``mkviz``, ``run``, ``label``, ``source``
          (the kind), ``name``, ``pid``, ``next``, ``told`` (totals before that message)
refused   the server does not go on: ``why``
graph     ``id`` and what ``meta.json`` keeps of it (``header``); tables ``tasks`` and ``counters``
request   ``changes``: those of one request from the ``index``-th on
step      the host's side of a step (``info``); table ``records``
token     ``token``
lost      ``records`` and ``steps`` that the recording itself lost
failed    records can be read no more, though the server goes on: ``why``
close     the server has ended; ``complete``
========  ===========================================================================================================

The last five are numbered (``n``), and say what had been told before them (``before``), so that whoever misses some of them
knows exactly how much was in those.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import asdict, astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mkviz.protocols import RequestInfo, Row, StepInfo, TokenInfo
from mkviz.record import EVENT
from mkviz.trace import schema

if TYPE_CHECKING:
    from mkviz.graph import Graph
    from mkviz.schedule import Schedule

PROTOCOL = 1
LENGTHS = struct.Struct("<IQ")
MOST_HEADER, MOST_BODY = 64 << 20, 1 << 30


class Garbled(Exception):
    """What came is no message of this protocol."""


@dataclass(frozen=True)
class Told:
    """Totals of what a sink has been told; ``lost_records`` and ``lost_steps`` are what the recording itself had lost."""

    records: int = 0
    steps: int = 0
    tokens: int = 0
    lost_records: int = 0
    lost_steps: int = 0

    def plus(self, **more: int) -> Told:
        return Told(**{name: value + more.get(name, 0) for name, value in asdict(self).items()})

    def since(self, before: Told) -> Told:
        """What was told after ``before``."""
        return Told(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


def pack(header: dict, tables: dict[str, pa.Table] | None = None) -> bytes:
    bodies = {name: _stream(table) for name, table in (tables or {}).items()}
    if bodies:
        header = {**header, "tables": {name: len(body) for name, body in bodies.items()}}
    head = json.dumps(header, separators=(",", ":"), default=int).encode()  # numpy has integers of its own
    return b"".join([LENGTHS.pack(len(head), sum(map(len, bodies.values()))), head, *bodies.values()])


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def receive(sock: socket.socket) -> tuple[dict, dict[str, pa.Table]] | None:
    """The next message, None where the other side has ended between two.  Raises Garbled, and OSError when it ends in one."""
    lengths = _exactly(sock, LENGTHS.size, may_end=True)
    return None if lengths is None else unpack(*LENGTHS.unpack(lengths), lambda size: _exactly(sock, size))


def unpack(header_size: int, body_size: int, read) -> tuple[dict, dict[str, pa.Table]]:
    if header_size > MOST_HEADER or body_size > MOST_BODY:
        raise Garbled(f"a message of {header_size} + {body_size} bytes")
    try:
        header = json.loads(bytes(read(header_size)))
        body, tables, at = memoryview(read(body_size)), {}, 0
        for name, size in header.get("tables", {}).items():
            tables[name] = pa.ipc.open_stream(body[at : at + size]).read_all()
            if tables[name].schema != schema.TABLES[name]:
                raise Garbled(f"table {name} has other columns")
            tables[name].validate()
            at += size
        if at != body_size or not isinstance(header["kind"], str):
            raise Garbled("a message that does not fit its header")
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise Garbled(f"{type(error).__name__}: {error}") from error
    return header, tables


def _exactly(sock: socket.socket, size: int, may_end: bool = False) -> bytearray | None:
    out = bytearray(size)
    view, got = memoryview(out), 0
    while got < size:
        count = sock.recv_into(view[got:])
        if not count:
            if may_end and not got:
                return None
            raise ConnectionError(f"the connection ended after {got} of {size} bytes")
        got += count
    return out


# what is said, and back


def graph_message(graph_id: int, graph: Graph, schedule: Schedule) -> bytes:
    tasks, counters, header = schema.tables_of_graph(graph_id, graph, schedule)
    return pack({"kind": "graph", "id": graph_id, "header": header}, {"tasks": tasks, "counters": counters})


def graph_of(header: dict, tables: dict[str, pa.Table]) -> tuple[int, Graph, Schedule]:
    return header["id"], *schema.graph_of_tables(tables["tasks"], tables["counters"], header["header"])


def request_message(index: int, changes: tuple[RequestInfo, ...]) -> bytes:
    return pack({"kind": "request", "index": index, "changes": [astuple(change) for change in changes]})


def changes_of(header: dict) -> list[RequestInfo]:
    return [_of(RequestInfo, values) for values in header["changes"]]


def step_message(info: StepInfo, events: np.ndarray, n: int, before: Told) -> bytes:
    plain = [info.step, info.graph, info.begin, info.end, [astuple(row) for row in info.rows], info.routes, info.lost]
    table = schema.table_of_events(events)
    return pack({"kind": "step", "n": n, "before": astuple(before), "info": plain}, {"records": table})


def step_of(header: dict, tables: dict[str, pa.Table]) -> tuple[StepInfo, np.ndarray]:
    info = _of(StepInfo, header["info"])
    info.rows = [_of(Row, row) for row in info.rows]
    info.routes = [tuple(route) for route in info.routes]
    return info, schema.events_of_table(tables["records"]) if len(tables["records"]) else np.zeros(0, EVENT)


def token_message(info: TokenInfo, n: int, before: Told) -> bytes:
    return pack({"kind": "token", "n": n, "before": astuple(before), "token": astuple(info)})


def token_of(header: dict) -> TokenInfo:
    return _of(TokenInfo, header["token"])


def told_of(values: list) -> Told:
    return _of(Told, values)


def _of(kind: type, values: list):
    """A dataclass of what JSON made of its fields."""
    if len(values) != len(fields(kind)):
        raise Garbled(f"{kind.__name__} of {len(values)} fields")
    for item, value in zip(fields(kind), values, strict=True):
        if not isinstance(value, {"int": int, "str": str}.get(str(item.type), list)):
            raise Garbled(f"{kind.__name__}.{item.name}: {value!r}")
    return kind(*values)
