"""Registry shared by a team, in real processes: MLflow's server on PostgreSQL and S3."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.models.mlflow_server import start_mlflow, wait_until_answers
from tests.serving.support.processes import free_port
from tests.support.postgres import postgres, postgres_programs

BUCKET = "presage"
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_MODULES = ("psycopg", "boto3", "moto", "flask")


def what_is_missing() -> str:
    """Return what must be installed to run a shared registry here; "" for nothing."""
    missing = [f"module {name}" for name in _MODULES if find_spec(name) is None]
    return ", ".join(missing if postgres_programs() else [*missing, "PostgreSQL"])


class SharedRegistry:
    """Shared registry that can be stopped, and started again on the same port and data.

    Attributes
    ----------
    uri : str
            Tracking URI for clients.
    """

    def __init__(self, database_url: str, s3_url: str, log: Path) -> None:
        self._database_url, self._s3_url, self._log = database_url, s3_url, log
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server; return once it responds."""
        self._process = start_mlflow(
            self._port, self._database_url, f"s3://{BUCKET}", self._log,
            MLFLOW_S3_ENDPOINT_URL=self._s3_url, **_CREDENTIALS,
        )  # fmt: skip

    def kill(self) -> None:
        """Kill the server as a power cut does."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def files(self) -> dict[str, bytes]:
        """Return the objects in S3 by key."""
        s3 = self._s3()
        listed = s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())
        keys = [row["Key"] for row in listed]
        return {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    def put_file(self, key: str, content: bytes) -> None:
        """Replace the content of an object."""
        self._s3().put_object(Bucket=BUCKET, Key=key, Body=content)

    def make_bucket(self) -> None:
        """Create an empty bucket."""
        self._s3().create_bucket(Bucket=BUCKET)

    def _s3(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self._s3_url,
            aws_access_key_id=_CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=_CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=_CREDENTIALS["AWS_DEFAULT_REGION"],
        )


@contextmanager
def shared_registry(folder: Path) -> Iterator[SharedRegistry]:
    """Run an empty shared registry."""
    with ExitStack() as stack:
        # Not in a folder of pytest's, which it keeps to their owner.
        place = stack.enter_context(TemporaryDirectory(prefix="presage-postgres-"))
        database_url = stack.enter_context(postgres(Path(place), "mlflow"))
        s3_url = stack.enter_context(_s3_server(folder / "s3.log"))
        registry = SharedRegistry(database_url, s3_url, folder / "mlflow.log")
        registry.make_bucket()
        stack.callback(registry.kill)
        registry.start()
        yield registry


@contextmanager
def _s3_server(log: Path) -> Iterator[str]:
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-p", url.rpartition(":")[2]]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | _CREDENTIALS)
    try:
        wait_until_answers(f"{url}/moto-api/data.json", process, log)
        yield url
    finally:
        process.kill()
        process.wait(30)
