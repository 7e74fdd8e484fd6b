"""Presage's server compared with others on this machine, written to docs/benchmarks/serving.md.

Run ``python -m benchmarks.serving [--peers]`` from the repository root on a quiet machine, with
``h2load`` (Debian: nghttp2-client). Virtual environments for the servers and the clients are
created in ~/.cache/presage/peers the first time. All traffic stays on the loopback interface.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markdown import write_page
from benchmarks.serving import measure
from benchmarks.serving.load import check_h2load
from benchmarks.serving.measure import Bench
from benchmarks.serving.page import page
from benchmarks.serving.processes import busy_s, own_s
from benchmarks.serving.questions import SOLO_MODELS, write_questions
from benchmarks.serving.rounds import Figures
from benchmarks.serving.servers import OURS, PEERS, Kind, environment_of
from presage.models.release.release import load_release

PAGE = Path("docs/benchmarks/serving.md")
RELEASE = Path("data/pretrained/release")


def main() -> None:
    """Measure, and write the page."""
    args = parse()
    check_h2load()
    kinds = [kind for kind in (*OURS, *(PEERS if args.peers else ()))
             if args.only is None or kind.name in args.only]  # fmt: skip
    environment_of("client")
    for kind in kinds:
        environment_of(kind.environment)
    server_core, client_core = two_cores()
    # What this process does itself, between the measurements, is no server's business.
    os.sched_setaffinity(0, {client_core})
    begin_s, foreign_s = time.monotonic(), busy_s() - own_s()
    with tempfile.TemporaryDirectory(prefix="presage-serving-") as name:
        folder, release = Path(name), load_release(args.release)
        questions = write_questions(folder, release, args.model)
        bench = Bench(
            folder, release, args.model, questions, args.rounds, [server_core], [client_core]
        )
        figures: Figures = {}
        try:
            measure_all(bench, kinds, figures)
        finally:
            if args.json is not None:
                args.json.write_text(json.dumps(figures, indent=1))
    seconds, foreign_s = time.monotonic() - begin_s, busy_s() - own_s() - foreign_s
    say(f"measured in {seconds:.0f} s")
    about = {
        "command": "python -m benchmarks.serving" + " --peers" * args.peers,
        "machine": machine(),
        "foreign_cores": f"{max(0.0, foreign_s / seconds):.2f}",
        "model": args.model,
        "rounds": str(args.rounds),
        "peers": "peers" if args.peers else "",
    }
    write_page(args.page, page(figures, kinds, versions(kinds), about))
    print(args.page.read_text())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="measure other servers, too")
    parser.add_argument("--model", choices=SOLO_MODELS, default="memory")
    parser.add_argument("--release", type=Path, default=RELEASE, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="every round's numbers go there")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--only", nargs="+", metavar="SERVER", help="leave out all others")
    return parser.parse_args()


def measure_all(bench: Bench, kinds: Sequence[Kind], figures: Figures) -> None:
    """Return all figures of these servers; Presage's own figures only if it is among them."""
    of = {kind.name: kind for kind in kinds}
    figures["packages"] = {
        kind.name: [float(len(environment_of(kind.environment).packages))]
        for kind in kinds
        if kind.package
    }
    say("starts")
    figures |= measure.starts(bench, kinds)
    with measure.running(bench, kinds) as servers:
        say("latency")
        figures |= measure.latencies(bench, servers)
        say("throughput")
        figures |= measure.throughput(bench, servers)
        say("many rows a request")
        figures |= measure.batches(bench, [s for s in servers if s.kind.name != "echo"])
        if "presage" in of:
            say("Predict, PredictMatrix")
            measured = [s for s in servers if s.kind.name in ("echo", "presage")]
            figures |= measure.predict_latency(bench, measured)
            figures |= measure.bulk(bench, next(s for s in measured if s.kind.name == "presage"))
    if "presage" in of:
        say("in process, several processes, many requests")
        figures |= measure.in_process(bench)
        figures |= measure.more_processes(bench, of["presage"])
        figures |= measure.steady(bench, of["presage"])
        say("memory after load")
        figures |= measure.loaded(bench, of["presage"])


def two_cores() -> tuple[int, int]:
    """Return a core for servers and one for clients."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("one core only: servers and callers need one each")
    return cores[0], cores[1]


def versions(kinds: Sequence[Kind]) -> dict[str, str]:
    """Return the versions of servers that have one."""
    return {
        kind.name: environment_of(kind.environment).packages[kind.package]
        for kind in kinds
        if kind.package
    }


def machine() -> str:
    """Return cores, interpreter and package versions."""
    cpu = next(
        (line.partition(":")[2].strip()
         for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "unknown processor",
    )  # fmt: skip
    packages = environment_of("presage").packages
    shown = [f"{name} {packages[name]}" for name in ("grpcio", "protobuf", "onnxruntime", "numpy")]
    client = environment_of("client").packages["tritonclient"]
    python = sys.version.split()[0]
    return (
        f"{cpu}, {os.cpu_count()} cores, Python {python}, {', '.join(shown)}, tritonclient {client}"
    )


def say(line: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


if __name__ == "__main__":
    main()
