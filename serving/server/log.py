"""Structured logs: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

LOGGER = "presage.serving"
FIELDS = "fields"  # of a record: what goes into its line beside the event


class JsonLines(logging.Formatter):
    """A record as one line of JSON: when, how grave, what happened, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
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
    """Log an event with its fields; never a token, a request's content or a file's."""
    logging.getLogger(LOGGER).log(level, event, extra={FIELDS: fields}, exc_info=traceback)


def log_as_json(stream: TextIO | None = None) -> None:
    """Send this package's logs to a stream as JSON; standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
