"""Structured logs: one JSON object per line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

LOGGER = "presage.serving"
FIELDS = "fields"  # attribute of a log record: further fields of its line


class JsonLines(logging.Formatter):
    """Formatter of a record as one line of JSON with time, level, event and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line break."""
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


def log(level: int, event: str, *, traceback: bool = False, **fields: Any) -> None:
    """Log an event with fields; never pass tokens or contents of requests or files."""
    logging.getLogger(LOGGER).log(level, event, extra={FIELDS: fields}, exc_info=traceback)


def log_as_json(stream: TextIO | None = None) -> None:
    """Write the logs of this package to a stream as JSON; to standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
