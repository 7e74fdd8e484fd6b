"""Reader of an API server: GET requests that another thread can cancel."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress

from kubernetes.client import ApiClient
from urllib3 import HTTPConnectionPool, Retry
from urllib3.connection import HTTPConnection
from urllib3.response import BaseHTTPResponse

CONNECT_TIMEOUT_S = 3.0


class ApiReader:
    """Reader with the address, certificates and tokens of a client, and its own connections.

    Parameters
    ----------
    api : kubernetes.client.ApiClient
        Its configuration is shared, so that a renewed token is valid for both.
    """

    def __init__(self, api: ApiClient) -> None:
        self._client = ApiClient(api.configuration, cookie=api.cookie)
        self._client.default_headers = api.default_headers
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        self._is_stopped = False
        pools = self._client.rest_client.pool_manager
        # By default urllib3 retries and sleeps for Retry-After: the sleep cannot be interrupted,
        # and hides for how long the server has been unreachable.
        pools.connection_pool_kw["retries"] = Retry.from_int(False)
        pools.pool_classes_by_scheme = {
            scheme: self._tracked_pool(pool)
            for scheme, pool in pools.pool_classes_by_scheme.items()
        }

    @property
    def host(self) -> str:
        """Address of the server."""
        return str(self._client.configuration.host)

    def get(
        self, path: str, query: Mapping[str, str], *, read_timeout_s: float
    ) -> BaseHTTPResponse:
        """Return a response with an unread body; each read may take ``read_timeout_s``.

        Raises
        ------
        kubernetes.client.ApiException
            The server returned an error; with status 0, its certificate is not trusted.
        urllib3.exceptions.HTTPError
            The connection failed, a read timed out, or ``stop`` was called.
        """
        headers = {**self._client.default_headers, "Accept": "application/json"}
        if self._client.cookie:
            headers["Cookie"] = self._client.cookie
        parameters = list(query.items())
        self._client.update_params_for_auth(headers, parameters, ["BearerToken"])
        # Not ApiClient.call_api: version 36.0.3 raises its own error where TLS fails.
        response: BaseHTTPResponse = self._client.rest_client.GET(
            self.host + path,
            headers=headers,
            query_params=parameters,
            _preload_content=False,
            _request_timeout=(CONNECT_TIMEOUT_S, read_timeout_s),
        )
        return response

    def stop(self) -> None:
        """Shut down every connection, also during a read, and prevent new ones.

        A connection that is being established fails on its own after ``CONNECT_TIMEOUT_S``.
        """
        with self._lock:
            self._is_stopped = True
            for connection in self._connections:
                _shut_down(connection)
        self._client.rest_client.pool_manager.clear()

    def _tracked_pool(self, pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
        """Return a subclass of a pool that registers its connections with this reader."""
        connection = type(
            "Connection", (_Connection, pool.ConnectionCls), {"register": self._register}
        )
        return type("Pool", (pool,), {"ConnectionCls": connection})

    def _register(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._is_stopped:
                _shut_down(connection)


class _Connection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.register(self)

    @staticmethod
    def register(connection: HTTPConnection) -> None:
        raise NotImplementedError


def _shut_down(connection: HTTPConnection) -> None:
    """Shut down a socket: this wakes a thread that reads from it, and closing it would not."""
    if connection.sock is not None:
        with suppress(OSError):  # the server has already closed it
            connection.sock.shutdown(socket.SHUT_RDWR)
