"""Worker process of one job: ``python -m presage.pipelines.profiling.running.worker SPEC``.

It imports torch and waits for the job's name on stdin. It builds the job, warms it up and reports
that it is ready. For every window that it receives on stdin, it steps until the window's deadline
and reports each step and its memory. It ends at the end of stdin.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.pipelines.profiling.sampling.cuda_clock import step_through_on_gpu
from presage.system.processes.child_process import claim_stdout, die_with_parent

WARM_STEPS = 3
WARM_S = 0.3

OUT_OF_MEMORY_WORDS = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "status_alloc_failed",  # cuBLAS and similar libraries, which allocate outside torch
    "device_allocation_failed",
    "host_allocation_failed",
)
# Messages of NVIDIA's libraries for a lack of workspace memory, but also for other errors.
AMBIGUOUS_WORDS = (
    "cublas_status_not_initialized",
    "cudnn_status_not_initialized",
    "cudnn_status_not_supported",
    "unable to find an engine",
    "unable to find a valid cudnn algorithm",
)
MIN_FREE_MEMORY_SHARE = 0.05  # share of free memory below which ambiguous errors mean that


def main(argv: list[str] | None = None) -> None:
    """Run the worker; the spec's keys are those of :func:`serve`."""
    spec: dict[str, Any] = json.loads((sys.argv[1:] if argv is None else argv)[0])
    die_with_parent(spec.pop("parent_pid"))
    responses = claim_stdout()

    def respond(**message: Any) -> None:
        responses.write(json.dumps(message) + "\n")

    try:
        serve(**spec, requests=iter(sys.stdin.readline, ""), respond=respond)
    except Exception as error:  # every failure of a job is a measurement to report
        failure = failure_kind(error, memory_is_short=spec["device"] == "cuda" and _is_short())
        respond(event="failed", failure=failure, message=_short(error))


def serve(
    *,
    threads: int,
    seed: int,
    memory_limit_bytes: int | None,
    device: str,
    spawned_s: float,
    requests: Iterator[str],
    respond: Callable[..., None],
) -> None:
    """Build and warm up a job, then run every requested window.

    Parameters
    ----------
    device : str
        "cpu" or "cuda".
    spawned_s : float
        Monotonic time at which the parent started this process; setup is counted from there,
        without the wait for the job's name.
    requests : iterator of str
        JSON lines: first ``job``, ``environment`` (variables to set before CUDA starts) and
        ``begun_s``, the time it was sent; then ``start_s`` and ``deadline_s`` of every window.
    respond : callable
        Sends its keyword arguments to the parent.
    """
    _offer_to_the_oom_killer()
    import torch

    from presage.pipelines.profiling.zoo import build, parse

    imported_s = time.monotonic()
    first = next(requests, None)
    if first is None:  # this worker was not needed
        return
    begin = json.loads(first)
    os.environ.update(begin["environment"])
    idle_s = max(0.0, begin["begun_s"] - imported_s)
    config = parse(begin["job"])
    torch.set_num_threads(threads)
    # A job that converged on its only batch decays into denormals, which are many times slower;
    # real jobs do not.
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    if device == "cuda":
        choose_cuda_kernels(config.precision)
    if memory_limit_bytes is not None:
        limit_memory(memory_limit_bytes, device)
    with torch.device(device):
        run = build(config).run
    run_once = _synchronized(run) if device == "cuda" else run
    step = step_through_on_gpu if device == "cuda" else step_through
    run_once()
    setup_s = time.monotonic() - spawned_s - idle_s
    respond(event="ready", setup_s=setup_s, warm_step_s=_warm_up(run_once))
    for line in requests:
        window = json.loads(line)
        steps, cpu_s = step(run, window["start_s"], window["deadline_s"])
        respond(event="window", steps=steps, cpu_s=cpu_s, **_peaks(device))


def choose_cuda_kernels(precision: str) -> None:
    """Configure torch so that a precision means what its name says, independent of its defaults.

    fp32 excludes TF32, which cuDNN would use by default. There is no search for the fastest
    convolution: it is off by default, hence in most jobs, and its choice varies.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = False


def limit_memory(limit_bytes: int, device: str) -> None:
    """Limit the memory of this process: its data on a CPU, torch's allocator on a GPU."""
    import torch

    if device == "cuda":
        total_bytes = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes))
        return
    import resource  # not on Windows

    torch.ones(1 << 16).add_(1)  # allocate the thread pool's stacks before the limit
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _warm_up(run: Callable[[], None]) -> float:
    """Return the seconds of a median step, without the first."""
    steps: list[float] = []
    while len(steps) < WARM_STEPS or sum(steps) < WARM_S:
        start_s = time.monotonic()
        run()
        steps.append(time.monotonic() - start_s)
    return statistics.median(steps)


def step_through(
    run: Callable[[], None], start_s: float, deadline_s: float
) -> tuple[list[tuple[float, float]], float]:
    """Run steps from ``start_s`` to ``deadline_s``; return step intervals and CPU seconds.

    Clocks are monotonic. The last step may end after the deadline; there is at least one step.
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


def failure_kind(error: Exception, *, memory_is_short: bool = False) -> str:
    """Return "out-of-memory" or "crash"; libraries report the former only in their messages.

    With ``memory_is_short``, ambiguous errors count as out-of-memory.
    """
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY_WORDS):
        return "out-of-memory"
    if memory_is_short and any(words in text for words in AMBIGUOUS_WORDS):
        return "out-of-memory"
    return "crash"


def _is_short() -> bool:
    """Return whether the GPU, or this process's part of it, has almost no free memory."""
    import torch

    with suppress(Exception):  # after some errors CUDA calls fail
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        fraction = torch.cuda.get_per_process_memory_fraction()
        reserved_bytes = torch.cuda.memory_reserved()
        left_bytes = min(free_bytes, fraction * total_bytes - reserved_bytes)
        return left_bytes < MIN_FREE_MEMORY_SHARE * total_bytes
    return False


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _synchronized(run: Callable[[], None]) -> Callable[[], None]:
    """Return a step that waits for its work on the GPU."""
    import torch

    def run_to_the_end() -> None:
        run()
        torch.cuda.synchronize()

    return run_to_the_end


def _peaks(device: str) -> dict[str, int | None]:
    """Return this process's peak memory, and the peaks of torch's allocator if it has one.

    On a GPU the allocator's peak replaces the process's if the driver does not report it: that
    lacks the context, and allocations of libraries outside torch.
    """
    if device == "cuda":
        import torch

        reserved_bytes = torch.cuda.max_memory_reserved()
        return {
            "memory_peak_bytes": reserved_bytes,
            "memory_allocated_peak_bytes": torch.cuda.max_memory_allocated(),
            "memory_reserved_peak_bytes": reserved_bytes,
        }
    return {
        "memory_peak_bytes": peak_resident_bytes(),
        "memory_allocated_peak_bytes": None,
        "memory_reserved_peak_bytes": None,
    }


def peak_resident_bytes() -> int:
    """Return VmHWM of this process; getrusage would start with the parent's value at the fork."""
    status = Path("/proc/self/status").read_text()
    kibibytes = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kibibytes.split()[1]) * 1024


def _offer_to_the_oom_killer() -> None:
    """Make the kernel kill a worker first if memory runs out, not another program."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
