"""Names of the states of jobs, as users read and give them."""

from __future__ import annotations

from presage.schedulers.v1 import cluster_pb2 as pb

HELD = "held"  # a waiting job that does not start until it is released
STATES = (
    HELD,
    *(
        value.name.lower().replace("_", "-")
        for value in pb.Phase.DESCRIPTOR.values
        if value.number != pb.PHASE_UNSPECIFIED
    ),
)


def phase_name(phase: int) -> str:
    """Return the name of a phase: "running"; "phase 99" if a later version has added it."""
    value = pb.Phase.DESCRIPTOR.values_by_number.get(phase)
    return f"phase {phase}" if value is None else value.name.lower().replace("_", "-")


def state_name(row: pb.JobStatus) -> str:
    """Return the name of the state of a job."""
    return HELD if row.held and row.phase == pb.WAITING else phase_name(row.phase)
