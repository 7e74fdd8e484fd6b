"""Effect of floods without a token on honest clients and a server's memory.

Run ``python -m benchmarks.floods [--rounds 5] [--only serve]``; five rounds take about 30 minutes.
Each server is a process. An honest client sends it at most 200 requests a second, one after
another, in five phases: without a flood, while a flood is sent as fast as the server accepts it,
while the flood is held open, while connections that the server closes are renewed at once, and
again without a flood. Each ratio of medians is thus taken within seconds. Results are stored by
server in ``--output``; the page docs/benchmarks/floods.md is written from them, and ``--page`` only
writes the page.

The exit status is 1 if an honest request failed while a flood was sent or held, the median while it
was held was over twice the quiet one, or memory grew by 150 MiB or more until then. Renewed floods
have no limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.floods.attack import Flood
from benchmarks.floods.page import GROWTH_MIB, RATIO, missed, page
from benchmarks.floods.servers import SERVERS, Server, Start
from benchmarks.markdown import write_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/benchmarks/floods.md"
PACE_S = 0.005  # between the begins of two honest requests
WARM_S, SETTLE_S = 1.0, 1.5


@dataclass
class HonestRequests:
    """Honest requests."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """Of those that were answered."""
        return 1e3 * statistics.median(self.seconds) if self.seconds else float("inf")


@dataclass
class Round:
    """One flood of one server, between two quiet periods."""

    quiet_ms: tuple[float, float]
    pushed: HonestRequests
    held: HonestRequests
    renewed: HonestRequests
    sent: dict[str, float]  # what the flood was, and what the server's memory grew by


def main() -> None:
    """Measure, write results and page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.floods", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="Rounds (default: 5).")
    parser.add_argument("--seconds", type=float, default=3.0, help="Of a phase (default: 3).")
    parser.add_argument("--only", default="", help="Servers whose name contains this.")
    parser.add_argument("--output", type=Path, default=Path(".cache/floods.json"))
    parser.add_argument("--json", action="store_true", help="Print the results.")
    parser.add_argument("--page", action="store_true", help="Write the page, and run nothing.")
    args = parser.parse_args()
    results = json.loads(args.output.read_text()) if args.output.exists() else {}
    chosen = {} if args.page else {name: SERVERS[name] for name in SERVERS if args.only in name}
    for name, (start, floods) in chosen.items():
        found = {
            "load": os.getloadavg()[0], "cores": os.cpu_count(), "rounds": args.rounds,
            "date": time.strftime("%F", time.gmtime()), "seconds": args.seconds,
        }  # fmt: skip
        found["floods"] = measured(name, start, floods, args.rounds, args.seconds)
        results[name] = found
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(results, indent=1))
    results = {name: results[name] for name in SERVERS if name in results}
    write_page(PAGE, page(results))
    if args.json:
        print(json.dumps(results, indent=1))
    if past := missed(results):
        sys.exit(f"targets: no error, {RATIO:g} times, {GROWTH_MIB} MiB; missed: {'; '.join(past)}")


def measured(
    name: str, start: Start, floods: Mapping[str, Flood], rounds: int, phase_s: float
) -> dict[str, Any]:
    """Flood one server in rounds; return a summary of each flood."""
    found: dict[str, list[Round]] = {flood: [] for flood in floods}
    quiet: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder  # tokens of servers that are open to this machine
        with start(Path(folder)) as server:
            honest(server, WARM_S)
            idle_mib = memory_mib(server.pid, "VmRSS")
            for number in range(rounds):
                before = honest(server, phase_s)
                for flood in floods:
                    progress(f"{name}, round {number + 1} of {rounds}: {flood}")
                    one = flooded(server, floods[flood], phase_s, idle_mib)
                    time.sleep(SETTLE_S)
                    after = honest(server, phase_s)
                    one.quiet_ms = (before.median_ms, after.median_ms)
                    one.held.errors += after.errors
                    quiet += after.seconds
                    found[flood].append(one)
                    before = after
            results = {flood: over(found[flood]) for flood in floods}
            for flood, result in results.items():
                if result["renewed"]["ratio"] > RATIO and result["mib_per_s"] > 1:
                    progress(f"{name}, floor of {flood}")
                    result["floor"] = floor(server, floods[flood], result, rounds, phase_s)
    progress("")
    return {"quiet": summary(quiet)} | results


def flooded(server: Server, flood: Flood, phase_s: float, idle_mib: float) -> Round:
    """Send honest requests while a flood is pushed, while it is held, and while it is renewed."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # reset the peak
    with attack(flood, server) as tell:
        tell("push")
        pushed = honest(server, phase_s)
        tell("hold")
        held = honest(server, phase_s)
        grown_mib = memory_mib(server.pid, "VmHWM") - idle_mib
        sent = tell("renew") | {"growth_mib": grown_mib}
        renewed = honest(server, phase_s)
        sent |= tell("stop")
    sent["renewed_growth_mib"] = memory_mib(server.pid, "VmHWM") - idle_mib
    return Round((0.0, 0.0), pushed, held, renewed, sent)


def floor(
    server: Server, flood: Flood, result: dict[str, Any], rounds: int, phase_s: float
) -> dict[str, float]:
    """Return what the same bytes a second cost that go to another process."""
    size = int(result["mib_per_s"] * 2**20)
    bare = Flood("bytes", 1, flood.connections, (flood.kind,), size)
    ratios, rates = [], []
    for _ in range(rounds):
        quiet = honest(server, phase_s)
        with attack(bare, server) as tell:
            tell("push")
            loaded = honest(server, phase_s)
            rates.append(tell("stop")["mib_per_s"])
        ratios.append(loaded.median_ms / quiet.median_ms)
    return {"ratio": statistics.median(ratios), "mib_per_s": statistics.median(rates)}


@contextmanager
def attack(flood: Flood, server: Server) -> Iterator[Callable[[str], dict[str, float]]]:
    """Start the flooding process; yield a function that sends it a command and returns a reply."""
    ca = str(server.ca) if server.ca else None
    spec = json.dumps({"flood": asdict(flood), "port": server.port, "ca": ca})
    command = [sys.executable, "-m", "benchmarks.floods.attack", spec]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        asks, answers = process.stdin, process.stdout
        assert asks is not None
        assert answers is not None
        answers.readline()

        def tell(word: str) -> dict[str, float]:
            asks.write(f"{word}\n")
            asks.flush()
            answer: dict[str, float] = json.loads(answers.readline())
            return answer

        try:
            yield tell
        finally:
            process.kill()


def honest(server: Server, for_s: float) -> HonestRequests:
    """Send honest requests for some seconds, at least one."""
    found, ends_s = HonestRequests(), time.perf_counter() + for_s
    while (begin_s := time.perf_counter()) < ends_s or not (found.seconds or found.errors):
        try:
            server.ask()
        except Exception as error:
            found.errors.append(f"{type(error).__name__}: {error}")
        else:
            found.seconds.append(time.perf_counter() - begin_s)
        time.sleep(max(0.0, begin_s + PACE_S - time.perf_counter()))
    return found


def over(rounds: list[Round]) -> dict[str, Any]:
    """Return medians over rounds, and the worst of errors and memory."""
    result: dict[str, Any] = {}
    for phase in ("pushed", "held", "renewed"):
        phases: list[HonestRequests] = [getattr(one, phase) for one in rounds]
        ratios = [
            there.median_ms / statistics.mean(one.quiet_ms)
            for there, one in zip(phases, rounds, strict=True)
        ]
        errors = [error for there in phases for error in there.errors]
        result[phase] = summary([s for there in phases for s in there.seconds]) | {
            "ratio": statistics.median(ratios), "ratios": ratios,
            "errors": len(errors), "first_errors": errors[:3],
        }  # fmt: skip
    for key in rounds[0].sent:
        over_rounds = max if "growth" in key else statistics.median
        result[key] = over_rounds(one.sent[key] for one in rounds)
    return result


def summary(seconds: list[float]) -> dict[str, float]:
    """Return count and percentiles of request times."""
    ordered = sorted(seconds) or [float("inf")]
    return {
        "requests": len(seconds),
        "p50_ms": 1e3 * statistics.median(ordered),
        "p99_ms": 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


def memory_mib(pid: int, row: str) -> float:
    """Return the resident memory of a process now (VmRSS), or its peak (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{row}:")[1].split()[0]) / 1024


def progress(message: str) -> None:
    """Show the current step on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
