"""Measurements: each is a function of running servers to figures, in rounds over all servers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.serving.line_worker import LineWorker
from benchmarks.serving.load import Load, load
from benchmarks.serving.questions import SOLO_MODELS, Question, Questions
from benchmarks.serving.rounds import Figures, interleaved
from benchmarks.serving.servers import WORKERS, Kind, Server, env_of, environment_of, start
from presage.models.release.release import Release

HERE = Path(__file__).parent
CALLERS = (1, 16, 64)
LOAD_S = 2
LATENCY_CALLS, LATENCY_S = 1500, 1.5
SETTLING_CALLS = 200
BATCH_CALLERS, WORKERS_CALLERS = 4, 64
BULK_CALLS, ONE_ROW_CALLS = 8, 300
LOADED_CALLERS, LOADED_S, PAUSE_S = 64, 30, 15
STEADY_CALLS, STEADY_AT_ONCE, STEADY_CALLERS, STEADY_S = 200_000, 10_000, 16, 300


@dataclass(frozen=True)
class Bench:
    """Settings that every measurement needs.

    Attributes
    ----------
    server_cores, client_cores : list of int
        Cores of servers and of clients; some measurements use all cores for both.
    """

    folder: Path
    release: Release
    model: str
    questions: Questions
    rounds: int
    server_cores: list[int]
    client_cores: list[int]

    @property
    def cores(self) -> list[int]:
        return sorted({*self.server_cores, *self.client_cores})

    def start(self, kind: Kind) -> Server:
        return start(kind, self.folder, self.release, self.model, self.questions, self.server_cores)

    def worker(self, environment: str, script: str, cores: list[int], *words: str) -> LineWorker:
        made = environment_of(environment)
        command = [made.python, str(HERE / script), *words]
        return LineWorker(command, cores=cores, env=env_of(made))

    def load(self, server: Server, question: Question, callers: int, **how: Any) -> Load:
        """Load a server on its own core with clients, unless other ``cores`` are given."""
        how = {"cores": self.client_cores, "seconds": LOAD_S} | how
        answer_bytes = server.check(question)
        return load(
            server.processes, server.port, question, answer_bytes=answer_bytes, callers=callers,
            http=server.kind.http, **how,  # type: ignore[arg-type]
        )  # fmt: skip


# --- one server at a time -------------------------------------------------------------------------


def starts(bench: Bench, kinds: Sequence[Kind]) -> Figures:
    """Return the time from process start to the first right response, and the memory soon after."""

    def turn(kind: Kind) -> tuple[float, float]:
        with running(bench, [kind]) as (server,):
            bench.load(server, server.question(bench.questions), 1, seconds=0, calls=SETTLING_CALLS)
            return server.start_s, server.processes.pss_mib()

    found = interleaved(bench.rounds, {kind.name: partial(turn, kind) for kind in kinds})
    return {
        "start_s": {name: [start_s for start_s, _ in values] for name, values in found.items()},
        "pss_mib": {name: [pss_mib for _, pss_mib in values] for name, values in found.items()},
    }


def steady(bench: Bench, kind: Kind) -> Figures:
    """Return the memory before and after many requests; a slow machine answers fewer."""
    with running(bench, [kind]) as (server,):
        question = server.question(bench.questions)
        ask = partial(bench.load, server, question, STEADY_CALLERS, seconds=0, calls=STEADY_AT_ONCE)
        ask()
        before_mib = server.processes.pss_mib()
        end_s, calls = time.monotonic() + STEADY_S, 0
        while calls < STEADY_CALLS and time.monotonic() < end_s:
            calls += ask().calls
        after_mib = server.processes.pss_mib()
    return {
        "steady_calls": {kind.name: [float(calls)]},
        "steady_before_mib": {kind.name: [before_mib]},
        "steady_after_mib": {kind.name: [after_mib]},
    }


def loaded(bench: Bench, kind: Kind) -> Figures:
    """Return the memory after a minute of large requests and of many clients, and after a pause.

    The pause is longer than that after which the server returns free memory to the kernel.
    """
    with running(bench, [kind]) as (server,):
        for question, callers in (
            (server.batch(bench.questions), BATCH_CALLERS),
            (server.question(bench.questions), LOADED_CALLERS),
        ):
            bench.load(server, question, callers, seconds=LOADED_S)
        after_mib = server.processes.pss_mib()
        time.sleep(PAUSE_S)
        return {
            "loaded_mib": {kind.name: [after_mib]},
            "paused_mib": {kind.name: [server.processes.pss_mib()]},
        }


def more_processes(bench: Bench, kind: Kind) -> Figures:
    """Return requests a second of one and of two processes, on all cores with the clients."""
    with running(bench, [kind, WORKERS]) as servers:
        for server in servers:
            server.processes.pin(bench.cores)
        turns = {
            server.kind.name: partial(
                bench.load, server, server.question(bench.questions), WORKERS_CALLERS,
                cores=bench.cores,
            )
            for server in servers
        }  # fmt: skip
        found = interleaved(bench.rounds, turns)
    return {"all_cores_per_s": _calls_per_s(found)}


# --- all servers running, measured in turns -------------------------------------------------------


def latencies(bench: Bench, servers: Sequence[Server]) -> Figures:
    """Return the latency of a row with one client: by a stub without messages, and by Triton's."""
    with _client(bench) as client:
        raw = {
            server.kind.name: _caller(client, server, server.question(bench.questions))
            for server in servers
        }
        triton = {
            server.kind.name: partial(
                client.ask, kind="triton", target=server.target, model=bench.model,
                rows=str(bench.questions.infer.rows_file), calls=LATENCY_CALLS, seconds=LATENCY_S,
            )
            for server in servers
            if not server.kind.http
        }  # fmt: skip
        return {
            **_microseconds("infer", interleaved(bench.rounds, raw)),
            **_microseconds("triton", interleaved(bench.rounds, triton)),
        }


def predict_latency(bench: Bench, servers: Sequence[Server]) -> Figures:
    """Predict of a job on a device at one caller, another job every time or one, and echoes."""
    questions = {"predict": bench.questions.predict, "predict_again": bench.questions.predict_again}
    figures: Figures = {}
    with _client(bench) as client:
        for name, question in questions.items():
            turns = {server.kind.name: _caller(client, server, question) for server in servers}
            figures |= _microseconds(name, interleaved(bench.rounds, turns))
    return figures


def throughput(bench: Bench, servers: Sequence[Server]) -> Figures:
    """Return requests a second for single rows, and the server's time on its core."""
    figures: Figures = {}
    for callers in CALLERS:
        turns = {
            server.kind.name: partial(bench.load, server, server.question(bench.questions), callers)
            for server in servers
        }
        found = interleaved(bench.rounds, turns)
        figures[f"per_s_{callers}"] = _calls_per_s(found)
        figures[f"cpu_us_{callers}"] = {
            name: [load.server_cpu_us for load in loads] for name, loads in found.items()
        }
    return figures


def batches(bench: Bench, servers: Sequence[Server]) -> Figures:
    """Return figures of many rows a request by a few clients; all share the cores."""

    def turn(server: Server) -> Load:
        question = server.batch(bench.questions)
        # In the time that others have, as much JSON may not be answered once.
        how = {"seconds": 0, "calls": 2 * BATCH_CALLERS} if server.kind.http else {}
        return bench.load(server, question, BATCH_CALLERS, cores=bench.cores, **how)

    for server in servers:
        server.processes.pin(bench.cores)
    found = interleaved(
        bench.rounds, {server.kind.name: partial(turn, server) for server in servers}
    )
    for server in servers:
        server.processes.pin(bench.server_cores)
    rows = bench.questions.infer_rows.rows
    per_s = {name: [rows * each for each in values] for name, values in _calls_per_s(found).items()}
    return {"rows_per_s": per_s}


def bulk(bench: Bench, presage: Server) -> Figures:
    """Return figures of many jobs in one request, and of the bare models on the same rows."""
    questions = bench.questions
    with _client(bench) as client, _bare_models(bench) as bare:
        turns: dict[str, Callable[[], Any]] = {
            "bare": partial(bare.ask, calls=BULK_CALLS, rows=questions.predict_many.rows),
            "predict": _caller(client, presage, questions.predict_many, BULK_CALLS),
            "matrix": _caller(client, presage, questions.predict_matrix, BULK_CALLS),
        }
        found = interleaved(bench.rounds, turns)
    return {"bulk_us": {name: [row["p50_us"] for row in rows] for name, rows in found.items()}}


def in_process(bench: Bench) -> Figures:
    """Return figures of the predictor without a server: new jobs, and one repeated job."""
    words = (str(bench.release.folder.resolve()), str(bench.questions.placements))
    with (
        bench.worker("presage", "in_process.py", bench.server_cores, *words) as worker,
        _bare_models(bench) as bare,
    ):
        turns: dict[str, Callable[[], Any]] = {
            "presage": worker.ask,
            "bare": partial(bare.ask, calls=ONE_ROW_CALLS, rows=1),
        }
        found = interleaved(bench.rounds, turns)
    return {
        f"in_process_{name}": {"presage": [row[name] for row in found["presage"]]}
        for name in ("new_us", "again_us", "imports_grpc")
    } | {"bare_us": {"bare": [row["p50_us"] for row in found["bare"]]}}


@contextlib.contextmanager
def running(bench: Bench, kinds: Sequence[Kind]) -> Iterator[list[Server]]:
    """Run servers of these kinds, all at once."""
    with contextlib.ExitStack() as stack:
        servers = []
        for kind in kinds:
            servers.append(bench.start(kind))
            stack.callback(servers[-1].processes.stop)
        yield servers


def _client(bench: Bench) -> LineWorker:
    return bench.worker("client", "latency_client.py", bench.client_cores)


def _bare_models(bench: Bench) -> LineWorker:
    models = [str(bench.release.model_path(name).resolve()) for name in SOLO_MODELS]
    rows = str(bench.questions.all_rows)
    return bench.worker("presage", "bare_models.py", bench.server_cores, rows, *models)


def _caller(
    client: LineWorker, server: Server, question: Question, calls: int = LATENCY_CALLS
) -> Callable[[], dict[str, Any]]:
    """Return a turn of calls, each with as many response bytes as the right response has."""
    answer_bytes = server.check(question)
    kind = "http" if server.kind.http else "raw"

    def turn() -> dict[str, Any]:
        found = client.ask(
            kind=kind, target=server.target, method=question.method, body=str(question.body),
            calls=calls, seconds=LATENCY_S, counter_at=question.counter_at,
        )  # fmt: skip
        assert found["answer_bytes"] == answer_bytes, (server.kind.name, question.method, found)
        return found

    return turn


def _microseconds(name: str, found: dict[str, list[dict[str, Any]]]) -> Figures:
    return {
        f"{name}_{key}": {server: [row[key] for row in rows] for server, rows in found.items()}
        for key in ("p50_us", "p99_us")
    }


def _calls_per_s(found: dict[str, list[Load]]) -> dict[str, list[float]]:
    return {name: [load.calls_per_s for load in loads] for name, loads in found.items()}
