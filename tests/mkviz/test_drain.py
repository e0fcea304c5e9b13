"""The drain: whole steps, in order, once, to every sink; what is missing is counted to the record."""

import threading
import time

import numpy as np
import pytest
from played import Machine, Recorder

from mkviz.protocols import RequestInfo, Row, StepInfo, TokenInfo
from mkviz.record import KIND_PHASES


def test_steps_come_whole_in_order_and_once():
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    for step in range(2000):  # the short step wraps
        m.run(step)
        m.drain.poll()
    m.drain.close()
    assert m.sink.numbers == list(range(2000))
    for info, events in m.sink.steps:
        assert events["step"].tolist() == [info.step] * 5
        assert events["task"].tolist() == [0, 1, 2, 3, 4]  # by SM, then begin
        assert events["sm"].tolist() == [0, 0, 0, 1, 1]
        t = m.time(info.step)
        assert (info.begin, info.end, info.lost) == (t + 10, t + 290, 0)
    stats = m.drain.stats
    assert (stats.written, stats.delivered, stats.lost, stats.withheld, stats.waiting) == (10_000, 10_000, 0, 0, 0)
    assert (m.sink.lost_records, m.sink.lost_steps) == (0, 0)


def test_a_step_waits_for_every_ring():
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.drain.step_meta(StepInfo(0, 0, 0, 0))
    m.play(0, 0)
    m.polls(3)
    assert m.sink.numbers == []
    assert m.drain.stats.waiting == 3
    m.play(0, 1)
    m.polls(2)
    assert m.sink.numbers == [0]  # and it need not wait for a next step to begin


def test_a_step_waits_for_its_meta_before_or_after_the_records():
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.run(0, meta=False)
    m.polls(3)
    assert m.sink.numbers == []
    m.drain.step_meta(StepInfo(0, 0, 7, 7, rows=[Row(0, 4, 11, 99, "decode")], routes=[(0, 0, 3, 1)]))
    m.polls(1)
    info = m.sink.steps[0][0]
    assert info.rows == [Row(0, 4, 11, 99, "decode")] and info.routes == [(0, 0, 3, 1)]
    assert info.begin == m.time(0) + 10  # the drain's, not the caller's


def test_calls_reach_sinks_in_order_and_a_late_sink_learns_the_graphs():
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.drain.request(RequestInfo(1, "prefill", 0))
    m.drain.token(TokenInfo(1, 0, 5, "a", 0, 0))
    assert m.sink.calls == []  # nothing runs in the caller's thread
    m.run(0)
    m.polls(2)
    late = Recorder()
    m.drain.add_sink(late)
    m.run(1)
    m.drain.close(complete=False, close_sinks=True)
    assert m.sink.calls == [
        ("graph", 0), ("request", "prefill"), ("token", 0), ("step", 0), ("step", 1), ("close", False),
    ]  # fmt: skip
    assert late.calls == [("graph", 0), ("step", 1), ("close", False)]


def test_a_removed_sink_gets_nothing_more():
    m = Machine(expects_meta=False)
    m.run(0)
    m.polls(2)
    m.drain.remove_sink(m.sink)
    m.run(1)
    m.drain.close(close_sinks=True)
    assert m.sink.calls == [("step", 0)]


def test_a_sink_that_is_removed_once_all_is_told_gets_no_token_without_its_step(monkeypatch):
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.run(0)
    m.drain.token(TokenInfo(1, 0, 5, "a", 0, 0))
    read, steps = m.drain.reader.read, iter((1, 2))

    def meanwhile(budget):
        """A step ends, and its token is told, during each reading."""
        batch, step = read(budget), next(steps)
        m.run(step)
        m.drain.token(TokenInfo(1, step, 5, "b", step, 0))
        return batch

    monkeypatch.setattr(m.drain.reader, "read", meanwhile)
    m.drain.remove_sink(m.sink, settle=True)
    assert m.sink.calls == [("graph", 0), ("token", 0), ("step", 0)]


def test_a_sink_that_raises_is_detached_and_the_others_go_on():
    m = Machine(expects_meta=False)

    class Broken(Recorder):
        def step(self, info, events):
            raise OSError("no space left")

    broken = Broken()
    m.drain.add_sink(broken)
    other = Recorder()
    m.drain.add_sink(other)
    m.run(0, 1)
    m.drain.close()
    assert m.sink.numbers == other.numbers == [0, 1]
    [(sink, error)] = m.drain.detached
    assert sink is broken and str(error) == "no space left"


def test_live_mode_leaves_out_steps_that_are_not_whole_and_counts_them():
    m = Machine(capacity=16)  # 14 readable: four steps of SM 0's three tasks
    m.drain.graph(0, m.graph, m.schedule)
    m.run(*range(10))
    m.drain.close()
    assert m.sink.numbers == [6, 7, 8, 9]
    stats = m.drain.stats
    assert (stats.written, stats.delivered) == (50, 20)
    # SM 0 wrote 30 and 16 of them are gone, SM 1 wrote 20 and 6 are gone; the rest belongs to steps that are not whole
    assert (stats.lost, stats.withheld, stats.steps, stats.steps_lost) == (22, 8, 4, 6)
    assert (m.sink.lost_records, m.sink.lost_steps) == (30, 6)


def test_without_a_graph_gaps_decide_and_never_pass_off_a_part_as_whole():
    m = Machine(capacity=16, expects_meta=False)
    m.run(0)
    m.polls(2)
    m.run(*range(1, 11))
    m.drain.close()
    assert m.sink.numbers == [0, 7, 8, 9, 10]
    assert all(len(events) == 5 for _, events in m.sink.steps)
    assert m.drain.stats.steps_lost == 6
    assert m.drain.stats.written == 55 == 25 + m.sink.lost_records


def test_steps_of_which_nothing_came_are_counted():
    m = Machine(capacity=16, expects_meta=False)
    m.run(0, meta=False)
    m.polls(2)
    m.run(*range(1, 200), meta=False)
    m.drain.close()
    assert m.drain.stats.steps + m.drain.stats.steps_lost == 200
    assert m.sink.lost_steps == m.drain.stats.steps_lost
    assert m.drain.stats.delivered + m.sink.lost_records == 1000


def test_capture_keeps_parts_and_says_how_much_is_missing():
    m = Machine(capacity=8, capture=True)  # SM 0: steps 0, 1 and two thirds of step 2
    m.drain.graph(0, m.graph, m.schedule)
    m.run(0, 1, 2, 3)
    m.polls(2)
    m.run(4)
    m.drain.close()
    assert [(info.step, info.lost, len(events)) for info, events in m.sink.steps] == [
        (0, 0, 5), (1, 0, 5), (2, 1, 4), (3, 3, 2), (4, 0, 5),
    ]  # fmt: skip
    assert (m.drain.stats.lost, m.sink.lost_records, m.drain.stats.withheld) == (4, 4, 0)


def test_capture_shows_no_step_that_never_was_however_late_the_drain_comes():
    m = Machine(capacity=16, capture=True)  # SM 0: steps 0 to 4 and a third of 5; SM 1: steps 0 to 7
    m.drain.graph(0, m.graph, m.schedule)
    m.run(*range(1500))
    m.drain.close()
    assert m.sink.numbers == list(range(1500))
    lost = {5: 2, 6: 3, 7: 3} | dict.fromkeys(range(5), 0)
    assert {info.step: info.lost for info, events in m.sink.steps if len(events)} == lost
    assert m.drain.stats.lost == m.sink.lost_records == 7500 - 32


def test_a_writer_that_dies_leaves_its_step_out_at_close():
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.run(0)
    m.drain.step_meta(StepInfo(1, 0, 0, 0))
    m.play(1, 0)
    m.writers[1].step(1)
    m.writers[1].write(3, 1, m.time(1), 1, 2, 3, 4)  # and then nothing more
    m.polls(5)
    assert m.sink.numbers == [0]
    stats = m.drain.close()
    assert m.sink.numbers == [0]
    assert (stats.written, stats.delivered, stats.withheld, stats.steps_lost, stats.waiting) == (9, 5, 4, 1, 0)


def test_torn_records_cost_their_step_and_nothing_else():
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.run(0, 1, 2)
    m.rings.records[0, 4, 3] = 77  # seq of the second task of step 1
    stats = m.drain.close()
    assert m.sink.numbers == [0, 2]
    assert (stats.torn, stats.lost, stats.withheld) == (1, 1, 4)


def test_a_record_of_a_closed_step_is_counted_as_late():
    m = Machine(expects_meta=False)
    m.run(0, 1)
    m.polls(2)
    m.writers[1].write(4, 0, m.time(1), 1, 2, 3, 4)
    stats = m.drain.close()
    assert (stats.late, stats.withheld, stats.delivered) == (1, 1, 10)


def test_companion_records_do_not_count_as_tasks():
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.drain.step_meta(StepInfo(0, 0, 0, 0))
    m.play(0, 0)
    m.writers[1].step(0)
    m.writers[1].write(3, 0, m.time(0), 1, 2, 3, 4)
    m.writers[1].write(3, 0, m.time(0), 1, 2, 3, 4, flags=KIND_PHASES)
    m.writers[1].step(1)
    stats = m.drain.close()
    assert m.sink.numbers == [] and stats.steps_lost == 1  # six records, but only four of five tasks


def test_records_without_any_anchor_are_lost_at_close_not_forgotten():
    m = Machine(expects_meta=False)
    m.rings.live["anchor_ns"] = 0
    m.writers[0].write(0, 0, 5, 1, 2, 3, 4)
    stats = m.drain.close()
    assert (stats.written, stats.lost, stats.waiting) == (1, 1, 0)
    assert m.sink.lost_records == 1


def test_close_takes_the_rest_whatever_the_budget():
    m = Machine(capacity=1024, budget=10)
    m.drain.graph(0, m.graph, m.schedule)
    m.run(*range(20))
    assert m.drain.poll() == 0 and m.drain.stats.lost == 90
    m.run(*range(20, 40))
    m.drain.close()
    assert m.sink.numbers[-20:] == list(range(20, 40))


def test_a_step_of_more_records_than_the_budget_is_still_shown():
    """Five tasks a step, two records a poll: ten are read, and of those of steps 18 and 19 one is whole; later ones too."""
    m = Machine(capacity=1024, budget=2)
    m.drain.graph(0, m.graph, m.schedule)
    for step in range(0, 60, 20):
        m.run(*range(step, step + 20))
        m.polls()
    assert {18, 38, 58} <= set(m.sink.numbers)
    assert m.drain.stats.written == 300 and m.drain.stats.lost >= 300 - 3 * 10


def test_making_room_between_steps_loses_nothing_and_reads_no_more_than_it_must():
    m = Machine(capacity=16, budget=None)  # SM 0 writes three records a step: half full with the third
    m.drain.graph(0, m.graph, m.schedule)
    read = []
    for step in range(200):
        m.drain.make_room()
        read.append(m.drain.stats.written)
        m.run(step)
    m.drain.close()
    assert m.sink.numbers == list(range(200))
    assert (m.drain.stats.lost, m.sink.lost_records) == (0, 0)
    assert read[:7] == [0, 0, 0, 15, 15, 15, 30]  # polled before every third step only


@pytest.mark.parametrize("capture", [False, True])
def test_a_thread_drains_while_two_writers_run(capture):
    m = Machine(capacity=256, capture=capture, interval=0.002)
    m.drain.graph(0, m.graph, m.schedule)
    for step in range(3000):
        m.drain.step_meta(StepInfo(step, 0, 0, 0))
    m.drain.start()

    def writer(sm):
        for step in range(3000):
            m.play(step, sm)
            if step % 20 == 0:
                time.sleep(0.0005)

    threads = [threading.Thread(target=writer, args=(sm,)) for sm in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = m.drain.close()
    assert m.drain.failure is None
    assert (stats.torn, stats.late, stats.waiting) == (0, 0, 0)
    assert stats.written == 15_000 == stats.delivered + m.sink.lost_records
    assert m.sink.numbers == sorted(set(m.sink.numbers))
    assert stats.steps + stats.steps_lost == 3000
    for info, events in m.sink.steps:
        assert len(events) + info.lost == 5
        assert len(np.unique(events["task"])) == len(events)
        assert (events["step"] == info.step).all()
