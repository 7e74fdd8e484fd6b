"""One training job in a process of its own: ``python -m presage.pipelines.profiling.worker SPEC``.

It builds the job, warms it up, says that it is ready, and then, for every window it is sent on
stdin, steps until the window's deadline and reports each step. It ends when stdin does.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.pipelines.profiling.child import claim_stdout, die_with_parent

WARM_STEPS = 3
WARM_S = 0.3

OUT_OF_MEMORY_WORDS = ("not enough memory", "can't allocate memory", "out of memory")


def main(argv: list[str] | None = None) -> None:
    """Entry point; the spec's keys are those of :func:`serve`."""
    spec: dict[str, Any] = json.loads((sys.argv[1:] if argv is None else argv)[0])
    die_with_parent(spec.pop("parent_pid"))
    answers = claim_stdout()

    def answer(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")

    try:
        serve(**spec, requests=iter(sys.stdin.readline, ""), answer=answer)
    except Exception as error:  # whatever a job does is a measurement, and must be told
        answer(event="failed", failure=failure_kind(error), message=_short(error))


def serve(
    *,
    job: str,
    threads: int,
    seed: int,
    memory_limit_bytes: int | None,
    device: str,
    spawned_s: float,
    requests: Any,
    answer: Callable[..., None],
) -> None:
    """Build and warm up ``job``, then step through every requested window.

    Parameters
    ----------
    device : str
        "cpu" or "cuda".
    spawned_s : float
        Monotonic time at which the parent started this process; setup is counted from there.
    requests : iterable of str
        JSON lines with ``start_s`` and ``deadline_s`` of the monotonic clock.
    answer : callable
        Sends its keyword arguments to the parent.
    """
    _offer_to_the_oom_killer()
    import torch

    from presage.pipelines.profiling.zoo import build, parse

    torch.set_num_threads(threads)
    # A job that has converged on its one batch decays into denormals, which are many times
    # slower; no real job does.
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    if memory_limit_bytes is not None:
        import resource  # not on Windows

        torch.ones(1 << 16).add_(1)  # the thread pool's stacks are not the job's
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))
    with torch.device(device):
        run = build(parse(job)).run
    if device == "cuda":
        run = _synchronized(run)
    run()
    setup_s = time.monotonic() - spawned_s
    answer(event="ready", setup_s=setup_s, warm_step_s=_warm_up(run))
    for line in requests:
        window = json.loads(line)
        steps, cpu_s = step_through(run, window["start_s"], window["deadline_s"])
        answer(event="window", steps=steps, cpu_s=cpu_s, memory_peak_bytes=_peak_bytes(device))


def _warm_up(run: Callable[[], None]) -> float:
    """Seconds of a median step, once the first is over."""
    steps: list[float] = []
    while len(steps) < WARM_STEPS or sum(steps) < WARM_S:
        start_s = time.monotonic()
        run()
        steps.append(time.monotonic() - start_s)
    return statistics.median(steps)


def step_through(
    run: Callable[[], None], start_s: float, deadline_s: float
) -> tuple[list[tuple[float, float]], float]:
    """Step from ``start_s`` until ``deadline_s``: start and end of each step, and CPU seconds.

    Clocks are monotonic. The last step may end after the deadline; there is at least one.
    """
    time.sleep(max(0.0, start_s - time.monotonic()))
    steps: list[tuple[float, float]] = []
    cpu_before_s = time.process_time()
    now_s = time.monotonic()
    while not steps or now_s < deadline_s:
        run()
        end_s = time.monotonic()
        steps.append((now_s, end_s))
        now_s = end_s
    return steps, time.process_time() - cpu_before_s


def failure_kind(error: Exception) -> str:
    """Either "out-of-memory" or "crash"; torch tells of the former in words alone."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY_WORDS):
        return "out-of-memory"
    return "crash"


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _synchronized(run: Callable[[], None]) -> Callable[[], None]:
    """The step including its work on the GPU."""
    import torch

    def run_to_the_end() -> None:
        run()
        torch.cuda.synchronize()

    return run_to_the_end


def _peak_bytes(device: str) -> int:
    """Most bytes this process ever held: resident on a CPU, reserved by torch on a GPU."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_reserved()
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """VmHWM of this process; getrusage would begin with the parent's at the fork."""
    status = Path("/proc/self/status").read_text()
    kibibytes = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kibibytes.split()[1]) * 1024


def _offer_to_the_oom_killer() -> None:
    """If memory runs out it is a worker that dies, not another program of this machine."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
