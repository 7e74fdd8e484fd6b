"""TCP proxy that a test can cut: a network that is partitioned."""

from __future__ import annotations

import socket
import threading


class Proxy:
    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop all bytes from now on, without closing a connection."""
        self.is_cut = True

    def close(self) -> None:
        self.is_cut = True
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self.is_cut:
                continue
            far = socket.create_connection(self._target)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while content := source.recv(65536):
                if not self.is_cut:
                    sink.sendall(content)
        except OSError:
            pass
        if not self.is_cut:
            sink.close()
