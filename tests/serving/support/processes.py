"""Servers in processes of their own, as operators run them."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from presage.serving.client.credentials import Credentials


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    target: str
    release_id: str
    stderr: list[str] = field(default_factory=list)
    http_port: int = 0  # of HTTP/JSON; 0 if it is not served

    @property
    def host(self) -> str:
        return self.target.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.target.rpartition(":")[2])

    def events(self, name: str) -> list[dict[str, object]]:
        """Return the log lines of an event so far."""
        rows = [json.loads(line) for line in self.stderr if line.startswith("{")]
        return [row for row in rows if row["event"] == name]


@contextmanager
def serving(*options: object, cwd: Path | None = None, **env: str) -> Iterator[ServerProcess]:
    """Run `presage serve` with these options on a free port; kill it at the end if it runs.

    It leads a process group of its own, to which signals can be sent.
    """
    command = [sys.executable, "-m", "presage", "serve", *map(str, options), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, **env}, start_new_session=True,
    ) as process:  # fmt: skip
        stderr: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        reading = threading.Thread(target=stderr.extend, args=(process.stderr,), daemon=True)
        reading.start()
        try:
            line = process.stdout.readline()
            said = re.match(r"serving release (\w+) on (\S+)", line)
            if said is None:
                process.wait(10)
                reading.join(5)
                raise AssertionError(f"said {line!r} and {''.join(stderr)}")
            http = re.search(r" and https?://\S+:(\d+)", line)
            http_port = int(http[1]) if http else 0
            yield ServerProcess(process, said[2], said[1], stderr, http_port)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            reading.join(5)


def free_port() -> int:
    """Return a port that no outgoing connection takes while a server restarts.

    The kernel gives connections ports from 32768 on, so a server that was started at such a port
    may not get it again.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def own_metadata(server: Any) -> Any:
    """Return the call metadata of the user that started a server."""
    return Credentials().metadata_for(server.target)()
