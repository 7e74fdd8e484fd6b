"""HTTP server of the extender: dispatches kube-scheduler's requests to the extender's verbs.

Every failure is an HTTP status other than 200, of which kube-scheduler reads no details: it then
skips an ``ignorable`` extender for that pod.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from presage.errors import ServiceError
from presage.schedulers.kubernetes.extender import extender_json
from presage.schedulers.kubernetes.extender.extender_access import Access, Authenticator
from presage.schedulers.kubernetes.extender.extender_http import (
    BodyLimits,
    HttpServer,
    Route,
)
from presage.schedulers.kubernetes.extender.extender_types import (
    BindArgs,
    FilterArgs,
    FilterResult,
    HostPriority,
    PreemptArgs,
    Victims,
)
from presage.schedulers.kubernetes.snapshot import Json
from presage.serving.authentication.callers import Tokens
from presage.serving.authentication.listen import port_in_use_message, resolve_address, target
from presage.serving.authentication.tls_context import tls_context
from presage.serving.http.connection import HttpLimits
from presage.serving.server_options import DEFAULT_HOST, GRACE_S, Options, Tls

DEFAULT_PORT = 8888
LIMITS = HttpLimits(connections=128, per_peer=96)
STATUS_FIELDS = {  # content of /status
    "forecasts": "ok, not requested yet, or why there are none",
    "requests": "number of requests, by verb",
    "lag_s": "seconds since the last response of the API server, by kind; null if there was none",
    "failed_logins": "number of requests with a wrong token",
}


class ExtenderVerbs(Protocol):
    """Verbs of the extender. They must be thread-safe."""

    def filter(self, args: FilterArgs) -> FilterResult:
        """Return the candidates that pass."""

    def prioritize(self, args: FilterArgs) -> Sequence[HostPriority]:
        """Return the score of each candidate."""

    def bind(self, args: BindArgs) -> str:
        """Bind a pod; return the error, or ""."""

    def preempt(self, args: PreemptArgs) -> Mapping[str, Victims]:
        """Return acceptable victims by node; nodes that are left out are not to be used."""

    def status(self) -> Json:
        """Return the content of /status: ``STATUS_FIELDS`` without ``failed_logins``."""


def routes(
    verbs: ExtenderVerbs, prefix: str = "", failed_logins: Callable[[], int] = int
) -> dict[str, Route]:
    """Return the routes by path."""
    parse_filter_args = extender_json.parse_filter_args
    by_name = {
        "filter": Route(
            "POST",
            parse_filter_args,
            lambda args: extender_json.filter_result(verbs.filter(args), args),
        ),
        "prioritize": Route(
            "POST",
            parse_filter_args,
            lambda args: extender_json.host_priorities(verbs.prioritize(args)),
        ),
        "bind": Route(
            "POST",
            extender_json.parse_bind_args,
            lambda args: extender_json.binding_result(verbs.bind(args)),
            Access.BIND,
        ),
        "preempt": Route(
            "POST",
            extender_json.parse_preempt_args,
            lambda args: extender_json.preemption_result(verbs.preempt(args)),
            Access.BIND,
        ),
        "healthz": Route("GET", bytes, lambda _: "ok", Access.OPEN),
        "status": Route(
            "GET", bytes, lambda _: {**verbs.status(), "failed_logins": failed_logins()}
        ),
    }
    return {f"{prefix}/{name}": route for name, route in by_name.items()}


class ExtenderServer:
    """HTTP server, active inside ``with``.

    On exit it closes idle connections, and completes requests in flight.

    Parameters
    ----------
    port : int
        0 selects a free port.
    prefix : str
        Path of ``urlPrefix``, for example "/presage".
    allow_remote : bool
        Whether to listen on addresses other than loopback without TLS.
    tls : Tls, optional
        With ``client_ca``, all clients need a certificate signed by it. A kubelet has none and
        cannot request /healthz: use a tcpSocket probe.
    tokens : callable, optional
        Returns the accepted tokens (``TokenFile``). Callers send one as ``Authorization: Bearer``
        or as the password of Basic credentials; bind and preempt need the role ``bind``.
    limits, body_limits
        Limits on connections and request bodies.
    grace_s : float
        Maximum time on exit for requests in flight.

    Raises
    ------
    ServiceError
        The address cannot be listened on; it is not loopback and lacks TLS (without
        ``allow_remote``) or authentication; or a certificate or key cannot be read.
    """

    def __init__(
        self,
        verbs: ExtenderVerbs,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        prefix: str = "",
        allow_remote: bool = False,
        tls: Tls | None = None,
        tokens: Callable[[], Tokens] | None = None,
        limits: HttpLimits = LIMITS,
        body_limits: BodyLimits | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        address = resolve_address(Options(host=host, port=port, allow_remote=allow_remote, tls=tls))
        authenticator = Authenticator(tokens, tls is not None and tls.client_ca is not None)
        if not (authenticator.is_enabled or ipaddress.ip_address(address).is_loopback):
            raise ServiceError(
                f"{host} is not a loopback address, and authentication is disabled; give "
                "--client-ca (with --tls-cert and --tls-key) or --tokens, or listen on 127.0.0.1"
            )
        prefix = f"/{prefix.strip('/')}".rstrip("/")
        context = tls_context(tls) if tls else None
        try:
            self._http = HttpServer(
                (address, port),
                routes(verbs, prefix, lambda: self._http.failures.total),
                authenticator,
                tls=context,
                limits=limits,
                body_limits=body_limits or BodyLimits(),
            )
        except OSError as error:  # the port was taken after the check
            raise ServiceError(port_in_use_message(host, port)) from error
        self._grace_s = grace_s
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{target(host, self._http.server_address[1])}{prefix}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="extender"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.stop(self._grace_s)
        self._thread.join()
