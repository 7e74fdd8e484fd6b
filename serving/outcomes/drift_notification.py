"""Notification of drift, for a webhook: once, when slices of a release begin to drift."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presage.models.drift.drift_test import Row
from presage.system.files.atomic_file import write_atomically
from presage.system.notifications.cloud_event import DRIFT_DETECTED, CloudEvent, local_source
from presage.system.notifications.event_sender import send_from_command
from presage.system.notifications.webhook import Webhook
from presage.system.text.printable import error_line


def notify_of_drift(webhook: Webhook, release: str, rows: Sequence[Row], state: Path) -> None:
    """Send one event if slices drift that did not drift at the last check.

    Parameters
    ----------
    webhook : Webhook
    release : str
        Id of the release that was checked.
    rows : sequence of Row
        Result of the check.
    state : Path
        File with the drifting slices of each release at the last check. It is not changed if the
        event was not delivered, so that the next check sends it again.
    """
    verdicts = _read(state)
    before = verdicts.get(release, [])
    now = sorted([row.quantity, row.slice_name] for row in rows if row.drift)
    new = [row for row in rows if row.drift and [row.quantity, row.slice_name] not in before]
    if now == before or (new and not send_from_command(webhook, _event(release, new))):
        return
    verdicts[release] = now
    text = json.dumps(verdicts, indent=2, sort_keys=True) + "\n"
    try:
        write_atomically(state, lambda path: path.write_text(text))
    except OSError as error:
        text = f"{state}: {error.strerror}; the event may be sent again"
        sys.stderr.write(f"warning: {error_line(text)}\n")


def _event(release: str, rows: Sequence[Row]) -> CloudEvent:
    slices = [
        {
            "quantity": row.quantity,
            "slice": row.slice_name,
            "drift": row.drift,
            "ratio": row.ratio,
            "outcomes": row.runs,
        }
        for row in rows
    ]
    data = {"release": release, "slices": slices}
    return CloudEvent(DRIFT_DETECTED, local_source("drift"), release, data)


def _read(state: Path) -> dict[str, list[Any]]:
    """Return the verdicts of the last checks; none if the file is missing or damaged."""
    try:
        found = json.loads(state.read_text())
    except (OSError, ValueError):
        return {}
    is_valid = isinstance(found, dict) and all(isinstance(one, list) for one in found.values())
    return found if is_valid else {}
