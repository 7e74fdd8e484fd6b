"""Events in the JSON format of CloudEvents 1.0 (structured mode)."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"

RELEASE_PROMOTED = "presage.release.promoted"
RELEASE_REFUSED = "presage.release.refused"
RELEASE_ROLLED_BACK = "presage.release.rolled_back"
DRIFT_DETECTED = "presage.drift.detected"
NODE_FAILED = "presage.node.failed"
NODE_BACK = "presage.node.back"


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """Event with a random id, so that a receiver recognizes a repeated delivery.

    Attributes
    ----------
    type : str
        One of the constants of this module.
    source : str
        Where it happened, as a URI reference: ``/presage/HOST/registry``.
    subject : str
        What it happened to: a release id, the name of a node.
    data : mapping
        JSON object with details.
    time : str
        RFC 3339, in UTC.

    References
    ----------
    CloudEvents 1.0.2, JSON event format, https://cloudevents.io.
    """

    type: str
    source: str
    subject: str
    data: Mapping[str, Any]
    event_id: str = field(default_factory=lambda: secrets.token_hex(16))
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def body(self) -> bytes:
        """Return the body of the request."""
        document = {
            "specversion": "1.0",
            "id": self.event_id,
            "source": self.source,
            "type": self.type,
            "subject": self.subject,
            "time": self.time,
            "datacontenttype": "application/json",
            "data": dict(self.data),
        }
        return json.dumps(document, separators=(",", ":")).encode()


def local_source(component: str) -> str:
    """Return the source of events of a component on this machine."""
    return f"/presage/{socket.gethostname()}/{component}"
