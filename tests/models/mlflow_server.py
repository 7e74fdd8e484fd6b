"""A real `mlflow server`, over a database and a folder of artifacts that lie in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serving.processes import free_port


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address of a server of ``folder/mlflow.db`` and ``folder/artifacts``."""
    uri = f"http://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"),
            *("--port", uri.rpartition(":")[2], "--artifacts-destination", folder / "artifacts"),
            *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        ],
        env=os.environ
        | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_until_healthy(process, uri)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _wait_until_healthy(process: subprocess.Popen[bytes], uri: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=5):
                return
        except OSError:
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
    raise AssertionError("the server does not answer")
