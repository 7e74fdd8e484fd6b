"""Alibaba's openb (cluster-trace-gpu-v2023): pods with fractional requests, a pod a row.

``name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,
scheduled_time``, in seconds. A pod is submitted when it is created and runs from when it was
scheduled to its deletion: what it waited was the old scheduler's doing. Of the classes of quality
only LS is latency-sensitive.

A part of a device is a part of its memory too, as in the simulator of the trace's authors.

References
----------
Weng, Yang, Yu, Wang, Tang, Yang, Zhang: Beware of Fragmentation: Scheduling GPU-Sharing Workloads
with Fragmentation Gradient Descent, USENIX ATC 2023.
"""

from __future__ import annotations

from presage.features.device.device import find_device
from presage.schedulers.traces.row import Row, seconds
from presage.schedulers.traces.trace import Entry

COLUMNS = (
    "name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip
_MIB = 2**20
# Kind in our catalogue by the name in the trace. G2 and G3 are undisclosed: their memory is what
# the authors' simulator takes.
KINDS = {
    "P100": "p100", "T4": "t4", "V100M16": "v100-16gb", "V100M32": "v100", "A10": "a10",
    "G2": "g2", "G3": "g3",
}  # fmt: skip
_UNDISCLOSED = {"g2": 20_000 * _MIB, "g3": 30_000 * _MIB}


def entry(row: Row) -> Entry | str:
    """A pod that asks for devices and was given them."""
    gpus = row.whole("num_gpu")
    if not gpus:
        return "without GPUs"
    if not row.cells.get("scheduled_time"):
        return "never scheduled"
    kinds = row.read("gpu_spec", _kinds, f"some of {'|'.join(KINDS)}")
    created_s, scheduled_s = row.seconds("creation_time"), row.seconds("scheduled_time")
    deleted_s = row.read(
        "deletion_time", lambda text: _after(text, scheduled_s), "after its start, at most 1e12"
    )
    return Entry(
        row.where,
        row.text("name"),
        created_s,
        deleted_s - scheduled_s,
        {
            "gpus": gpus,
            "kinds": kinds,
            "compute_milli": row.whole("gpu_milli"),
            "latency_sensitive": row.text("qos") == "LS",
        },
    )


def memory_bytes(kind: str) -> int:
    """Of a device of the trace's clusters."""
    return _UNDISCLOSED.get(kind) or find_device(kind).memory_bytes


def _kinds(text: str) -> tuple[str, ...]:
    names = dict.fromkeys(filter(None, text.split("|")))
    if not names.keys() <= KINDS.keys():
        raise ValueError(text)
    return tuple(KINDS[name] for name in names)


def _after(text: str, start_s: float) -> float:
    value = seconds(text)
    if value < start_s:
        raise ValueError(text)
    return value
