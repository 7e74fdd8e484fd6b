"""A server in a thread of the test's process."""

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
    """A server in a thread of this process. As a context manager it is stopped at the end.

    Attributes
    ----------
    host : str
    port : int
        The real one, where any free port was asked for.
    target : str
        What a client is given.
    """

    def __init__(self, server: Server) -> None:
        self.host = server.host
        self.port = server.port
        self.target = target(server.host, server.port)
        self.metrics = server.metrics
        self._server = server

    def stop(self, grace_s: float | None = None) -> None:
        """As :meth:`Server.stop`, by default with the grace of its options."""
        grace_s = self._server.options.grace_s if grace_s is None else grace_s
        _in_loop(self._server.stop(grace_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def start_server(source: Release | Source, options: Options | None = None) -> RunningServer:
    """Serve beside this program; returns once the server answers.

    Raises
    ------
    ReleaseError
        The release cannot predict.
    RegistryError
        The champion cannot be had.
    ServiceError
        The host or port cannot be listened on, or is beyond loopback without leave.
    """

    async def begin() -> Server:
        server = Server(options or Options(port=0), Metrics())
        await server.start(source)
        return server

    return RunningServer(_in_loop(begin()))


@cache
def server_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of all servers of this process: gRPC's asyncio layer supports one only."""
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="presage-server", daemon=True).start()
    return loop


def _in_loop(doing: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(doing, server_loop()).result()
