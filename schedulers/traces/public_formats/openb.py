"""Format of Alibaba's openb trace (cluster-trace-gpu-v2023): one pod a row, fractional requests.

``name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,
scheduled_time``, in seconds. A pod is submitted at its creation and runs from its scheduling to its
deletion: its queuing time is a result of the traced scheduler. Only the QoS class LS is
latency-sensitive.

A share of a device includes the same share of its memory, as in the trace authors' simulator.

References
----------
Weng, Yang, Yu, Wang, Tang, Yang, Zhang: Beware of Fragmentation: Scheduling GPU-Sharing Workloads
with Fragmentation Gradient Descent, USENIX ATC 2023.
"""

from __future__ import annotations

from presage.features.device.device import find_device
from presage.schedulers.traces.row import Row, parse_seconds
from presage.schedulers.traces.trace import Entry

COLUMNS = (
    "name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip
_MIB = 2**20
# Kind in the catalogue by the name in the trace. G2 and G3 are undisclosed: their memory is that in
# the authors' simulator.
KINDS = {
    "P100": "p100", "T4": "t4", "V100M16": "v100-16gb", "V100M32": "v100", "A10": "a10",
    "G2": "g2", "G3": "g3",
}  # fmt: skip
_UNDISCLOSED = {"g2": 20_000 * _MIB, "g3": 30_000 * _MIB}


def parse_entry(row: Row) -> Entry | str:
    """Return the job of a pod, or the reason to skip it: it has no GPUs or was never scheduled."""
    gpus = row.count("num_gpu")
    if not gpus:
        return "without GPUs"
    if not row.cells.get("scheduled_time"):
        return "never scheduled"
    kinds = row.read("gpu_spec", _kinds, f"some of {'|'.join(KINDS)}")
    created_s, scheduled_s = row.seconds("creation_time"), row.seconds("scheduled_time")
    deleted_s = row.read(
        "deletion_time",
        lambda text: _parse_end(text, scheduled_s),
        "a time after its start, at most 1e12",
    )
    return Entry(
        row.where,
        row.text("name"),
        created_s,
        deleted_s - scheduled_s,
        {
            "gpus": gpus,
            "kinds": kinds,
            "compute_milli": row.count("gpu_milli"),
            "latency_sensitive": row.text("qos") == "LS",
        },
    )


def memory_bytes(kind: str) -> int:
    """Return the memory of a device of the traced clusters."""
    return _UNDISCLOSED.get(kind) or find_device(kind).memory_bytes


def _kinds(text: str) -> tuple[str, ...]:
    names = dict.fromkeys(filter(None, text.split("|")))
    if not names.keys() <= KINDS.keys():
        raise ValueError(text)
    return tuple(KINDS[name] for name in names)


def _parse_end(text: str, start_s: float) -> float:
    value = parse_seconds(text)
    if value < start_s:
        raise ValueError(text)
    return value
