"""Trace: records with their graph and meaning, in a directory of Parquet segments and one ``meta.json``.

Any Parquet reader opens the tables (see :mod:`mkviz.trace.schema`); :class:`Trace` adds what joins them.
"""

import pyarrow as pa

from mkviz.trace.reader import Trace
from mkviz.trace.writer import TraceWriter

pa.enable_signal_handlers(False)  # Arrow's own are there for the time of a read only, and lose a Ctrl-C that comes then

__all__ = ["Trace", "TraceWriter"]
