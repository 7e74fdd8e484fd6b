"""The extender's server: what kube-scheduler posts goes to its verbs, and their answers go back.

It decides nothing. Whatever goes wrong is an HTTP status that is not 200, and kube-scheduler reads
no more of it than that: an extender that is ``ignorable`` then has no say in where a pod goes.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from presage.errors import ServiceError
from presage.schedulers.kubernetes.extender import extender_json
from presage.schedulers.kubernetes.extender.extender_access import Access, Credentials
from presage.schedulers.kubernetes.extender.extender_http import (
    BodyLimits,
    HttpServer,
    Route,
)
from presage.schedulers.kubernetes.extender.extender_tls import tls_context
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
from presage.serving.http.connection import HttpLimits
from presage.serving.server_options import DEFAULT_HOST, GRACE_S, Options, Tls

DEFAULT_PORT = 8888
LIMITS = HttpLimits(connections=128, per_peer=96)


class ExtenderVerbs(Protocol):
    """What decides. Several threads call it at once."""

    def filter(self, args: FilterArgs) -> FilterResult:
        """Which of the candidates are left."""

    def prioritize(self, args: FilterArgs) -> Sequence[HostPriority]:
        """How good each candidate is."""

    def bind(self, args: BindArgs) -> str:
        """Bind a pod; why that failed, else empty."""

    def preempt(self, args: PreemptArgs) -> Mapping[str, Victims]:
        """By node, the victims that may go; of a node that is left out, none."""

    def status(self) -> Json:
        """What is shown at /status."""


def routes(
    verbs: ExtenderVerbs, prefix: str = "", failed_logins: Callable[[], int] = int
) -> dict[str, Route]:
    """How each path below the prefix is answered."""
    read = extender_json.read_filter_args
    below = {
        "filter": Route(
            "POST", read, lambda args: extender_json.filter_result(verbs.filter(args), args)
        ),
        "prioritize": Route(
            "POST", read, lambda args: extender_json.host_priorities(verbs.prioritize(args))
        ),
        "bind": Route(
            "POST",
            extender_json.read_bind_args,
            lambda args: extender_json.binding_result(verbs.bind(args)),
            Access.BIND,
        ),
        "preempt": Route(
            "POST",
            extender_json.read_preempt_args,
            lambda args: extender_json.preemption_result(verbs.preempt(args)),
            Access.BIND,
        ),
        "healthz": Route("GET", bytes, lambda _: "ok", Access.OPEN),
        "status": Route(
            "GET", bytes, lambda _: {**verbs.status(), "failed_logins": failed_logins()}
        ),
    }
    return {f"{prefix}/{name}": route for name, route in below.items()}


class ExtenderServer:
    """Serves from ``with`` to its end.

    Then connections without a request are closed, and requests that were read are answered.

    Parameters
    ----------
    port : int
        0 for any that is free.
    prefix : str
        Of all paths, where ``urlPrefix`` has a path: "/presage".
    allow_remote : bool
        Whether to listen beyond loopback without TLS.
    tls : Tls, optional
        With a ``client_ca`` all clients need a certificate that it signed. A kubelet has none and
        cannot ask for /healthz: let it probe the port alone (tcpSocket).
    tokens : callable, optional
        Tokens that are accepted now (``TokenFile``). Callers send one as ``Authorization: Bearer``
        or as the password of Basic credentials; to bind and preempt it needs the role ``bind``.
    limits, bodies
        Bounds on connections, and on what they send.
    grace_s : float
        How long requests in flight have to end, at the end of ``with``.

    Raises
    ------
    ServiceError
        The host or port cannot be listened on; it is beyond loopback without encryption that was
        not waived, or without credentials; or a certificate or key cannot be read.
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
        bodies: BodyLimits | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        address = resolve_address(Options(host=host, port=port, allow_remote=allow_remote, tls=tls))
        credentials = Credentials(tokens, tls is not None and tls.client_ca is not None)
        if not (credentials.are_checked or ipaddress.ip_address(address).is_loopback):
            raise ServiceError(
                f"{host} is not a loopback address, and the extender would answer every caller; "
                "give --client-ca (with --tls-cert and --tls-key) or --tokens, or listen on "
                "127.0.0.1"
            )
        prefix = f"/{prefix.strip('/')}".rstrip("/")
        context = tls_context(tls) if tls else None
        try:
            self._http = HttpServer(
                (address, port),
                routes(verbs, prefix, lambda: self._http.failures.total),
                credentials,
                tls=context,
                limits=limits,
                bodies=bodies or BodyLimits(),
            )
        except OSError as error:  # taken since it was looked at
            raise ServiceError(port_in_use_message(host, port)) from error
        self._grace_s = grace_s
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{target(host, self._http.server_address[1])}{prefix}"
        self._serving = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="extender"
        )

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.stop(self._grace_s)
        self._serving.join()
