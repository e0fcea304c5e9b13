"""Logs: one line for each request and event, for people or, as JSON, for programs."""

from __future__ import annotations

import json
import logging
import sys
import time


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
        line = line.encode("ascii", "backslashreplace").decode()  # a header may hold what no terminal should be sent
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(form: str) -> None:
    """Send this server's lines, and the HTTP library's warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else ForPeople())
    for name, level in (("mkviz.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
