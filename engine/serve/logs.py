"""Logs: one line for each request and event, for people or, as JSON, for programs."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time

import h11

_CONTROL = re.compile("[\x00-\x1f\x7f]")


class JsonLines(logging.Formatter):
    """``fields`` of the record beside time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class ForPeople(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        told = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.getMessage()} {told}".rstrip()
        line = line.encode("ascii", "backslashreplace").decode()  # a path may hold what no terminal should be sent,
        line = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)  # or more lines, as if they were of this log
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def worth_telling(record: logging.LogRecord) -> bool:
    """Not the traceback of a connection that the end of the process cut short; that it does so is a line of its own.  Nor of
    an answer to a client whose bytes stopped being HTTP meanwhile: h11 takes none then, and the request has its line."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, (asyncio.CancelledError, h11.LocalProtocolError))


def configure(form: str) -> None:
    """Send this server's lines, and warnings of the recording and of the HTTP library, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else ForPeople())
    handler.addFilter(worth_telling)
    for name, level in (("mkviz.serve", logging.INFO), ("mkviz.drain", logging.WARNING), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
