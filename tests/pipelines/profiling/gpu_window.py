"""One window of the sampler over a driver with responses chosen by the test."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pynvml

from presage.pipelines.profiling.sampling.device_sample import DeviceSample
from presage.pipelines.profiling.sampling.nvml_sampler import NvmlSampler
from tests.pipelines.profiling.recorded_nvml import RecordedNvml, responses

GIB = 2**30
MEMBER, FOREIGN = 4_000_007, 4_000_008  # process ids that this machine does not have

WHERE = responses(Init=None, DeviceGetHandleByIndex="handle")
MEMORY = responses(DeviceGetMemoryInfo={"total": 80 * GIB, "used": 3 * GIB, "free": 77 * GIB})


def failing(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


def processes(**bytes_by_name: int | None) -> list[dict[str, int | None]]:
    pids = {"member": MEMBER, "foreign": FOREIGN}
    return [{"pid": pids[name], "usedGpuMemory": size} for name, size in bytes_by_name.items()]


def load(pid: int, percent: int, at_us: int = 9) -> dict[str, int]:
    return {"pid": pid, "timeStamp": at_us, "smUtil": percent}


def sample(
    calls: Sequence[Mapping[str, Any]],
    pids: Collection[int] = (MEMBER,),
    *,
    window_s: float = 0.15,
    **options: Any,
) -> DeviceSample:
    sampler = NvmlSampler(RecordedNvml(calls), period_s=0.005, **options)
    sampler.start(pids)
    time.sleep(window_s)
    return sampler.stop()


def busy_with(*loads: dict[str, int], **bytes_by_name: int | None):
    return (
        *WHERE,
        *MEMORY,
        *responses(
            DeviceGetUtilizationRates={"gpu": 60, "memory": 1},
            DeviceGetComputeRunningProcesses=processes(**bytes_by_name),
            DeviceGetProcessUtilization=[],
        ),
        *responses(at_s=0.1, DeviceGetProcessUtilization=list(loads)),
    )
