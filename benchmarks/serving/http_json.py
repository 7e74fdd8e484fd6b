"""Cost of HTTP/JSON beside gRPC, written to docs/benchmarks/http_json.md.

Run ``python -m benchmarks.serving.http_json`` from the repository root, on a quiet machine with two
cores: about ten minutes. Two servers without HTTP/JSON and one with it are measured in turns; the
ratio of the first two is the noise. All traffic stays on the loopback interface.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf import json_format

import presage
from benchmarks.markdown import write_page
from benchmarks.serving.processes import Processes, busy_s, own_s
from benchmarks.serving.rounds import Ratio, interleaved, ratio
from presage.features.tables.campaign import read_campaign
from presage.serving.codec.wire_values import write_job
from presage.serving.v1 import prediction_pb2 as pb

PAGE = Path("docs/benchmarks/http_json.md")
RELEASE = Path("data/pretrained/release").resolve()
CAMPAIGN = Path("data/profiles/cpu-2-zoo")
METHOD = "/presage.v1.PredictionService/Predict"
PATH = "/v1/predict"
OFF, AGAIN, ON = "without", "without, again", "with"
CLIENTS = 16
LATENCY_TARGET = CPU_TARGET = 1.02
IDLE_S, MOST_START_S = 5.0, 60.0
HTTP_PAUSE_S = 0.01


@dataclass(frozen=True)
class Server:
    """Running server, and the ports it answers on."""

    processes: Processes
    target: str
    http_port: int


class HttpRound(NamedTuple):
    """Median times of calls over HTTP and gRPC, and the server's time of a call over HTTP."""

    http_us: float
    grpc_us: float
    cpu_us: float


class Load(NamedTuple):
    """Processor time of a server for a call, and calls per second, of 16 clients."""

    cpu_us: float
    calls_per_s: float


@dataclass(frozen=True)
class Round:
    """Figures of one server in one round."""

    p50_us: float
    p99_us: float
    cpu_us: float  # of the server for a call, of 16 clients
    calls_per_s: float


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.http_json",
                                     description=(__doc__ or "").partition("\n")[0])  # fmt: skip
    parser.add_argument("--starts", type=int, default=3, help="starts of all servers")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each start")
    parser.add_argument("--calls", type=int, default=600, help="calls of a round")
    args = parser.parse_args()
    server_core, client_core = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {client_core})
    request = a_request()
    rounds: dict[str, list[Round]] = {name: [] for name in (OFF, AGAIN, ON)}
    idle: dict[str, list[float]] = {name: [] for name in rounds}
    memory: dict[str, list[float]] = {name: [] for name in rounds}
    http_rounds: list[HttpRound] = []
    busy: list[float] = []
    begin_s, foreign_s = time.monotonic(), busy_s() - own_s()
    for number in range(args.starts):
        say(f"start {number + 1} of {args.starts}")
        with running([OFF, AGAIN, ON], server_core) as servers:
            for server in servers.values():
                warm_up(server, request)
            for _ in range(args.rounds):
                times = latencies(servers, request, args.calls)
                turns = {name: load(server, request, args.calls)
                         for name, server in servers.items()}  # fmt: skip
                # Twice, in both orders.
                for name, loads in interleaved(2, turns).items():
                    means = map(statistics.mean, zip(*loads, strict=True))
                    rounds[name].append(Round(*percentiles_us(times[name]), *means))
            for name, server in servers.items():
                idle[name].append(idle_share(server))
                memory[name].append(server.processes.pss_mib())
            http_rounds.append(http_round(servers[ON], request, args.calls))
            busy.extend(latency_under_http_load(servers[ON], request, args.calls))
    elapsed_s, foreign_s = time.monotonic() - begin_s, busy_s() - own_s() - foreign_s
    about = f"{len(rounds[ON])} rounds in {args.starts} starts of all servers"
    lines = page(rounds, idle, memory, http_rounds, busy, about, foreign_s / elapsed_s)
    write_page(PAGE, lines)
    print(PAGE.read_text())


def a_request() -> pb.PredictRequest:
    """Return the request of one measured job on one GPU."""
    job = next(iter(read_campaign(CAMPAIGN).jobs.values()))
    return pb.PredictRequest(jobs=[write_job(job)], devices=[pb.Device(kind="v100-16gb")])


@contextmanager
def running(names: Sequence[str], core: int) -> Iterator[dict[str, Server]]:
    """Run one server for each name; they share a core."""
    source = str(Path(presage.__file__).resolve().parents[1])
    env = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        servers = {}
        for number, name in enumerate(names):
            extra = ("--http-port", "0") if name == ON else ()
            output = Path(folder) / f"{number}.log"
            database = str(Path(folder) / f"{number}.db")
            command = [sys.executable, "-m", "presage", "serve", "--release", str(RELEASE),
                       "--port", "0", "--outcomes", database, *extra]  # fmt: skip
            processes = Processes(
                command, cores=[core], env=dict(env), cwd=Path(folder), output=output
            )
            stack.callback(processes.stop)
            servers[name] = until_ready(processes, output)
        yield servers


def until_ready(processes: Processes, output: Path) -> Server:
    """Wait for the line with the addresses of a server."""
    end_s = time.monotonic() + MOST_START_S
    while time.monotonic() < end_s:
        processes.check_running()
        for line in output.read_text().splitlines():
            if line.startswith("serving release"):
                target, _, url = line.partition(" on ")[2].partition(" and ")
                return Server(processes, target, int(url.rpartition(":")[2]) if url else 0)
        time.sleep(0.05)
    raise SystemExit(f"{output}: the server did not start")


def varied(request: pb.PredictRequest) -> Iterator[bytes]:
    """Yield the request with a new name each time, so that no cache has its response."""
    number = 0
    while True:
        number += 1
        request.jobs[0].job_id = f"{os.getpid()}-{time.monotonic_ns()}-{number}"
        yield request.SerializeToString()


def warm_up(server: Server, request: pb.PredictRequest) -> None:
    bodies = varied(request)
    with grpc.insecure_channel(server.target) as channel:
        call: Any = channel.unary_unary(METHOD)
        for _ in range(200):
            call(next(bodies), timeout=10)


def latencies(
    servers: Mapping[str, Server], request: pb.PredictRequest, calls: int
) -> dict[str, list[float]]:
    """Return the times of calls to each server, in turns call by call, in s."""
    bodies = varied(request)
    times: dict[str, list[float]] = {name: [] for name in servers}
    with ExitStack() as stack:
        stubs: dict[str, Any] = {
            name: stack.enter_context(grpc.insecure_channel(server.target)).unary_unary(METHOD)
            for name, server in servers.items()
        }
        for stub in stubs.values():
            stub(next(bodies), timeout=10)
        names = list(stubs)
        for number in range(calls):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                body = next(bodies)
                begin_s = time.perf_counter()
                stubs[name](body, timeout=10)
                times[name].append(time.perf_counter() - begin_s)
    return times


def load(server: Server, request: pb.PredictRequest, calls: int) -> Callable[[], Load]:
    """Return the function that measures a server with 16 clients over gRPC."""

    def measure() -> Load:
        cpu_s, begin_s = server.processes.cpu_s(), time.perf_counter()
        asyncio.run(many(server.target, varied(request), calls))
        took_s, cpu_s = time.perf_counter() - begin_s, server.processes.cpu_s() - cpu_s
        done = calls // CLIENTS * CLIENTS
        return Load(1e6 * cpu_s / done, done / took_s)

    return measure


async def many(target: str, bodies: Iterator[bytes], calls: int) -> None:
    """Send calls from 16 clients at once."""
    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = channel.unary_unary(METHOD)

        async def client() -> None:
            for _ in range(calls // CLIENTS):
                await call(next(bodies), timeout=10)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))


def percentiles_us(times: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return 1e6 * statistics.median(ordered), 1e6 * ordered[int(0.99 * len(ordered))]


def http_round(server: Server, request: pb.PredictRequest, calls: int) -> HttpRound:
    """Measure HTTP/JSON and gRPC in turns, call by call, at one client."""
    bodies, messages = [json_of(request) for _ in range(2 * calls)], varied(request)
    send, http_s, grpc_s = connection_to(server), [], []
    with grpc.insecure_channel(server.target) as channel:
        call: Any = channel.unary_unary(METHOD)
        for body in bodies[:calls]:
            http_s.append(timed(send, body))
            grpc_s.append(timed(lambda message: call(message, timeout=10), next(messages)))
    cpu_s = server.processes.cpu_s()
    for body in bodies[calls:]:
        send(body)
    cpu_s = server.processes.cpu_s() - cpu_s
    return HttpRound(percentiles_us(http_s)[0], percentiles_us(grpc_s)[0], 1e6 * cpu_s / calls)


def timed(send: Callable[[bytes], object], body: bytes) -> float:
    """Return the seconds of a call."""
    begin_s = time.perf_counter()
    send(body)
    return time.perf_counter() - begin_s


def json_of(request: pb.PredictRequest) -> bytes:
    next(varied(request))
    return json_format.MessageToJson(request, indent=None).encode()


def connection_to(server: Server) -> Callable[[bytes], None]:
    """Return the function that sends a body on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)

    def send(body: bytes) -> None:
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        if response.status != 200 or "forecasts" not in json.loads(content):
            raise SystemExit(f"HTTP status {response.status}: {content.decode()}")

    return send


def latency_under_http_load(server: Server, request: pb.PredictRequest, calls: int) -> list[float]:
    """Return the p50 of gRPC calls while one client sends HTTP requests, over that without.

    There are four such pairs, one after another.
    """

    def p50_us() -> float:
        return percentiles_us(latencies({ON: server}, request, calls // 4)[ON])[0]

    sent = json_of(request)
    found = []
    for _ in range(4):
        unloaded_us, ended = p50_us(), threading.Event()
        loading = threading.Thread(target=send_until, args=(server, sent, ended))
        loading.start()
        try:
            found.append(p50_us() / unloaded_us)
        finally:
            ended.set()
            loading.join()
    return found


def send_until(server: Server, body: bytes, ended: threading.Event) -> None:
    """Send a request again and again, with pauses; its response is in the cache."""
    send = connection_to(server)
    while not ended.wait(HTTP_PAUSE_S):
        send(body)


def idle_share(server: Server) -> float:
    """Return the processor time of an idle server, in ms per second."""
    before_s = server.processes.cpu_s()
    time.sleep(IDLE_S)
    return 1e3 * (server.processes.cpu_s() - before_s) / IDLE_S


def page(
    rounds: dict[str, list[Round]], idle: dict[str, list[float]], memory: dict[str, list[float]],
    http_rounds: Sequence[HttpRound], busy: Sequence[float], about: str,
    foreign_cores: float,
) -> list[str]:  # fmt: skip
    """Return the lines of the page."""

    def values(name: str, figure: str) -> list[float]:
        return [getattr(one, figure) for one in rounds[name]]

    def row(title: str, figure: str, target: float | None) -> str:
        noise = ratio(values(AGAIN, figure), values(OFF, figure))
        found = ratio(values(ON, figure), values(OFF, figure))
        reached = "" if target is None else "reached" if found.median <= target else "**missed**"
        goal = "" if target is None else f"≤ {target:g}"
        return f"| {title} | {goal} | {shown(found)} | {shown(noise)} | {reached} |"

    def median(name: str, figure: str) -> str:
        return f"{statistics.median(values(name, figure)):.0f}"

    http_us, grpc_us, http_cpu_us = map(statistics.median, zip(*http_rounds, strict=True))
    times = ratio([one.http_us for one in http_rounds], [one.grpc_us for one in http_rounds])
    noise = ratio(values(AGAIN, "p50_us"), values(OFF, "p50_us"))
    noise_percent = 100 * max(1 - noise.least, noise.most - 1)
    loaded = ratio(busy, [1.0] * len(busy))
    return [
        "# HTTP/JSON: its cost beside gRPC",
        "",
        "This benchmark compares servers with and without `--http-port`, over gRPC. No client uses "
        "HTTP meanwhile. Written by `python -m benchmarks.serving.http_json` in one run: "
        f"{about}, in turns call by call, on two cores of which the servers share one. Other "
        f"programs used {max(0.0, foreign_cores):.2f} cores. Each request is a new `Predict` of "
        "one job on one device. A ratio is the median of the ratios per round, followed by the "
        "smallest and the largest.",
        "",
        "| over gRPC | target | with / without | without / without | |",
        "|---|---:|---:|---:|---|",
        row("p50 at one client", "p50_us", LATENCY_TARGET),
        row("p99 at one client", "p99_us", None),
        row(f"server's CPU time of a call at {CLIENTS} clients", "cpu_us", CPU_TARGET),
        row(f"calls per second at {CLIENTS} clients", "calls_per_s", None),
        "",
        "The third column compares two servers that are equal, so it is the noise of the others. "
        f"Single rounds of equal servers differ by up to {noise_percent:.0f} % in p50: a "
        "difference of a percent or two in the median would not be seen on this machine.",
        "",
        "| median | without | without, again | with |",
        "|---|---:|---:|---:|",
        *(f"| {title} | {median(OFF, key)} | {median(AGAIN, key)} | {median(ON, key)} |"
          for title, key in (("p50, µs", "p50_us"), ("p99, µs", "p99_us"),
                             ("server's CPU time of a call, µs", "cpu_us"),
                             ("calls per second", "calls_per_s"))),
        "| CPU time of an idle server, ms per second | "
        + " | ".join(f"{statistics.median(idle[name]):.1f}" for name in rounds) + " |",
        "| memory (PSS, which shares the code of the three servers), MiB | "
        + " | ".join(f"{statistics.median(memory[name]):.1f}" for name in rounds) + " |",
        "",
        "## HTTP/JSON itself",
        "",
        f"In turns with gRPC, at one client, a request as JSON takes {http_us:.0f} µs (p50) and "
        f"the message {grpc_us:.0f} µs: {shown(times)} times as long. The server uses "
        f"{http_cpu_us:.0f} µs of CPU time for it, and {median(ON, 'cpu_us')} µs for a message.",
        "",
        "While one client sends a request with a cached response over HTTP, and pauses for "
        f"{1e3 * HTTP_PAUSE_S:.0f} ms, again and again, the p50 of gRPC calls is {shown(loaded)} "
        "times that without. The client of both is one process.",
    ]  # fmt: skip


def shown(found: Ratio) -> str:
    return f"{found.median:.3f} ({found.least:.3f} to {found.most:.3f})"


def say(line: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


if __name__ == "__main__":
    main()
