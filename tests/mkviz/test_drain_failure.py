"""The drain when the rings can be read no more: what has been read is kept, and why there is no more is told once."""

import time

from played import Machine, Recorder

from mkviz.protocols import StepInfo


def test_a_thread_that_dies_says_why_once_to_log_and_to_sinks_of_before_and_after(monkeypatch, caplog):
    class Shown(Recorder):
        def failed(self, why):
            self.calls.append(("failed", why))

    m, early, late = Machine(expects_meta=False), Shown(), Shown()
    m.drain.add_sink(early)
    m.run(0)
    m.polls(2)

    def gone(budget):
        raise OSError("the device\nis gone")

    monkeypatch.setattr(m.drain.reader, "read", gone)
    m.drain.start()
    deadline = time.monotonic() + 30
    while m.drain.failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    m.drain.add_sink(late)
    m.drain.close()
    assert early.calls == [("step", 0), ("failed", "OSError: the device is gone")]
    assert late.calls == early.calls[1:] and m.sink.calls == [("step", 0)]
    assert [r.getMessage() for r in caplog.records] == ["records can be read no more: OSError: the device is gone"]
    assert not m.drain.detached


def test_a_failing_link_ends_the_thread_with_its_reason():
    m = Machine(expects_meta=False, interval=0.001)

    def fail():
        raise RuntimeError("device is gone")

    m.drain.reader.link.read_live = fail
    m.drain.start()
    m.drain._thread.join(5)
    assert str(m.drain.failure) == "device is gone"
    m.drain.close(close_sinks=True)
    assert m.sink.calls == [("close", True)]


def test_a_sink_that_is_removed_when_the_link_has_failed_keeps_what_was_read(monkeypatch):
    """Of step 1 all was read but not yet told, of step 2 a part, and then the device was gone."""
    m = Machine()
    m.drain.graph(0, m.graph, m.schedule)
    m.run(0)
    m.drain.poll()
    m.drain.step_meta(StepInfo(1, 0, 0, 0))
    m.drain.step_meta(StepInfo(2, 0, 0, 0))
    m.play(1, 0)
    m.play(1, 1)
    m.play(2, 0)
    m.drain.poll()
    told = len(m.sink.numbers)
    monkeypatch.setattr(m.drain.reader.link, "read_live", lambda: 1 / 0)
    m.drain.remove_sink(m.sink, settle=True)
    assert told < 2 and m.sink.numbers == [0, 1]
    assert isinstance(m.drain.failure, ZeroDivisionError)
    stats = m.drain.close()
    assert (stats.delivered, stats.withheld, stats.lost, stats.written) == (10, 3, 0, 13)
