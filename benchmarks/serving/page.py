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
    Target("protocol call at one caller, p50 / echo of its bytes",
           ("infer_p50_us", PRESAGE), ("infer_p50_us", ECHO), 1.45),
    Target("`Predict` of a job on a device, never asked before, p50 / echo of its bytes",
           ("predict_p50_us", PRESAGE), ("predict_p50_us", ECHO), 1.8),
    Target("requests a second at 16 callers / smallest server",
           ("per_s_16", PRESAGE), ("per_s_16", SMALLEST), 0.9, at_least=True),
    Target("requests a second at 64 callers / smallest server",
           ("per_s_64", PRESAGE), ("per_s_64", SMALLEST), 0.95, at_least=True),
    Target("server's CPU time a call at 16 callers / smallest server",
           ("cpu_us_16", PRESAGE), ("cpu_us_16", SMALLEST), 1.15),
    Target("rows a second at 1,024 rows a request / smallest server",
           ("rows_per_s", PRESAGE), ("rows_per_s", SMALLEST), 1.2, at_least=True),
    Target("one `Predict` of 1,000 jobs on 4 devices / ONNX Runtime alone on these rows",
           ("bulk_us", "predict"), ("bulk_us", "bare"), 2.0),
    Target("one `PredictMatrix` of the same rows / ONNX Runtime alone",
           ("bulk_us", "matrix"), ("bulk_us", "bare"), 1.3),
    Target("predictor in its caller's process, a job it has not seen before",
           ("in_process_new_us", PRESAGE), None, 100, unit=" µs"),
    Target("imports of `grpc` by that process", ("in_process_imports_grpc", PRESAGE), None, 0),
    Target("start to the first right answer", ("start_s", PRESAGE), None, 0.8, unit=" s"),
    Target("memory (PSS) after 200 calls", ("pss_mib", PRESAGE), None, 90, unit=" MiB"),
    Target("packages of a serving image", ("packages", PRESAGE), None, 15),
)  # fmt: skip
# Figure, what it is, and its format.
ABSOLUTE = (
    ("infer_p50_us", "call at one caller, p50, µs", ".0f"),
    ("infer_p99_us", "the same, p99, µs", ".0f"),
    ("triton_p50_us", "by `tritonclient`, p50, µs", ".0f"),
    ("triton_p99_us", "the same, p99, µs", ".0f"),
    ("per_s_1", "requests/s at 1 caller", ",.0f"),
    ("per_s_16", "requests/s at 16 callers", ",.0f"),
    ("per_s_64", "requests/s at 64 callers", ",.0f"),
    ("cpu_us_16", "server's CPU a call at 16 callers, µs", ".0f"),
    ("rows_per_s", "rows/s at 1,024 rows a request", ",.0f"),
    ("start_s", "start to the first right answer, s", ".2f"),
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
        "# Serving: latency, throughput, memory and start, beside other servers",
        "",
        f"Written by `{about['command']}` in one run on one machine: {about['machine']}. The "
        f"`{about['model']}` network of the release that comes with Presage, on ONNX Runtime in "
        "one thread in every server, asked for one row of 177 features but where it says "
        "otherwise. Servers are measured in turns, "
        f"{about['rounds']} rounds of them; a ratio is the median of those of the same round, with "
        "the smallest and the largest beside it. Ratios are what is promised: the seconds are "
        "those of a shared machine, of which other programs took "
        f"{about['foreign_cores']} cores meanwhile. Every server has its own core and the callers "
        "have the other one, but where it says that all share all.",
        "",
        "The yardsticks, both on `grpc.aio`: an *echo* gives back the bytes it was sent, and the "
        "*smallest server* of the Open Inference Protocol parses the message, runs the network "
        "and writes the answer, with no check, log, count or limit. Both run on asyncio's own "
        "event loop and with glibc as it comes, Presage on uvloop and keeping what is freed "
        "(decision 22). Presage runs with all it has: checks of every number, metrics, access log, "
        "outcome log, and a look for a newer release every few seconds.",
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
        "Where a call's time goes, and what was done about it: "
        "[decision 22](../decisions/0022-reduce-request-time-without-compiled-code.md).",
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
            f"Over {calls[0]:,.0f} requests Presage's memory goes from {before[0]:.1f} to "
            f"{after[0]:.1f} MiB."
        )
    bulk_ms = {
        name: statistics.median(values) / 1e3 for name, values in figures.get("bulk_us", {}).items()
    }
    if bulk_ms:
        lines.append(
            f"Of 1,000 jobs on 4 devices `Predict` takes {bulk_ms['predict']:.0f} ms, "
            f"`PredictMatrix` {bulk_ms['matrix']:.0f} ms and ONNX Runtime alone "
            f"{bulk_ms['bare']:.1f} ms. The targets were set before predictors were folded "
            "(decision 20): that took time from ONNX Runtime, and none from what is around it."
        )
    for what, of, to in (
        ("A call of the smallest server takes {} times the echo's",
         ("infer_p50_us", SMALLEST), ("infer_p50_us", ECHO)),
        ("In the caller's process a job not seen before takes {} times what ONNX Runtime alone "
         "takes for its row in the three networks",
         ("in_process_new_us", PRESAGE), ("bare_us", "bare")),
        ("A `Predict` asked again, of which the answer was kept (decision 21), takes {} times the "
         "echo's", ("predict_again_p50_us", PRESAGE), ("predict_again_p50_us", ECHO)),
        ("By `tritonclient`, whose own time is in both, a call takes {} times the echo's",
         ("triton_p50_us", PRESAGE), ("triton_p50_us", ECHO)),
        (f"Two processes (`--workers 2`) answer {{}} times the requests of one at "
         f"{WORKERS_CALLERS} callers, with both cores shared by servers and callers",
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
    "MLflow's server speaks HTTP and JSON only, so its rows are those of that. KServe and MLServer "
    "run one small class of ours around the same ONNX Runtime session; MLServer runs it in its own "
    "process (`parallel_workers: 0`) and logs no call, KServe logs no latencies: all three make "
    "them faster here.",
    "",
    "## How it is measured",
    "",
    "- Before anything is timed every server is asked once, and its numbers must be those that "
    "ONNX Runtime gives to the same rows; under load, every answer must have as many bytes as that "
    "one.",
    "- Times at one caller are of gRPC's own stub, bytes in and bytes out, and of an unmodified "
    "`tritonclient`, which adds the same to all.",
    "- Requests a second are `h2load`'s, from one connection a caller with one call under way, so "
    "that a caller in Python is not what is measured.",
    "- CPU time and memory (PSS, from `smaps_rollup`) are of all processes of a server; memory is "
    "read while no other server runs. A start is timed from the process's to the first right "
    "answer, asked for again and again.",
    f"- 1,024 rows a request: {BATCH_CALLERS} callers, all on all cores. 1,000 jobs on 4 devices "
    "are the committed campaign's, each a message of its own, in one request; ONNX Runtime alone "
    "runs the three networks on those 4,000 rows in one thread of the same core.",
    "- A `Predict` never asked before has eight digits in its job's name that no other has; "
    "what is kept of answers (decision 21) is of no use to it.",
    "- Packages are those that pip puts into an empty environment for `presage[serve]`, without "
    "pip and setuptools; a peer's are its own and ONNX Runtime's.",
    "",
    "```console",
    "$ apt-get install nghttp2-client             # h2load",
    "$ python -m benchmarks.serving               # Presage and the yardsticks",
    "$ python -m benchmarks.serving --peers       # makes the peers' environments the first time",
    "$ python -m benchmarks.serving --json FILE   # every round's numbers",
    "```",
    "",
    "## Where a server in C++ wins",
    "",
    "Triton is not measured here. It is written in C++: no interpreter's lock is held while a "
    "request is parsed and answered, so that one process keeps all cores of a machine busy, where "
    "a Python server needs a process for each. Its scheduler gathers requests of many callers into "
    "one batch, and runs several instances of a model beside each other; it serves networks on "
    "GPUs, takes tensors through shared memory without copying them over a socket, and knows "
    "ensembles and many frameworks. Whoever already runs it, has a large network, or wants many "
    "thousand requests a second of one machine is better served by it: a release's networks are "
    "plain ONNX files, which it loads, and its clients ask for them by the same protocol. What is "
    "then missing is what Presage does around them: features from jobs and devices, whether a job "
    "is in domain, runtimes, co-locations and their fit, outcomes, and a release that replaces "
    "another as a whole.",
)


def table(head: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return Markdown rows, numbers aligned right."""
    rule = "|".join(["---", *["---:"] * (len(head) - 1)])
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
