"""Page docs/benchmarks/serving.md: ratios against targets, and a comparison of all servers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.serving.measure import BATCH_CALLERS, WORKERS_CALLERS
from benchmarks.serving.rounds import Figures, ratio
from benchmarks.serving.servers import Kind

Row = tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """Figure, or its ratio to another of the same rounds, with its limit.

    ``of`` and ``to`` are the figure's name and the server's.
    """

    what: str
    of: tuple[str, str]
    to: tuple[str, str] | None
    limit: float
    at_least: bool = False
    unit: str = ""

    def row(self, figures: Figures) -> Row:
        limit = f"{'≥' if self.at_least else '≤'} {self.limit:g}{self.unit}"
        values, base = _values(figures, self.of), _values(figures, self.to)
        if not values or (self.to and not base):
            return (self.what, limit, "not measured", "", "")
        found = ratio(values, base or [1.0] * len(values))
        good = found.median >= self.limit if self.at_least else found.median <= self.limit
        return (
            self.what, limit, f"{found.median:.3g}{self.unit}",
            f"{found.least:.3g} to {found.most:.3g}", "reached" if good else "**missed**",
        )  # fmt: skip


def _values(figures: Figures, of: tuple[str, str] | None) -> list[float]:
    return figures.get(of[0], {}).get(of[1], []) if of else []


ECHO, SMALLEST, PRESAGE = "echo", "smallest", "presage"
TARGETS = (
    Target("protocol request at one client, p50 / echo of its bytes",
           ("infer_p50_us", PRESAGE), ("infer_p50_us", ECHO), 1.45),
    Target("new `Predict` of a job on a device, p50 / echo of its bytes",
           ("predict_p50_us", PRESAGE), ("predict_p50_us", ECHO), 1.8),
    Target("requests/s at 16 clients / smallest server",
           ("per_s_16", PRESAGE), ("per_s_16", SMALLEST), 0.9, at_least=True),
    Target("requests/s at 64 clients / smallest server",
           ("per_s_64", PRESAGE), ("per_s_64", SMALLEST), 0.95, at_least=True),
    Target("server's CPU time per request at 16 clients / smallest server",
           ("cpu_us_16", PRESAGE), ("cpu_us_16", SMALLEST), 1.15),
    Target("rows/s at 1,024 rows per request / smallest server",
           ("rows_per_s", PRESAGE), ("rows_per_s", SMALLEST), 1.2, at_least=True),
    Target("one `Predict` of 1,000 jobs on 4 devices / ONNX Runtime alone on these rows",
           ("bulk_us", "predict"), ("bulk_us", "bare"), 2.0),
    Target("one `PredictMatrix` of the same rows / ONNX Runtime alone",
           ("bulk_us", "matrix"), ("bulk_us", "bare"), 1.3),
    Target("in-process predictor, a new job",
           ("in_process_new_us", PRESAGE), None, 100, unit=" µs"),
    Target("imports of `grpc` by that process", ("in_process_imports_grpc", PRESAGE), None, 0),
    Target("start to the first correct response", ("start_s", PRESAGE), None, 0.8, unit=" s"),
    Target("memory (PSS) after 200 calls", ("pss_mib", PRESAGE), None, 90, unit=" MiB"),
    Target("packages of a serving image", ("packages", PRESAGE), None, 15),
)  # fmt: skip
# Figure, what it is, and its format.
ABSOLUTE = (
    ("infer_p50_us", "request at one client, p50, µs", ".0f"),
    ("infer_p99_us", "the same, p99, µs", ".0f"),
    ("triton_p50_us", "by `tritonclient`, p50, µs", ".0f"),
    ("triton_p99_us", "the same, p99, µs", ".0f"),
    ("per_s_1", "requests/s at 1 client", ",.0f"),
    ("per_s_16", "requests/s at 16 clients", ",.0f"),
    ("per_s_64", "requests/s at 64 clients", ",.0f"),
    ("cpu_us_16", "server's CPU per request at 16 clients, µs", ".0f"),
    ("rows_per_s", "rows/s at 1,024 rows per request", ",.0f"),
    ("start_s", "start to the first correct response, s", ".2f"),
    ("pss_mib", "memory (PSS), MiB", ".0f"),
    ("packages", "packages installed", ".0f"),
)
WITHOUT_PEERS = (
    "KServe's Python SDK, MLServer and `mlflow models serve` were left out of this run; `--peers` "
    "makes their environments and measures them too."
)


def page(
    figures: Figures, kinds: Sequence[Kind], versions: Mapping[str, str], about: Mapping[str, str]
) -> str:
    """Return the whole page.

    Parameters
    ----------
    versions : mapping of str to str
        Of each server, by its name.
    about : mapping of str to str
        ``machine``, ``command``, ``model``, ``rounds``, ``foreign_cores`` that other programs kept
        busy, ``peers`` ("" without any).
    """
    lines = [
        "# Serving: latency, throughput, memory and start time of servers",
        "",
        "This benchmark compares Presage's server with other model servers and with two "
        f"minimal servers. Written by `{about['command']}` in one run on "
        f"one machine: {about['machine']}. Every server runs the `{about['model']}` network "
        "of the shipped release on ONNX Runtime with one thread; a request has one row of "
        "177 features unless stated otherwise. Servers are measured in turns, in "
        f"{about['rounds']} rounds. A ratio is the median of the ratios per round, followed "
        "by the smallest and the largest. Targets are for ratios, because the machine is "
        f"shared: other programs used {about['foreign_cores']} cores during the run. Every "
        "server has one core and the clients have the other, unless stated otherwise.",
        "",
        "There are two baselines on `grpc.aio`. An *echo* server returns the bytes of the "
        "request. The *smallest server* of the Open Inference Protocol parses the message, "
        "runs the network and writes the response, without checks, logs, metrics or limits. "
        "Both use asyncio's event loop and glibc's defaults; Presage uses uvloop and keeps "
        "freed memory (decision 22). Presage runs with all its features: checks of every "
        "number, metrics, access log, outcome log, and a check for a newer release every "
        "few seconds.",
        "",
        "## Targets",
        "",
        *table(("", "target", "measured", "rounds", ""), [t.row(figures) for t in TARGETS]),
        "",
        *_unpromised(figures),
        "",
        "## All servers",
        "",
        *table(*_absolute(figures, kinds, versions)),
        "",
        "[Decision 22](../decisions/0022-reduce-request-time-without-compiled-code.md) shows where "
        "the time of a request goes, and how it was reduced.",
        "",
        *([] if about["peers"] else [WITHOUT_PEERS, ""]),
        *METHOD,
    ]
    return "\n".join(lines) + "\n"


def _unpromised(figures: Figures) -> list[str]:
    """Return the figures without a target."""
    lines = []
    calls, before, after = (
        _values(figures, (f"steady_{name}", PRESAGE))
        for name in ("calls", "before_mib", "after_mib")
    )
    if calls:
        lines.append(
            f"Over {calls[0]:,.0f} requests Presage's memory grows from {before[0]:.1f} to "
            f"{after[0]:.1f} MiB."
        )
    loaded, paused = (_values(figures, (name, PRESAGE)) for name in ("loaded_mib", "paused_mib"))
    if loaded:
        lines.append(
            "After half a minute of requests of 1,024 rows by 4 clients and half a minute of small "
            f"ones by 64, it is {loaded[0]:.0f} MiB, and {paused[0]:.0f} MiB 15 s later (the goal "
            "is 110)."
        )
    bulk_ms = {
        name: statistics.median(values) / 1e3 for name, values in figures.get("bulk_us", {}).items()
    }
    if bulk_ms:
        lines.append(
            f"For 1,000 jobs on 4 devices `Predict` takes {bulk_ms['predict']:.0f} ms, "
            f"`PredictMatrix` {bulk_ms['matrix']:.0f} ms and ONNX Runtime alone "
            f"{bulk_ms['bare']:.1f} ms. The targets were set before inference graphs were fused "
            "(decision 20), which halved the time of ONNX Runtime, and before trees were averaged "
            "into the step time (decision 65), which doubled it again. "
            "Jobs are read and features computed in C (decision 81)."
        )
    for what, of, to in (
        ("A request to the smallest server takes {} times the echo's",
         ("infer_p50_us", SMALLEST), ("infer_p50_us", ECHO)),
        ("In process, a new job takes {} times the time of ONNX Runtime alone for its row in the "
         "three networks",
         ("in_process_new_us", PRESAGE), ("bare_us", "bare")),
        ("A repeated `Predict`, with a cached response (decision 21), takes {} times the echo's",
         ("predict_again_p50_us", PRESAGE), ("predict_again_p50_us", ECHO)),
        ("With `tritonclient`, whose own time is in both, a request takes {} times the echo's",
         ("triton_p50_us", PRESAGE), ("triton_p50_us", ECHO)),
        (f"Two processes (`--workers 2`) serve {{}} times the requests of one at "
         f"{WORKERS_CALLERS} clients, with both cores shared by servers and clients",
         ("all_cores_per_s", "workers"), ("all_cores_per_s", PRESAGE)),
    ):  # fmt: skip
        values, base = _values(figures, of), _values(figures, to)
        if values and base:
            found = ratio(values, base)
            shown = f"{found.median:.2f} ({found.least:.2f} to {found.most:.2f})"
            lines.append(f"{what.format(shown)}.")
    return [" ".join(lines)] if lines else []


def _absolute(
    figures: Figures, kinds: Sequence[Kind], versions: Mapping[str, str]
) -> tuple[Row, list[Row]]:
    head = ("", *(f"{kind.title} {versions.get(kind.name, '')}".strip() for kind in kinds))
    rows = []
    for name, what, form in ABSOLUTE:
        found = [figures.get(name, {}).get(kind.name) for kind in kinds]
        rows.append((what, *(format(statistics.median(v), form) if v else "-" for v in found)))
    return head, rows


METHOD = (
    "MLflow's server supports HTTP and JSON only, so its figures are for these. KServe and "
    "MLServer run a small wrapper class around the same ONNX Runtime session. MLServer runs it "
    "in its own process (`parallel_workers: 0`) and logs no requests, and KServe logs no "
    "latencies, which makes them faster here.",
    "",
    "## Method",
    "",
    "- Before the measurement every server gets one request, and its response must equal ONNX "
    "Runtime's. Under load every response must have the same number of bytes.",
    "- Latencies at one client are measured with gRPC's own stub, bytes in and bytes out, and "
    "with an unmodified `tritonclient`, which adds the same time for all servers.",
    "- Requests per second are measured by `h2load`, which has one connection per client with "
    "one request at a time, because a client in Python would be the bottleneck.",
    "- CPU time and memory (PSS, from `smaps_rollup`) include all processes of a server; memory "
    "is read while no other server runs. Start time is from process start to the first correct "
    "response, with repeated requests.",
    f"- For 1,024 rows per request, {BATCH_CALLERS} clients and the server share all cores. The "
    "1,000 jobs on 4 devices are those of the committed campaign, each a message of its own, in "
    "one request; ONNX Runtime alone runs the three networks on those 4,000 rows in one thread "
    "of the same core.",
    "- For a new `Predict`, the job's name has eight unique digits, so cached responses "
    "(decision 21) do not apply.",
    "- Packages are those that pip installs into an empty environment for `presage[serve]`, "
    "without pip and setuptools; for other servers, those of the server and of ONNX Runtime.",
    "",
    "```console",
    "$ apt-get install nghttp2-client             # h2load",
    "$ python -m benchmarks.serving               # Presage and the baselines",
    "$ python -m benchmarks.serving --peers       # creates the peers' environments the first time",
    "$ python -m benchmarks.serving --json FILE   # figures of every round",
    "```",
    "",
    "## Servers in C++",
    "",
    "Triton is not measured here. It is written in C++, without an interpreter lock, so that "
    "one process uses all cores of a machine; a Python server needs one process per core. "
    "Triton batches requests of many clients, runs several instances of a model in parallel, "
    "serves networks on GPUs, takes tensors through shared memory, and supports ensembles and "
    "many frameworks. Use Triton if you already run it, have a large network, or need many "
    "thousand requests per second from one machine: it loads a release's networks, which are "
    "plain ONNX files, and its clients use the same protocol. It does not have what Presage "
    "adds to the networks: features of jobs and devices, domain checks, run times, co-locations "
    "and whether they fit, outcomes, and atomic replacement of a release.",
)


def table(head: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return Markdown rows, numbers aligned right."""
    rule = "|".join(["---", *["---:"] * (len(head) - 1)])
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
