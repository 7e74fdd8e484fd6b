"""Journalled health of a device: why it is withdrawn, and its recent signals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from presage.schedulers.health.health_signal import Severity
from presage.schedulers.live.controller.devices.node_availability import drained_text

REPEAT_S = 3600.0  # within which the same notice or degraded signal of a device counts once
MAX_RECENT = 16  # signals of a device that are kept to find repeats


@dataclass(slots=True)
class DeviceHealth:
    """Health of a device. It is withdrawn, and gets no jobs, if it has failed or is drained.

    Attributes
    ----------
    failures : dict of str to str
        Reasons of the sources that report it as failed, by the name of the source.
    drained : bool
        Whether an operator has withdrawn it.
    drained_by, drain_reason : str
        Who has withdrawn it, and why; "" if unknown.
    recent : list of [time_s, source, severity, reason]
        Last notices and degraded signals.
    """

    failures: dict[str, str] = field(default_factory=dict)
    drained: bool = False
    recent: list[list[Any]] = field(default_factory=list)
    drained_by: str = ""
    drain_reason: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether a source reports it as failed."""
        return bool(self.failures)

    @property
    def withdrawal_reason(self) -> str:
        """Why it gets no jobs; "" if it does."""
        if self.failures:
            return f"it failed: {'; '.join(self.failures.values())}"
        return drained_text(self.drained_by, self.drain_reason) if self.drained else ""

    def is_repeat(self, source: str, severity: str, reason: str, now_s: float) -> bool:
        """Return whether a signal says nothing new."""
        if severity == Severity.FAILED:
            return source in self.failures
        if severity == Severity.HEALTHY:
            return source not in self.failures
        return any(
            row == [source, severity, reason] and now_s - at_s < REPEAT_S
            for at_s, *row in self.recent
        )

    def note(self, source: str, severity: str, reason: str, now_s: float) -> None:
        """Take over a signal that is not a repeat."""
        if severity == Severity.FAILED:
            self.failures.setdefault(source, reason)
        elif severity == Severity.HEALTHY:
            self.failures.pop(source, None)
        else:
            self.recent.append([now_s, source, severity, reason])
            del self.recent[:-MAX_RECENT]

    def drain(self, by: str = "", reason: str = "") -> None:
        """Withdraw it for maintenance."""
        self.drained, self.drained_by, self.drain_reason = True, by, reason

    def restore(self) -> None:
        """Return it to service: an operator overrules all signals so far."""
        self.failures.clear()
        self.drained, self.drained_by, self.drain_reason = False, "", ""
