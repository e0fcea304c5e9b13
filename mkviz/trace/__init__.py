"""Trace: records with their graph and meaning, in a directory of Parquet segments and one ``meta.json``.

Any Parquet reader opens the tables (see :mod:`mkviz.trace.schema`); :class:`Trace` adds what joins them.
"""

from mkviz.trace.reader import Trace
from mkviz.trace.writer import TraceWriter

__all__ = ["Trace", "TraceWriter"]
