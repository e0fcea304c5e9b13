"""Which steps of two sources are laid on each other, how far the second is moved for it, and in which words."""

import pytest

from mkviz.dashboard.compare import Alignment, align, words
from mkviz.graph import GraphBuilder
from mkviz.protocols import StepInfo
from mkviz.record import EVENT
from mkviz.schedule import Schedule
from mkviz.store import LiveStore


def source(*steps, first=1000):
    """A snapshot of steps (number, begin, end); begins count from ``first``, which is its origin too."""
    import numpy as np

    builder = GraphBuilder("one", ("op",))
    builder.task("op")
    store = LiveStore()
    store.graph(0, builder.build(), Schedule.from_lists([[0]]))
    for number, begin, end in steps:
        events = np.zeros(1, EVENT)
        events["claim"] = events["ready"] = events["begin"] = first + begin
        events["end"] = events["publish"] = first + end
        store.step(StepInfo(number, 0, first + begin, first + end), events)
    return store.snapshot()


SLOW = source((4, 0, 100), (5, 100, 200), (6, 200, 300), (7, 300, 400))
FAST = source((4, 0, 10), (5, 10, 20), (6, 20, 30), (7, 30, 40), first=77_000)


@pytest.mark.parametrize(
    ("view", "newest", "before", "expected"),
    [
        ((0, 400), False, -1, Alignment(0, 0, 0)),
        ((50, 400), False, -1, Alignment(1, 1, 90)),  # the first that begins in view: at 100 above, at 10 below
        ((50, 400), True, -1, Alignment(3, 3, 270)),  # the newest
        ((50, 400), True, 5, Alignment(1, 1, 90)),  # stays with what it had
        ((50, 400), False, 4, Alignment(0, 0, 0)),  # still in view, though it began before
        ((90, 310), True, -1, Alignment(2, 2, 180)),  # of step 7 only the edge is in view
        ((90, 310), False, 7, Alignment(1, 1, 90)),
        ((150, 400), False, 4, Alignment(2, 2, 180)),  # gone from view
        ((110, 190), False, -1, Alignment(1, 1, 90)),  # none begins in view: the one that is nearest to the middle
        ((5000, 6000), False, -1, Alignment(3, 3, 270)),
    ],
)
def test_which_step_begins_where(view, newest, before, expected):
    assert align(SLOW, FAST, *view, newest, before) == expected


def test_only_steps_that_both_hold():
    behind = source((5, 0, 10), (6, 10, 20))
    assert align(SLOW, behind, 0, 400, newest=True) == Alignment(2, 1, 190)  # 7 has still to come
    assert align(SLOW, behind, 250, 400, newest=True) == Alignment(2, 1, 190)
    assert align(SLOW, behind, 320, 400, newest=False) == Alignment(2, 1, 190)  # none of them in view


def test_by_place_where_no_number_is_common():
    other = source((90, 0, 7), (91, 7, 14))
    assert align(SLOW, other, 100, 400, newest=False) == Alignment(1, 1, 93)
    assert align(SLOW, other, 250, 400, newest=False) == Alignment(3, 1, 293)  # the last there is
    assert align(SLOW, source(), 0, 400, newest=False) is None and align(source(), SLOW, 0, 400, newest=False) is None


def test_words():
    slow, fast = source((4, 0, 2_000), (5, 2_000, 4_000)), source((4, 0, 1_600), (5, 1_600, 3_200))
    assert words(slow, fast, Alignment(0, 0, 0)) == ("step 4 takes 1.60 µs, above 2.00 µs (1.25 × shorter) · begins with it")
    assert words(fast, slow, Alignment(1, 1, -400)) == (
        "step 5 takes 2.00 µs, above 1.60 µs (1.25 × longer) · moved by −400 ns to begin with it"
    )
    assert words(slow, slow, Alignment(0, 1, 5)) == (
        "step 5 takes 2.00 µs, step 4 above 2.00 µs (the same) · moved by +5 ns to begin with it"
    )
