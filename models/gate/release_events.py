"""Notifications of promoted, refused and rolled back releases, for a webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.models.registry.uri import MODEL
from presage.system.notifications.cloud_event import (
    RELEASE_PROMOTED,
    RELEASE_REFUSED,
    RELEASE_ROLLED_BACK,
    CloudEvent,
    local_source,
)
from presage.system.notifications.event_sender import send_from_command

if TYPE_CHECKING:
    from presage.models.registry.promotion_journal import Move
    from presage.system.notifications.webhook import Webhook


def notify_of_move(webhook: Webhook | None, move: Move, model: str) -> None:
    """Send the event of a new champion that is in the journal of a model."""
    from presage.models.registry.promotion_journal import ROLLBACK

    data = {
        "model": model,
        "release": move.to_release,
        "version": move.to_version,
        "previous_release": move.from_release,
        "previous_version": move.from_version,
        "verdict": move.verdict,
        "reason": move.reason,
        "by": move.by,
    }
    kind = RELEASE_ROLLED_BACK if move.verdict == ROLLBACK else RELEASE_PROMOTED
    send_from_command(webhook, CloudEvent(kind, local_source("registry"), move.to_release, data))


def notify_of_refusal(
    webhook: Webhook | None, release: str, champion: str | None, reason: str, model: str = MODEL
) -> None:
    """Send the event of a release that the gate refused, after the decision is in the registry."""
    data = {"model": model, "release": release, "champion": champion or "", "reason": reason}
    send_from_command(webhook, CloudEvent(RELEASE_REFUSED, local_source("registry"), release, data))
