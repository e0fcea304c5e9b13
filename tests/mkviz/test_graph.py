"""GraphBuilder: tasks one by one and many at once, against arrays worked out by hand."""

import numpy as np
import pytest

from mkviz.errors import MkvizError
from mkviz.graph import GraphBuilder


def built():
    b = GraphBuilder("g", ["load", "work"])
    a, c, d = (b.counter(name) for name in "acd")
    assert b.task("load", bytes=8, raises=[a]) == 0
    assert b.tasks("work", 3, layer=2, slot=1, tile=5, bytes=np.array([1, 2, 3]), flops=7, waits=[a, (c, 1)],
                   raises=[np.array([c, d, c])]) == 1  # fmt: skip
    assert b.task("load", waits=[(c, 1), d]) == 4
    return b.build()


def test_many_tasks_at_once_are_what_the_same_one_by_one_would_be():
    g = built()
    assert g.op.tolist() == [0, 1, 1, 1, 0] and g.layer.tolist() == [-1, 2, 2, 2, -1] and g.slot.tolist() == [-1, 1, 1, 1, -1]
    assert g.tile.tolist() == [-1, 5, 6, 7, -1] and g.bytes.tolist() == [8, 1, 2, 3, 0] and g.flops.tolist() == [0, 7, 7, 7, 0]
    assert [g.waits(t) for t in range(5)] == [[], *[[(0, 1), (1, 1)]] * 3, [(1, 1), (2, 1)]]
    assert [g.raises(t) for t in range(5)] == [[0], [1], [2], [1], []]


def test_a_bare_counter_needs_every_arrival():
    b = GraphBuilder("g", ["op"])
    c = b.counter("c")
    b.tasks("op", 3, raises=[c])
    b.tasks("op", 2, waits=[c, (c, 2)])
    assert b.build().waits(4) == [(0, 3), (0, 2)]


def test_none_at_all():
    g = GraphBuilder("empty", ["op"]).build()
    assert len(g) == 0 and g.wait_ptr.tolist() == [0] and g.raise_ptr.tolist() == [0]


@pytest.mark.parametrize("add", ["task", "tasks"])
def test_an_unknown_op_is_refused(add):
    b = GraphBuilder("g", ["a", "b"])
    with pytest.raises(MkvizError, match="graph g: unknown op 'c'; one of a, b"):
        getattr(b, add)("c", **({"n": 2} if add == "tasks" else {}))
