"""What this machine's device can do, measured: ``python -m presage.pipelines.profiling.calibrate``.

Speeds are the best of several tries, so that a disturbed one does no harm.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from presage.features.device.device import Device
from presage.features.device.nvml_gpu import open_gpu
from presage.pipelines.profiling.running.worker import peak_resident_bytes
from presage.pipelines.profiling.sampling.cuda_clock import cuda_event
from presage.pipelines.profiling.sampling.samplers import is_gpu
from presage.system.child_process import Child, claim_stdout, die_with_parent

if TYPE_CHECKING:
    import torch

MATMUL_SIDE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "fp16", "bf16", "fp64")}
TIMING_S = 0.5  # of each peak
TINY_OPS = 200


def calibrate(
    device: Device,
    *,
    threads: int,
    timeout_s: float = 60.0,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Device:
    """``device`` with speeds, overhead and context memory as measured, in a child process.

    Raises
    ------
    ChildFailure
        The child died or gave no answer.
    """
    spec = {"threads": threads, "device": "cuda" if is_gpu(device) else "cpu"}
    with Child(__name__, spec, threads=threads, environment=environment) as child:
        measured = child.read(until_s=time.monotonic() + timeout_s)
    measured.pop("event")
    return dataclasses.replace(device, **measured)


def measure_device(*, threads: int, device: str) -> dict[str, Any]:
    """Fields of :class:`Device`, measured in this process."""
    import torch

    torch.set_num_threads(threads)
    before_bytes = _gpu_memory_used_bytes() if device == "cuda" else None
    with torch.device(device):
        _tiny_training_step()
        context_bytes = _context_bytes(device, before_bytes)
        return {
            "context_bytes": context_bytes,
            "op_overhead_s": _op_overhead_s(device),
            "memory_bandwidth_bytes_per_s": _memory_bandwidth(device),
            "peak_flops_per_s": _peaks(device),
        }


def _tiny_training_step() -> None:
    import torch

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()


def _context_bytes(device: str, before_bytes: int | None) -> int:
    """Memory of a process that has done one step: resident, or what came onto the GPU with it."""
    if device == "cpu":
        return peak_resident_bytes()
    import torch

    torch.cuda.synchronize()
    after_bytes = _gpu_memory_used_bytes()
    if before_bytes is not None and after_bytes is not None and after_bytes > before_bytes:
        return after_bytes - before_bytes
    # Where the driver is silent, all that is taken: too much if others are on the GPU.
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return total_bytes - free_bytes


def _gpu_memory_used_bytes() -> int | None:
    """By the driver: asking CUDA would make the context whose size is wanted."""
    import pynvml

    with suppress(pynvml.NVMLError), open_gpu() as (nvml, gpu):
        return int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
    return None


def _op_overhead_s(device: str) -> float:
    """Least time of an operator on one element; on a GPU that of its launch, which is longer."""
    import torch

    one = torch.ones(1)

    def many() -> None:
        for _ in range(TINY_OPS):
            one.add_(1)

    return min(times_s(many, device, most=200)) / TINY_OPS


def _memory_bandwidth(device: str) -> float:
    """Bytes per second of a copy, read and written."""
    import torch

    source = torch.ones(COPY_BYTES[device] // 4)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES[device] / min(times_s(lambda: target.copy_(source), device))


def _peaks(device: str) -> dict[str, float]:
    """FLOP/s by precision; one that this device's libraries do not know is left out."""
    peaks = {"fp32": _peak_flops("fp32", device)}
    for precision in PRECISIONS[device]:
        with suppress(RuntimeError):
            peaks[precision] = peaks.get(precision) or _peak_flops(precision, device)
    return peaks


def _peak_flops(precision: str, device: str) -> float:
    """FLOP/s of a square matmul."""
    import torch

    side = MATMUL_SIDE[device]
    a = torch.rand(side, side).to(_dtype(precision))
    b = torch.rand(side, side).to(a.dtype)
    out = torch.empty_like(a)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return float(2 * side**3 / min(times_s(lambda: torch.matmul(a, b, out=out), device)))


def _dtype(precision: str) -> torch.dtype:
    import torch

    narrow = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
    return narrow.get(precision, torch.float32)


def times_s(work: Callable[[], object], device: str, *, most: int = 1000) -> list[float]:
    """Times of ``work``, called again and again for TIMING_S.

    The first call warms up and is left out, unless it alone takes as long as that: a matmul in
    bf16 may take seconds on a processor without such instructions.
    """
    first_s = _time_s(work, device)
    if first_s >= TIMING_S:
        return [first_s]
    times: list[float] = []
    while not times or (sum(times) < TIMING_S and len(times) < most):
        times.append(_time_s(work, device))
    return times


def _time_s(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        return _gpu_time_s(work)
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _gpu_time_s(work: Callable[[], object]) -> float:
    """By the GPU's own clock, from when it is idle until the work is done."""
    start, end = cuda_event(), cuda_event()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def main(argv: list[str] | None = None) -> None:
    """Entry point of the child."""
    spec: dict[str, Any] = json.loads((sys.argv[1:] if argv is None else argv)[0])
    die_with_parent(spec["parent_pid"])
    answers = claim_stdout()
    measured = measure_device(threads=spec["threads"], device=spec["device"])
    answers.write(json.dumps({"event": "calibrated", **measured}) + "\n")


if __name__ == "__main__":
    main()
