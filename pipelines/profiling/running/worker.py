"""One job in a process of its own: ``python -m presage.pipelines.profiling.running.worker SPEC``.

It imports torch and waits for the job's name on stdin. It builds the job, warms it up, says that
it is ready, and then, for every window it is sent on stdin, steps until the window's deadline and
reports each step and its memory. It ends when stdin does.
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
from presage.system.child_process import claim_stdout, die_with_parent

WARM_STEPS = 3
WARM_S = 0.3

OUT_OF_MEMORY_WORDS = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "status_alloc_failed",  # cuBLAS and its kin, which allocate past torch
    "device_allocation_failed",
    "host_allocation_failed",
)
# What NVIDIA's libraries say when there is no memory for their workspace, and otherwise too.
AMBIGUOUS_WORDS = (
    "cublas_status_not_initialized",
    "cudnn_status_not_initialized",
    "cudnn_status_not_supported",
    "unable to find an engine",
    "unable to find a valid cudnn algorithm",
)
SHORT_OF_MEMORY = 0.05  # share of the memory that is left when an ambiguous error means its lack


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
        failure = failure_kind(error, memory_is_short=spec["device"] == "cuda" and _is_short())
        answer(event="failed", failure=failure, message=_short(error))


def serve(
    *,
    threads: int,
    seed: int,
    memory_limit_bytes: int | None,
    device: str,
    spawned_s: float,
    requests: Iterator[str],
    answer: Callable[..., None],
) -> None:
    """Build and warm up a job, then step through every requested window.

    Parameters
    ----------
    device : str
        "cpu" or "cuda".
    spawned_s : float
        Monotonic time at which the parent started this process; setup is counted from there,
        without the time spent waiting for the job's name.
    requests : iterator of str
        JSON lines: first ``job``, ``environment`` (variables to set before CUDA starts) and
        ``begun_s``, when it was sent; then ``start_s`` and ``deadline_s`` of every window.
    answer : callable
        Sends its keyword arguments to the parent.
    """
    _offer_to_the_oom_killer()
    import torch

    from presage.pipelines.profiling.zoo import build, parse

    imported_s = time.monotonic()
    first = next(requests, None)
    if first is None:  # not needed after all
        return
    begin = json.loads(first)
    os.environ.update(begin["environment"])
    idle_s = max(0.0, begin["begun_s"] - imported_s)
    config = parse(begin["job"])
    torch.set_num_threads(threads)
    # A job that has converged on its one batch decays into denormals, which are many times
    # slower; no real job does.
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    if device == "cuda":
        choose_cuda_kernels(config.precision)
    if memory_limit_bytes is not None:
        limit_memory(memory_limit_bytes, device)
    with torch.device(device):
        run = build(config).run
    whole = _synchronized(run) if device == "cuda" else run
    step = step_through_on_gpu if device == "cuda" else step_through
    whole()
    setup_s = time.monotonic() - spawned_s - idle_s
    answer(event="ready", setup_s=setup_s, warm_step_s=_warm_up(whole))
    for line in requests:
        window = json.loads(line)
        steps, cpu_s = step(run, window["start_s"], window["deadline_s"])
        answer(event="window", steps=steps, cpu_s=cpu_s, **_peaks(device))


def choose_cuda_kernels(precision: str) -> None:
    """Set torch so that a precision means what its name says, whatever torch's defaults are.

    fp32 is fp32: without TF32, which cuDNN would use unasked. No search for the fastest
    convolution either: it is off by default, so in most people's jobs, and its choice varies.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = False


def limit_memory(limit_bytes: int, device: str) -> None:
    """Let this process take no more: of its own data on a CPU, of torch's allocator on a GPU."""
    import torch

    if device == "cuda":
        total_bytes = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes))
        return
    import resource  # not on Windows

    torch.ones(1 << 16).add_(1)  # the thread pool's stacks are not the job's
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


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


def failure_kind(error: Exception, *, memory_is_short: bool = False) -> str:
    """Either "out-of-memory" or "crash"; libraries tell of the former in words alone.

    With ``memory_is_short`` an error that may mean it does mean it.
    """
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY_WORDS):
        return "out-of-memory"
    if memory_is_short and any(words in text for words in AMBIGUOUS_WORDS):
        return "out-of-memory"
    return "crash"


def _is_short() -> bool:
    """Whether next to nothing of the GPU's memory is left, or of this process's part of it."""
    import torch

    with suppress(Exception):  # after some errors CUDA answers nothing any more
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        part = torch.cuda.get_per_process_memory_fraction()
        reserved_bytes = torch.cuda.memory_reserved()
        left_bytes = min(free_bytes, part * total_bytes - reserved_bytes)
        return left_bytes < SHORT_OF_MEMORY * total_bytes
    return False


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _synchronized(run: Callable[[], None]) -> Callable[[], None]:
    """The step including its work on the GPU."""
    import torch

    def run_to_the_end() -> None:
        run()
        torch.cuda.synchronize()

    return run_to_the_end


def _peaks(device: str) -> dict[str, int | None]:
    """Most bytes this process ever held, by the allocator too where torch has one of its own.

    On a GPU the first stands in where the driver does not tell of processes: it lacks the
    context, and what libraries allocate past torch.
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
