"""Server in a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, Self, TypeVar

import uvloop

from presage.models.release.release import Release
from presage.serving.authentication.listen import target
from presage.serving.predictor.release_follower import Source
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server.server import Server
from presage.serving.server_options import Options

T = TypeVar("T")


class RunningServer:
    """Server in a thread of this process; as a context manager it stops at the end.

    Attributes
    ----------
    host : str
    port : int
        Actual port, also if the options ask for any free port.
    target : str
        gRPC target for clients.
    address : str
        Target, and the URL of HTTP/JSON if it is served.
    http_port : int
        Port of HTTP/JSON; 0 if it is not served.
    """

    def __init__(self, server: Server) -> None:
        self.host = server.host
        self.port = server.port
        self.target = target(server.host, server.port)
        self.address = server.address
        self.http_port = server.http_port or 0
        self.metrics = server.metrics
        self._server = server

    def stop(self, grace_s: float | None = None) -> None:
        """Stop the server as :meth:`Server.stop` does, by default with the options' ``grace_s``."""
        grace_s = self._server.options.grace_s if grace_s is None else grace_s
        _run_in_loop(self._server.stop(grace_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def start_server(source: Release | Source, options: Options | None = None) -> RunningServer:
    """Start a server in a thread of this process; return once it answers.

    Raises
    ------
    ReleaseError
        The release cannot predict.
    RegistryError
        The champion cannot be fetched.
    ServiceError
        The server cannot listen on the host or port, or the address is not a loopback address and
        the options do not allow that.
    """

    async def begin() -> Server:
        server = Server(options or Options(port=0), Metrics())
        await server.start(source)
        return server

    return RunningServer(_run_in_loop(begin()))


@cache
def server_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all servers of this process; gRPC's asyncio supports only one."""
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="presage-server", daemon=True).start()
    return loop


def _run_in_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, server_loop()).result()
