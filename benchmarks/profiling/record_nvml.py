"""Record what NVML says while a job runs on a GPU, for tests that have none.

    python -m benchmarks.profiling.record_nvml tests/pipelines/profiling/nvml/h100.json

The recording holds every question of the sampler and its answer, errors too, with its time. The
host's name is not in it, nor another user's process: ids other than the job's are counted through.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml

from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice
from presage.pipelines.profiling.sampling.nvml_readings import VALUE_FIELDS
from presage.pipelines.profiling.sampling.nvml_sampler import NvmlSampler

SINCE = ("nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization")  # their last argument varies

JOB = """
import torch
a = torch.rand(4096, 4096, device="cuda")
out = torch.empty_like(a)
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(20):
        torch.matmul(a, a, out=out)
    torch.cuda.synchronize()
"""


class Recorder:
    """pynvml that writes down what it is asked and answers."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._began_s = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        if not name.startswith("nvml") or isinstance(found, int):
            return found

        def ask(*arguments: Any) -> Any:
            self._began_s = self._began_s or time.monotonic()
            call: dict[str, Any] = {
                "at_s": round(time.monotonic() - self._began_s, 4),
                "call": name,
                "arguments": _plain(name, arguments),
            }
            try:
                answer = found(*arguments)
            except pynvml.NVMLError as error:
                self.calls.append(call | {"error": error.value})
                raise
            self._note(call, answer)
            return answer

        return ask

    def _note(self, call: dict[str, Any], answer: Any) -> None:
        if call["call"] == "nvmlDeviceGetSamples":
            answer = answer[0], [_sample(answer[0], sample) for sample in answer[1]]
        if call["call"] != "nvmlGpmMetricsGet":
            self.calls.append(call | {"answer": _as_json(answer)})
            return
        for metric in answer.metrics[: answer.numMetrics]:
            value = {"value": float(metric.value), "nvmlReturn": int(metric.nvmlReturn)}
            self.calls.append(call | {"arguments": [int(metric.metricId)], "answer": value})


def _plain(name: str, arguments: tuple[Any, ...]) -> list[int]:
    """Return the arguments that distinguish calls: no handles, no times."""
    return [a for a in arguments if isinstance(a, int)][: -1 if name in SINCE else None]


def _sample(kind: int, sample: Any) -> dict[str, Any]:
    """Return a sample with the one field of its union that holds the value."""
    field = VALUE_FIELDS[kind]
    return {
        "timeStamp": sample.timeStamp,
        "sampleValue": {field: getattr(sample.sampleValue, field)},
    }


def _as_json(answer: Any) -> Any:
    if answer is None or isinstance(answer, int | float | str | dict):
        return answer
    if isinstance(answer, list | tuple):
        return [_as_json(item) for item in answer]
    if isinstance(answer, ctypes.Structure):
        return {field[0]: _as_json(getattr(answer, field[0])) for field in answer._fields_}
    if fields := getattr(answer, "__dict__", None):
        return {key: _as_json(value) for key, value in fields.items()}
    return answer.value if isinstance(answer, ctypes._SimpleCData) else "handle"


def _rename_processes(calls: list[dict[str, Any]], member: int) -> None:
    """Number processes: the job is process 1, others are 2, 3, ... in order of appearance."""
    names = {member: 1}
    for call in calls:
        for item in call["answer"] if isinstance(call.get("answer"), list) else ():
            if isinstance(item, dict) and item.get("pid"):
                item["pid"] = names.setdefault(item["pid"], len(names) + 1)


def record(window_s: float) -> dict[str, Any]:
    """Record a window of the sampler while a job multiplies matrices."""
    recorder = Recorder()
    gpu = NvmlDevice()
    before = gpu.memory_used_bytes()
    job = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        if job.stdout.readline().strip() != "ready":
            sys.exit("the job did not start; see what torch says with `presage doctor`")
        time.sleep(1.0)
        sampler = NvmlSampler(recorder, memory_before_bytes=before)
        sampler.start([job.pid])
        time.sleep(window_s)
        sample = sampler.stop()
    finally:
        job.kill()
        job.wait()
    print(sample)
    _rename_processes(recorder.calls, job.pid)
    return {
        "label": "real: recorded by benchmarks/profiling/record_nvml.py",
        "gpu": gpu.query("nvmlDeviceGetName"),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "member": 1,
        "memory_before_bytes": before,
        "window_s": window_s,
        "calls": recorder.calls,
    }


def main() -> None:
    """Write one recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--window-s", type=float, default=1.5)
    args = parser.parse_args()
    recording = record(args.window_s)
    # A call a line: a change of the format shows as one.
    calls = ",\n  ".join(json.dumps(call) for call in recording.pop("calls"))
    head = json.dumps(recording, indent=1)[:-2]
    args.target.write_text(f'{head},\n "calls": [\n  {calls}\n ]\n}}\n')


if __name__ == "__main__":
    main()
