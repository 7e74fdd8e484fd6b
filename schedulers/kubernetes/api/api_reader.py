"""GET requests to an API server that another thread can end."""

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

CONNECT_S = 3.0


class ApiReader:
    """Reads with the address, certificates and tokens of a client, over connections of its own.

    Parameters
    ----------
    api : kubernetes.client.ApiClient
        Its configuration is shared: what renews the token of one renews that of the other.
    """

    def __init__(self, api: ApiClient) -> None:
        self._client = ApiClient(api.configuration, cookie=api.cookie)
        self._client.default_headers = api.default_headers
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        self._stopped = False
        pools = self._client.rest_client.pool_manager
        # urllib3 would repeat on its own, and sleep for as long as Retry-After says: nobody could
        # wake it, and nobody would know how long the server has been out of reach.
        pools.connection_pool_kw["retries"] = Retry.from_int(False)
        pools.pool_classes_by_scheme = {
            scheme: self._stoppable(pool) for scheme, pool in pools.pool_classes_by_scheme.items()
        }

    @property
    def host(self) -> str:
        """Address of the server."""
        return str(self._client.configuration.host)

    def get(self, path: str, query: Mapping[str, str], *, read_s: float) -> BaseHTTPResponse:
        """An answer of which only the head was read; each read may take ``read_s``.

        Raises
        ------
        kubernetes.client.ApiException
            The server refused; with status 0, its certificate is not trusted.
        urllib3.exceptions.HTTPError
            There is no connection, it broke, nothing came in time, or ``stop`` was called.
        """
        headers = {**self._client.default_headers, "Accept": "application/json"}
        if self._client.cookie:
            headers["Cookie"] = self._client.cookie
        parameters = list(query.items())
        self._client.update_params_for_auth(headers, parameters, ["BearerToken"])
        # Not ApiClient.call_api: in 36.0.3 it fails on its own error where TLS fails.
        answer: BaseHTTPResponse = self._client.rest_client.GET(
            self.host + path,
            headers=headers,
            query_params=parameters,
            _preload_content=False,
            _request_timeout=(CONNECT_S, read_s),
        )
        return answer

    def stop(self) -> None:
        """Cut every connection, whatever is waited for on it; there will be no new ones.

        What is connecting at this moment fails on its own, at the latest after ``CONNECT_S``.
        """
        with self._lock:
            self._stopped = True
            for connection in self._open:
                _cut(connection)
        self._client.rest_client.pool_manager.clear()

    def _stoppable(self, pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
        """The same kind of pool, of connections that this reader knows of."""
        connection = type("Connection", (_Connection, pool.ConnectionCls), {"opened": self._opened})
        return type("Pool", (pool,), {"ConnectionCls": connection})

    def _opened(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._open.add(connection)
            if self._stopped:
                _cut(connection)


class _Connection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.opened(self)

    @staticmethod
    def opened(connection: HTTPConnection) -> None:
        raise NotImplementedError


def _cut(connection: HTTPConnection) -> None:
    """A thread that reads from it reads its end: closing the socket would not wake it."""
    if connection.sock is not None:
        with suppress(OSError):  # the server was quicker
            connection.sock.shutdown(socket.SHUT_RDWR)
