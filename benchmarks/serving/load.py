"""Many callers: h2load, one connection each, one call at a time on it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.serving.processes import Processes, on
from benchmarks.serving.questions import Question

GRPC_HEADERS = ("content-type: application/grpc", "te: trailers")
HTTP_HEADERS = ("content-type: application/json",)
FRAME_BYTES = 5
MOST_S = 300


@dataclass(frozen=True)
class Load:
    """Figures of a server under load.

    Attributes
    ----------
    server_cpu_us : float
        Of all its processes, for each call.
    """

    calls: int
    calls_per_s: float
    server_cpu_us: float


def check_h2load() -> None:
    if shutil.which("h2load") is None:
        raise SystemExit("h2load is not there; apt-get install nghttp2-client")


def load(
    processes: Processes, port: int, question: Question, *, answer_bytes: int, callers: int,
    cores: Collection[int], seconds: int = 0, calls: int = 0, http: bool = False,
) -> Load:  # fmt: skip
    """Run so many clients for some seconds, or until so many calls are answered.

    Parameters
    ----------
    answer_bytes : int
        Of the right answer: h2load sees no gRPC status, but an error has no such body.
    """
    cpu_s = processes.cpu_s()
    message = _h2load(port, question, callers, cores, seconds, calls, http=http)
    cpu_s = processes.cpu_s() - cpu_s
    per_s = _number(r"finished in [^,]*, ([\d.]+) req/s", message)
    done = int(_number(r"requests: .* (\d+) succeeded", message))
    failed = _number(r"(\d+) failed", message) + _number(r"(\d+) errored", message)
    found_bytes = _number(r"\((\d+)\) data", message) / max(done, 1)
    expected_bytes = answer_bytes + (0 if http else FRAME_BYTES)
    # At the end of the time some answers are under way.
    most_bytes = expected_bytes * (1 + 2 * callers / max(done, 1)) + 1
    if failed or not done or not 0.98 * expected_bytes <= found_bytes <= most_bytes:
        raise SystemExit(
            f"port {port}, {callers} callers: {done} calls, {failed:g} failed, "
            f"{found_bytes:.1f} bytes an answer instead of {expected_bytes}\n{message}"
        )
    return Load(done, per_s, 1e6 * cpu_s / done)


def _h2load(
    port: int, question: Question, callers: int, cores: Collection[int], seconds: int, calls: int,
    *, http: bool,
) -> str:  # fmt: skip
    headers = [word for header in (HTTP_HEADERS if http else GRPC_HEADERS)
               for word in ("-H", header)]  # fmt: skip
    command = [
        *on(cores),
        "h2load", "-c", str(callers), "-m", "1", "-t", "1", *headers,
        *(["--h1"] if http else []),
        *(["-D", str(seconds)] if seconds else ["-n", str(calls)]),
        "-d", str(question.framed), f"http://127.0.0.1:{port}{question.method}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"h2load said nothing like {pattern!r}:\n{text}")
    return float(found[1])
