"""A real `mlflow server` on a database and a folder, or on other stores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serving.support.processes import free_port
from tests.support.waiting import wait_until


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run a server on ``folder/mlflow.db`` and ``folder/artifacts``; yield its URI."""
    port = free_port()
    process = start_mlflow(
        port, f"sqlite:///{folder}/mlflow.db", str(folder / "artifacts"), folder / "mlflow.log"
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def start_mlflow(
    port: int, database_url: str, artifacts: str, log: Path, **env: str
) -> subprocess.Popen[bytes]:
    """Start a server in its own process group, and wait until it replies."""
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", database_url, "--artifacts-destination", artifacts),
    ]
    quick = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, env=os.environ | quick | env, stdout=file, stderr=file, start_new_session=True
        )
    wait_until_answers(f"http://127.0.0.1:{port}/health", process, log)
    return process


def wait_until_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Fail, with the end of the log, if the process exits or does not reply in a minute."""

    def answers() -> bool:
        assert process.poll() is None, f"it has ended: {log.read_text()[-2000:]}"
        with urllib.request.urlopen(url, timeout=5):
            return True

    wait_until(
        answers, what=lambda: f"it does not answer: {log.read_text()[-2000:]}", retried=OSError
    )
