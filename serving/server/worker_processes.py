"""Several server processes behind one port: the kernel deals connections out among them.

A process that dies is started again; one that cannot start ends them all. Their parent holds the
port, shows the sums of what they count, and passes SIGTERM on.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from presage.errors import ServiceError
from presage.serving.authentication import local_token
from presage.serving.authentication.listen import check_authentication, resolve_address, target
from presage.serving.authentication.local_token import LocalToken
from presage.serving.server.log import log, log_as_json
from presage.serving.server.prometheus_metrics import MULTIPROCESS, show_metrics
from presage.serving.server_options import Options

_AGAIN_S = 1.0  # between two starts of a worker
_LOOK_S = 0.1


def run_workers(
    workers: int, told: Sequence[str], options: Options, metrics_port: int | None
) -> None:
    """Run so many servers, told what this command was told, until SIGTERM or SIGINT.

    Raises
    ------
    ServiceError
        One of them cannot start; what it said is on standard error.
    """
    log_as_json()
    address = resolve_address(options)
    check_authentication(address, options)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with (
        _held(address, options.port) as held,
        tempfile.TemporaryDirectory(prefix="presage-metrics-") as folder,
    ):
        port = held.getsockname()[1]
        os.environ[MULTIPROCESS] = folder
        os.environ[local_token.ENVIRONMENT_VARIABLE] = LocalToken.new()
        stop_showing = (
            show_metrics(None, options.metrics_host, metrics_port) if metrics_port else None
        )
        running = [_Worker([*told, "--workers", "1", "--worker", "--port", str(port)])
                   for _ in range(workers)]  # fmt: skip
        try:
            said = _wait_ready(running, stopping)
            if said:
                sys.stdout.write(f"{said} ({workers} workers)\n")
                sys.stdout.flush()
            while not stopping.wait(_LOOK_S):
                for worker in running:
                    worker.keep_up()
        finally:
            for worker in running:
                worker.stop()
            end_s = time.monotonic() + options.drain_s + options.grace_s + 5
            for worker in running:
                worker.wait(end_s)
            if stop_showing is not None:
                stop_showing()


class _Worker:
    """A server process, and its like after it."""

    def __init__(self, told: Sequence[str]) -> None:
        self._told = told
        self.said = ""
        self._start()

    def keep_up(self) -> None:
        """Start it again if it died."""
        code = self._process.poll()
        if code is not None and time.monotonic() - self._started_s > _AGAIN_S:
            log(logging.ERROR, "worker died, starting another", exit_code=code)
            _forget(self._process.pid)
            self._start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Let it drain."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, end_s: float) -> None:
        """Until it has ended, by force at that time, by ``time.monotonic()``."""
        try:
            self._process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self.said = ""
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "presage.serving", *self._told],
            # Held open for as long as this process lives: a worker that reads its end drains.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.said = process.stdout.readline().strip()


def _wait_ready(workers: Sequence[_Worker], stopping: threading.Event) -> str:
    """What the first worker says once all of them answer; "" if they are stopped before."""
    while not stopping.wait(_LOOK_S):
        for worker in workers:
            if worker.exit_code:
                raise ServiceError("a worker cannot start; see what it said above")
        if all(worker.said for worker in workers):
            return workers[0].said
    return ""


def _held(address: str, port: int) -> socket.socket:
    """The port, bound and not listened on: it stays ours while no worker has it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((address, port))
    except OSError as error:
        held.close()
        raise ServiceError(
            f"cannot listen on {target(address, port)} ({error.strerror}); pass another --port"
        ) from error
    return held


def _forget(pid: int) -> None:
    """Drop what a dead worker showed as of this moment; its counts stay."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
