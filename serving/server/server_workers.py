"""Several server processes on the same ports; the kernel distributes connections among them.

A process that dies is restarted; a process that cannot start stops all of them. The parent reserves
the ports, serves the summed metrics and forwards SIGTERM.
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
from contextlib import ExitStack

from presage.errors import ServiceError
from presage.serving.authentication import local_token
from presage.serving.authentication.listen import check_authentication, resolve_address, target
from presage.serving.authentication.local_token import LocalToken
from presage.serving.server.log import log, log_as_json
from presage.serving.server.prometheus_metrics import MULTIPROCESS_DIR_VARIABLE, serve_metrics
from presage.serving.server_options import Options

_RESTART_S = 1.0  # minimum interval between two starts of a worker
_POLL_S = 0.1


def run_workers(
    workers: int, arguments: Sequence[str], options: Options, metrics_port: int | None
) -> None:
    """Run server processes with the arguments of this command until SIGTERM or SIGINT.

    Raises
    ------
    ServiceError
        A worker cannot start; its error is on standard error.
    """
    log_as_json()
    address = resolve_address(options)
    check_authentication(address, options)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with (
        ExitStack() as reserved,
        tempfile.TemporaryDirectory(prefix="presage-metrics-") as folder,
    ):
        ports = [
            word
            for option, port in (("--port", options.port), ("--http-port", options.http_port))
            if port is not None
            for word in (option, _reserve_port(reserved, address, port, option))
        ]
        os.environ[MULTIPROCESS_DIR_VARIABLE] = folder
        os.environ[local_token.ENVIRONMENT_VARIABLE] = LocalToken.new()
        stop_metrics = (
            serve_metrics(None, options.metrics_host, metrics_port) if metrics_port else None
        )
        running = [_Worker([*arguments, "--workers", "1", "--worker", *ports])
                   for _ in range(workers)]  # fmt: skip
        try:
            ready_line = _wait_until_ready(running, stopping)
            if ready_line:
                sys.stdout.write(f"{ready_line} ({workers} workers)\n")
                sys.stdout.flush()
            while not stopping.wait(_POLL_S):
                for worker in running:
                    worker.restart_if_dead()
        finally:
            for worker in running:
                worker.stop()
            end_s = time.monotonic() + options.drain_s + options.grace_s + 5
            for worker in running:
                worker.wait(end_s)
            if stop_metrics is not None:
                stop_metrics()


class _Worker:
    """Server process that is restarted when it dies.

    Attributes
    ----------
    ready_line : str
        Line that the process prints once it answers; "" before.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self.ready_line = ""
        self._start()

    def restart_if_dead(self) -> None:
        """Start the process again if it has died."""
        code = self._process.poll()
        if code is not None and time.monotonic() - self._started_s > _RESTART_S:
            log(logging.ERROR, "worker died, starting another", exit_code=code)
            _discard_gauges(self._process.pid)
            self._start()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Send SIGTERM, after which the process drains."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, end_s: float) -> None:
        """Wait for the process to end; kill it at ``end_s`` by ``time.monotonic()``."""
        try:
            self._process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self.ready_line = ""
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "presage.serving", *self._arguments],
            # The pipe stays open while this process lives; a worker drains at the end of its input.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read_line, args=(self._process,), daemon=True).start()

    def _read_line(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.ready_line = process.stdout.readline().strip()


def _wait_until_ready(workers: Sequence[_Worker], stopping: threading.Event) -> str:
    """Return the first worker's ready line once all workers answer; "" if stopped before."""
    while not stopping.wait(_POLL_S):
        for worker in workers:
            if worker.exit_code:
                raise ServiceError("a worker process cannot start; see its error above")
        if all(worker.ready_line for worker in workers):
            return workers[0].ready_line
    return ""


def _reserve_port(reserved: ExitStack, address: str, port: int, option: str) -> str:
    """Bind a socket to a port until ``reserved`` ends, and return the port.

    The socket does not listen. It reserves the port while no worker listens on it.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = reserved.enter_context(socket.socket(family, socket.SOCK_STREAM))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((address, port))
    except OSError as error:
        raise ServiceError(
            f"cannot listen on {target(address, port)} ({error.strerror}); pass another {option}"
        ) from error
    return str(bound.getsockname()[1])


def _discard_gauges(pid: int) -> None:
    """Discard the live gauges of a dead worker; its counters stay."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
