"""A pen that builds record words by hand from the offsets of the design, so that the decoder is not checked against our writer;
and a link to a ring that is written to while it is read."""

from mkviz.decode import RingReader
from mkviz.ring import HostLink, HostRings


class Pen:
    """Writes records as the design describes them; ``at`` is the index in the ring's life."""

    def __init__(self, rings, ring=0):
        self.rings, self.ring, self.at = rings, ring, 0

    def place(self, index, *, claim, step=0, task=0, deltas=(1, 2, 3, 4), tail=0xFFF, seq=None, lap=None):
        capacity = self.rings.capacity
        seq = (index + 1) % 2**32 if seq is None else seq
        lap = (index // capacity + 1) % 256 if lap is None else lap
        ready, begin, end, publish = deltas
        words = [claim % 2**32, ready, begin, seq, end, publish, (step % 1024) * 2**22 + task, lap * 2**24 + tail]
        self.rings.records[self.ring, index % capacity] = words

    def write(self, **fields):
        self.place(self.at, **fields)
        self.at += 1
        self.rings.live["head"][self.ring] = self.at

    def line(self, **fields):
        for name, value in fields.items():
            self.rings.live[name][self.ring] = value


def one_ring(capacity=16, **options):
    rings = HostRings(1, capacity, **options)
    return Pen(rings), RingReader(rings.link())


class MutatingLink(HostLink):
    """A link whose rings are written on while it copies."""

    def __init__(self, rings, between):
        super().__init__(rings)
        self._between = between

    def read_records(self, start, stop):
        self._between()
        return super().read_records(start, stop)
