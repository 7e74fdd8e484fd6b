"""Calibration of this machine's device: ``python -m presage.pipelines.profiling.calibrate``.

Speeds are the best of several tries, so a disturbed try has no effect.
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
from presage.system.processes.child_process import Child, claim_stdout, die_with_parent

if TYPE_CHECKING:
    import torch

MATMUL_SIDE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "fp16", "bf16", "fp64")}
TIMING_S = 0.5  # time per peak
TINY_OPS = 200


def calibrate(
    device: Device,
    *,
    threads: int,
    timeout_s: float = 60.0,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Device:
    """Return ``device`` with measured speeds, overhead and context memory, from a child process.

    Raises
    ------
    ChildFailure
        The child died or did not respond.
    """
    spec = {"threads": threads, "device": "cuda" if is_gpu(device) else "cpu"}
    with Child(__name__, spec, threads=threads, environment=environment) as child:
        measured = child.read(until_s=time.monotonic() + timeout_s)
    measured.pop("event")
    return dataclasses.replace(device, **measured)


def measure_device(*, threads: int, device: str) -> dict[str, Any]:
    """Measure the fields of :class:`Device` in this process."""
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
    """Return the memory of a process after one step: resident, or what it added to the GPU."""
    if device == "cpu":
        return peak_resident_bytes()
    import torch

    torch.cuda.synchronize()
    after_bytes = _gpu_memory_used_bytes()
    if before_bytes is not None and after_bytes is not None and after_bytes > before_bytes:
        return after_bytes - before_bytes
    # Without figures per process, use all used memory: too much if other processes use the GPU.
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return total_bytes - free_bytes


def _gpu_memory_used_bytes() -> int | None:
    """Return the driver's figure: asking CUDA would create the context that is measured."""
    import pynvml

    with suppress(pynvml.NVMLError), open_gpu() as (nvml, gpu):
        return int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
    return None


def _op_overhead_s(device: str) -> float:
    """Return the least time of an operator on one element; on a GPU, of its launch."""
    import torch

    one = torch.ones(1)

    def many() -> None:
        for _ in range(TINY_OPS):
            one.add_(1)

    return min(times_s(many, device, most=200)) / TINY_OPS


def _memory_bandwidth(device: str) -> float:
    """Return the bytes per second of a copy, read and written."""
    import torch

    source = torch.ones(COPY_BYTES[device] // 4)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES[device] / min(times_s(lambda: target.copy_(source), device))


def _peaks(device: str) -> dict[str, float]:
    """Return FLOP/s by precision, for the precisions that the device's libraries support."""
    peaks = {"fp32": _peak_flops("fp32", device)}
    for precision in PRECISIONS[device]:
        with suppress(RuntimeError):
            peaks[precision] = peaks.get(precision) or _peak_flops(precision, device)
    return peaks


def _peak_flops(precision: str, device: str) -> float:
    """Return the FLOP/s of a square matrix product."""
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
    """Return the times of repeated calls of ``work`` during TIMING_S.

    The first call warms up and is dropped, unless it takes that long by itself: a bf16 product may
    take seconds on a processor without such instructions.
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
    """Return the time on the GPU's clock, from idle until the work is done."""
    start, end = cuda_event(), cuda_event()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def main(argv: list[str] | None = None) -> None:
    """Run the child process."""
    spec: dict[str, Any] = json.loads((sys.argv[1:] if argv is None else argv)[0])
    die_with_parent(spec["parent_pid"])
    responses = claim_stdout()
    measured = measure_device(threads=spec["threads"], device=spec["device"])
    responses.write(json.dumps({"event": "calibrated", **measured}) + "\n")


if __name__ == "__main__":
    main()
