"""The servers that are compared: how each is started, and when it has begun to answer rightly."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpc

import presage
from benchmarks.serving.environments import Environment, environment
from benchmarks.serving.processes import Processes
from benchmarks.serving.questions import Question, Questions
from presage.models.release.release import Release

SCRIPTS = Path(__file__).resolve().with_name("peers")
# What this very script imports as presage is what is measured.
SOURCE = Path(presage.__file__).resolve().parents[1]
MOST_BYTES = 16 * 1024 * 1024
LENGTHS = [(f"grpc.max_{way}_message_length", MOST_BYTES) for way in ("receive", "send")]
MOST_START_S, LOOK_S = 90.0, 0.002

Command = Callable[[Path, Environment, Release, str, int], list[str]]


@dataclass(frozen=True)
class Kind:
    """Kind of server that can be started.

    Attributes
    ----------
    package : str
        Whose version tells its own, in the environment; "" for scripts of ours.
    http : bool
        Whether it is asked by HTTP and JSON, not by gRPC.
    answers : int
        How many in a row, each on a new connection, say that all its processes answer.
    """

    name: str
    title: str
    environment: str
    command: Command
    package: str = ""
    http: bool = False
    answers: int = 1


class Server:
    """Running server that has given a right response.

    Attributes
    ----------
    start_s : float
        From its start to the first right answer.
    """

    def __init__(self, kind: Kind, processes: Processes, port: int) -> None:
        self.kind, self.processes = kind, processes
        self.port = port
        self.start_s = 0.0

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def question(self, questions: Questions) -> Question:
        """Return the request of one row for this server."""
        return questions.invoke if self.kind.http else questions.infer

    def batch(self, questions: Questions) -> Question:
        """Return the request of many rows for this server."""
        return questions.invoke_rows if self.kind.http else questions.infer_rows

    def check(self, question: Question) -> int:
        """Send a request, check the response, and return its expected bytes."""
        answer = _ask(self, question)
        if self.kind.name == "echo":
            assert answer == question.body.read_bytes()
        else:
            question.check(answer)
        return len(answer)


def start(
    kind: Kind, folder: Path, release: Release, model: str, questions: Questions,
    cores: Collection[int],
) -> Server:  # fmt: skip
    """Start a server and wait for its first right answer."""
    place, port = folder / kind.name, free_port()
    place.mkdir(exist_ok=True)
    made = environment_of(kind.environment)
    command = kind.command(place, made, release, model, port)
    processes = Processes(
        command, cores=cores, env=env_of(made), cwd=place, output=place / "output.log"
    )
    server = Server(kind, processes, port)
    try:
        _wait(server, server.question(questions))
        server.start_s = time.perf_counter() - processes.started_s
        server.check(server.question(questions))
    except BaseException:
        processes.stop()
        raise
    return server


@cache
def environment_of(name: str) -> Environment:
    return environment(name)


def env_of(made: Environment) -> dict[str, str]:
    """Return a server's variables: its own environment first, one thread, no telemetry."""
    return {
        "PATH": f"{made.folder / 'bin'}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(SOURCE) if made.name == "presage" else "",
        "OMP_NUM_THREADS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(server: Server, question: Question) -> None:
    """Wait until the server responds; the response is checked later."""
    end_s, answered = time.perf_counter() + MOST_START_S, 0
    while time.perf_counter() < end_s:
        server.processes.check_running()
        try:
            _ask(server, question)
        except (OSError, http.client.HTTPException, grpc.RpcError):
            answered = 0
            time.sleep(LOOK_S)
        else:
            answered += 1
            if answered == server.kind.answers:
                return
    raise SystemExit(f"{server.kind.name}: no answer in {MOST_START_S:g} s")


def _ask(server: Server, question: Question) -> bytes:
    """Return the response to one call, on a connection of its own."""
    body = question.body.read_bytes()
    if server.kind.http:
        connection = http.client.HTTPConnection(server.target, timeout=60)
        connection.request("POST", question.method, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.status != 200:
            raise OSError(f"{server.target}: {answer.status}")
        return content
    # A channel waits long before it tries again to connect; a socket need not.
    socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
    with grpc.insecure_channel(server.target, LENGTHS) as channel:
        call: Any = channel.unary_unary(question.method)
        answered: bytes = call(body, timeout=60)
        return answered


# --- how each is started --------------------------------------------------------------------------


def _script(name: str) -> Command:
    """Return the command of one of our scripts with its port and the ONNX file."""

    def command(
        _place: Path, made: Environment, release: Release, model: str, port: int
    ) -> list[str]:
        return [
            made.python,
            str(SCRIPTS / name),
            str(port),
            str(release.model_path(model).resolve()),
        ]

    return command


def _presage(*more: str) -> Command:
    """Return Presage with metrics, access log, outcome log and release follower."""

    def command(
        place: Path, made: Environment, release: Release, _model: str, port: int
    ) -> list[str]:
        return [
            made.python, "-m", "presage.serving", "--release", str(release.folder.resolve()),
            "--port", str(port), "--metrics-port", str(free_port()), "--access-log",
            "--outcomes", str(place / "outcomes.db"), "--drain-s", "0", *more,
        ]  # fmt: skip

    return command


def _kserve(_place: Path, made: Environment, release: Release, model: str, port: int) -> list[str]:
    path = str(release.model_path(model).resolve())
    script = str(SCRIPTS / "kserve_server.py")
    return [made.python, script, str(port), str(free_port()), model, path]


def _mlserver(place: Path, made: Environment, release: Release, model: str, port: int) -> list[str]:
    settings = {
        "host": "127.0.0.1", "grpc_port": port, "http_port": free_port(),
        "metrics_port": free_port(),
        # In its own process, and with no line a call: both make it faster here.
        "parallel_workers": 0, "debug": False,
    }  # fmt: skip
    model_settings = {
        "name": model, "implementation": "mlserver_runtime.OnnxRuntime",
        "parameters": {"uri": str(release.model_path(model).resolve())},
    }  # fmt: skip
    runtime = "mlserver_runtime.py"
    (place / runtime).write_text((SCRIPTS / runtime).read_text())
    (place / "settings.json").write_text(json.dumps(settings))
    (place / "model-settings.json").write_text(json.dumps(model_settings))
    return [str(made.folder / "bin" / "mlserver"), "start", str(place)]


def _mlflow(place: Path, made: Environment, release: Release, model: str, port: int) -> list[str]:
    saved = place / f"{model}.mlflow"
    if not saved.exists():
        script = str(SCRIPTS / "mlflow_save.py")
        path = str(release.model_path(model).resolve())
        columns = str(len(release.columns))
        command = [made.python, script, path, str(saved), columns]
        subprocess.run(command, env=env_of(made), cwd=place, check=True, capture_output=True)
    return [
        made.python, "-m", "mlflow", "models", "serve", "--model-uri", str(saved),
        "--host", "127.0.0.1", "--port", str(port), "--env-manager", "local",
    ]  # fmt: skip


OURS: Sequence[Kind] = (
    Kind("echo", "gRPC echo", "presage", _script("echo.py")),
    Kind("smallest", "smallest OIP server", "presage", _script("smallest_oip.py")),
    Kind("presage", "Presage", "presage", _presage(), "presage"),
)
PEERS: Sequence[Kind] = (
    Kind("kserve", "KServe Python SDK", "kserve", _kserve, "kserve"),
    Kind("mlserver", "MLServer", "mlserver", _mlserver, "mlserver"),
    Kind("mlflow", "MLflow models serve", "mlflow", _mlflow, "mlflow", http=True),
)
WORKERS = Kind(
    "workers", "Presage, two processes", "presage", _presage("--workers", "2"), answers=20
)
