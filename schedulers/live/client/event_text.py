"""Names of events as text."""

from __future__ import annotations

import re

_NAMES = {"MemberEnded": "worker ended"}


def event_name(event_type: str) -> str:
    """Return the name of a type of event, such as "node joined" for NodeJoined."""
    return _NAMES.get(event_type) or re.sub("(?<=[a-z])(?=[A-Z])", " ", event_type).lower()
