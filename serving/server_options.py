"""Options of a server. This module imports no other part of it: help texts need no ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from presage.system.files.log_address import LogAddress

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051
GRACE_S = 10.0
POLL_S = 5.0
# A release whose predictions are ten times those of the previous one is more likely broken than
# correct; the promotion gate, which scores releases on measurements, permits much less.
MAX_CHANGE = 10.0
FALSE_ALARM_OUTCOMES = 10_000
DRIFT_S = 10.0
MAX_QUEUED_CALLS = 256  # that wait; answered in a fraction of a second
MAX_QUEUED_ROWS = 32_768


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: certificate and key of the server, and the certificate authority of clients.

    With ``client_ca`` clients need a certificate signed by this authority (mTLS).
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a server; the defaults suit a developer's machine.

    Attributes
    ----------
    port : int
        0 selects a free port.
    http_port : int, optional
        Port for HTTP/JSON; 0 selects a free port. Without it there is none.
    allow_remote : bool
        Whether to listen beyond loopback without TLS, and to serve metrics there.
    tokens : Path, optional
        File of authorized callers (docs/forecasts/serving.md). Without it and without client
        certificates callers on this machine have read access only, except the user that started
        the server.
    rows_per_s : float, optional
        Maximum rate of rows of each client.
    outcomes : Path, optional
        File of the outcome log; without it reports are rejected.
    false_alarm_outcomes : int
        Minimum mean number of outcomes between false alarms of drift.
    drift_s : float
        Seconds between checks of the log, for drift and for offsets.
    offsets : bool
        Whether forecasts have offsets that are learned from the log.
    drain_s : float
        Seconds to continue serving, with health NOT_SERVING, before new calls are rejected.
    grace_s : float
        Seconds to then wait for calls in flight.
    shared_port : bool
        Whether other processes listen on the port too (``--workers``).
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    http_port: int | None = None
    allow_remote: bool = False
    tls: Tls | None = None
    tokens: Path | None = None
    rows_per_s: float | None = None
    queue_calls: int = MAX_QUEUED_CALLS
    queue_rows: int = MAX_QUEUED_ROWS
    outcomes: LogAddress | None = None
    access_log: bool = False
    false_alarm_outcomes: int = FALSE_ALARM_OUTCOMES
    drift_s: float = DRIFT_S
    offsets: bool = True
    poll_s: float = POLL_S
    max_change: float = MAX_CHANGE
    drain_s: float = 0.0
    grace_s: float = GRACE_S
    shared_port: bool = False

    @property
    def requires_certificates(self) -> bool:
        """Whether clients need a certificate."""
        return self.tls is not None and self.tls.client_ca is not None

    @property
    def authenticates(self) -> bool:
        """Whether callers need a token or a certificate."""
        return self.tokens is not None or self.requires_certificates

    @property
    def metrics_host(self) -> str:
        """Host of the metrics, which are plain HTTP: beyond loopback only with ``allow_remote``."""
        return self.host if self.allow_remote else DEFAULT_HOST
