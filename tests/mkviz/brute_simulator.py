"""The simulator's model once more, stepped ns by ns in plain Python: slow, without heaps or virtual time, as a reference."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Lane:
    owned: list[int]  # tasks that the loader has not taken up yet
    loading: int | None = None
    unsent: list[int] = field(default_factory=list)  # sizes of the chunks of that task still to be started
    in_flight: int | None = None  # 2^-16 bytes still to come of the chunk that is sent now
    ring: list[int | None] = field(default_factory=list)  # stages in use: when the chunk landed or will, None: being sent
    todo: list[int] = field(default_factory=list)  # tasks that math has not turned to yet
    task: int | None = None
    parts: list[int] | None = None  # ns of math of its chunks to come, None: it has not begun
    busy_until: int | None = None
    begin_at: int | None = None
    free: int = 0
    known_at: int = 0


def brute_force(graph, lists, queue, machine, late, prefetch, start=0, arrivals=None, record=None):
    """Returns ({task: [sm, claim, ready, begin, end, last wait, fill, bytes came last]}, ns of the last publish).

    ``arrivals`` and ``record`` carry over from one kernel to the next: {counter: times at which its arrivals are seen}.
    """
    m, stages = machine, machine.ring_bytes // machine.chunk_bytes
    arrivals = {} if arrivals is None else arrivals
    record = {} if record is None else record
    lanes = [Lane(owned=list(x), todo=list(x), free=start) for x in lists]
    queue, last, t = list(queue), start, start

    def rate(n):
        return min(int(m.sm_bandwidth) * 65536 // 10**9, int(m.bandwidth) * 65536 // (10**9 * n))

    def chunks(task):
        size = int(graph.bytes[task])
        return [min(m.chunk_bytes, size - at) for at in range(0, size, m.chunk_bytes)]

    def math_parts(task):
        flops, read = int(graph.flops[task]), int(graph.bytes[task])
        total = max(1, -(-flops * 10**9 // int(m.sm_flops)), -(-read * 10**9 // int(m.sm_math_bandwidth)))
        n = max(1, len(chunks(task)))
        return [total * (i + 1) // n - total * i // n for i in range(n)]

    def seen(task, earlier_kernels_at=start):
        """(when its last wait is met, which one that is), or None while that is open."""
        times = []
        for counter, need in graph.waits(task):
            got = sorted(arrivals.get(counter, []))
            if len(got) < need:
                return None
            times.append(got[need - 1])
        if not times:
            return earlier_kernels_at, 0xFFF
        latest = max(times)
        return (min(latest, earlier_kernels_at) if all_before(task) else latest), times.index(latest)

    def all_before(task):
        """Every wait was met by kernels before this one."""
        return task in met_before

    def feeding(task):
        return m.feed_ns if graph.waits(task) else 0

    mine = [x for some in lists for x in some] + queue
    met_before = {x for x in mine if all(len(arrivals.get(c, [])) >= need for c, need in graph.waits(x))}

    def take_up(s, lane, task):
        record[task] = {"sm": s, "claim": t}
        lane.loading, lane.unsent = task, chunks(task)

    def loader(s, lane):
        if lane.in_flight is not None or t < lane.known_at:
            return False
        if lane.loading is None:
            if not lane.owned or (not prefetch and lane.owned[0] != lane.task):
                return False
            take_up(s, lane, lane.owned.pop(0))
            return True
        if not lane.unsent:
            lane.loading = None
            return True
        met = seen(lane.loading)
        if (late[lane.loading] and (met is None or met[0] + feeding(lane.loading) > t)) or len(lane.ring) == stages:
            return False
        lane.in_flight = lane.unsent.pop(0) << 16
        lane.ring.append(None)
        return True

    def math(s, lane):
        nonlocal last
        if lane.task is None:
            if not lane.todo:
                return False
            lane.task = lane.todo.pop(0)
            return True
        task = lane.task
        if lane.parts is None:
            met = seen(task)
            if task not in record or met is None:
                return False
            entry = record[task]
            operands = max(lane.free, met[0] + feeding(task), entry["claim"])
            entry["ready"] = max(met[0], entry["claim"])
            entry["last_wait"] = met[1]
            entry["bytes_last"] = False
            if graph.bytes[task]:
                if not lane.ring or lane.ring[0] is None:
                    return False
                entry["bytes_last"] = lane.ring[0] > operands
                operands = max(operands, lane.ring[0])
            if t < operands + m.task_overhead_ns:
                return False
            landed = sum(at is not None and at <= t for at in lane.ring)
            entry |= {"begin": t, "fill": min(15, landed * 16 // stages)}
            lane.parts = math_parts(task)
            return True
        if lane.busy_until is None:
            if graph.bytes[task] and (not lane.ring or lane.ring[0] is None or lane.ring[0] > t):
                return False
            lane.busy_until = t + lane.parts[0]
            return True
        if t < lane.busy_until:
            return False
        lane.busy_until = None
        lane.parts.pop(0)
        if graph.bytes[task]:
            lane.ring.pop(0)
        if not lane.parts:
            record[task]["end"] = t
            last = max(last, t + m.publish_ns)
            for c in graph.raises(task):
                arrivals.setdefault(c, []).append(t + m.publish_ns + m.hop_ns)
            lane.task, lane.parts, lane.free = None, None, t
        return True

    while any("end" not in record.get(x, {}) for x in mine):
        moved = True
        while moved:  # everything that happens within this ns, tickets apart
            moved = False
            for s, lane in enumerate(lanes):
                moved = math(s, lane) or moved
                moved = loader(s, lane) or moved
        for s, lane in enumerate(lanes):
            if lane.task is None and queue:
                lane.task = queue.pop(0)
                take_up(s, lane, lane.task)
                lane.free = lane.known_at = t + m.claim_ns
        moved = True
        while moved:  # a ticket that costs no time goes on within its ns
            moved = False
            for s, lane in enumerate(lanes):
                moved = loader(s, lane) or moved
                moved = math(s, lane) or moved
        t += 1
        assert t < 1_000_000, "nothing moves"
        sending = [lane for lane in lanes if lane.in_flight is not None]
        assert len(sending) * rate(max(1, len(sending))) <= m.bandwidth * 65536 / 1e9
        for lane in sending:
            assert len(lane.ring) <= stages
            lane.in_flight -= rate(len(sending))
            if lane.in_flight <= 0:
                lane.in_flight = None
                lane.ring[-1] = t + m.latency_ns
    return record, last
