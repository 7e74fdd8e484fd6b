"""How a server is to run. It imports nothing of it: the command's help needs no ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051
GRACE_S = 10.0
POLL_S = 5.0
# A release that foretells a job ten times as long as the one before it did is more likely broken
# than right; the gate, which scores releases on what was measured, has let much less pass.
MAX_CHANGE = 10.0
FALSE_ALARM_OUTCOMES = 10_000
DRIFT_S = 10.0
MAX_QUEUED_CALLS = 256  # that wait; answered in a fraction of a second
MAX_QUEUED_ROWS = 32_768


@dataclass(frozen=True, slots=True)
class Tls:
    """Files, in PEM: the server's certificate and key, and who may vouch for clients'.

    With ``client_ca`` a client without a certificate that it signed is not let in (mTLS).
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How a server is to run; what is left out is as for one developer's machine.

    Attributes
    ----------
    port : int
        0 for any that is free.
    allow_remote : bool
        Whether to listen beyond loopback without TLS, and to show metrics there.
    tokens : Path, optional
        File of callers that are let in (docs/serving.md). Without it and without client
        certificates callers on this machine only read, but for the user that started the server.
    rows_per_s : float, optional
        Of one client.
    outcomes : Path, optional
        File of the outcome log; reports are refused without it.
    false_alarm_outcomes : int
        Outcomes between two false alarms of drift, on average, at least.
    drift_s : float
        Between two looks at what was reported.
    drain_s : float
        How long to go on answering, with health NOT_SERVING, before no call is taken any more.
    grace_s : float
        How long calls in flight then have to end.
    shared_port : bool
        Whether other processes listen on the port too (``--workers``).
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allow_remote: bool = False
    tls: Tls | None = None
    tokens: Path | None = None
    rows_per_s: float | None = None
    queue_calls: int = MAX_QUEUED_CALLS
    queue_rows: int = MAX_QUEUED_ROWS
    outcomes: Path | None = None
    access_log: bool = False
    false_alarm_outcomes: int = FALSE_ALARM_OUTCOMES
    drift_s: float = DRIFT_S
    poll_s: float = POLL_S
    max_change: float = MAX_CHANGE
    drain_s: float = 0.0
    grace_s: float = GRACE_S
    shared_port: bool = False

    @property
    def asks_for_certificates(self) -> bool:
        """Whether clients need a certificate."""
        return self.tls is not None and self.tls.client_ca is not None

    @property
    def authenticates(self) -> bool:
        """Whether callers need a token or a certificate."""
        return self.tokens is not None or self.asks_for_certificates

    @property
    def metrics_host(self) -> str:
        """Where metrics are shown: plain HTTP, which goes beyond loopback only with leave."""
        return self.host if self.allow_remote else DEFAULT_HOST
