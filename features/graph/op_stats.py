"""Operator statistics: a graph summed into a few dozen rows, small enough for a request.

The roofline time of a job is a sum over operators of the larger of a compute time and a memory
time; which one is larger depends on the device. Rows are therefore grouped by octave of
arithmetic intensity: within an octave the sum of maxima and the maximum of sums differ little, so
a server can compute the roofline on any device without the graph.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from presage.errors import InvalidJobError
from presage.features.graph.op_graph import MAX_COUNT, PHASES, OpNode
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.shape_class import SHAPES, classify_shapes

# Intensities beyond these limits are purely memory-bound or purely compute-bound on all devices:
# ridge points lie between 2**1 (a CPU core) and 2**9 (an H200 in bf16).
MIN_OCTAVE, MAX_OCTAVE = -4, 12


@dataclass(frozen=True, slots=True)
class OpStats:
    """Sums over the operators of one kind, phase, shape class and octave of FLOPs per byte.

    ``parameters`` counts the trainable elements that operators read; elements with two readers
    count twice. ``shape`` is one of the kind's
    :data:`~presage.features.graph.shape_class.SHAPES`, or "" if unknown.
    """

    kind: str
    phase: str
    intensity_octave: int
    count: int
    input_elements_max: int
    input_elements: int
    output_elements: int
    flops: float
    bytes_moved: float
    parameters: int = 0
    shape: str = ""

    def __post_init__(self) -> None:
        if self.kind not in OP_KINDS:
            raise InvalidJobError(
                f"operator kind {self.kind!r} is not in the op table; "
                f"send 'Other' or one of {', '.join(OP_KINDS)}"
            )
        if self.phase not in PHASES:
            raise InvalidJobError(
                f"operator phase {self.phase!r} is not known; use one of {', '.join(PHASES)}"
            )
        if self.shape and self.shape not in SHAPES.get(self.kind, ()):
            allowed = " or ".join(map(repr, ("", *SHAPES.get(self.kind, ()))))
            raise InvalidJobError(
                f"operator statistics of {self.kind}: shape={self.shape!r}, must be {allowed}; "
                "leave it out if it is unknown"
            )
        if self.count < 1:
            raise InvalidJobError(
                f"operator statistics of {self.kind}: count={self.count}, must be >= 1; "
                "leave the row out if the job has no such operator"
            )
        for field, (least, most) in OP_BOUNDS.items():
            value = getattr(self, field)
            if not least <= value <= most:  # false for nan; compares integers of any size
                shown = value if isinstance(value, float) or abs(value) <= most else "too large"
                raise InvalidJobError(
                    f"operator statistics of {self.kind}: {field}={shown}, "
                    "must be a finite number >= 0"
                )


OP_BOUNDS: Mapping[str, tuple[int, float]] = {  # least and greatest valid value of each number
    "count": (1, MAX_COUNT),
    "input_elements_max": (0, MAX_COUNT),
    "input_elements": (0, MAX_COUNT),
    "output_elements": (0, MAX_COUNT),
    "flops": (0, sys.float_info.max),
    "bytes_moved": (0, sys.float_info.max),
    "parameters": (0, MAX_COUNT),
}


def intensity_octave(flops: float, bytes_moved: float) -> int:
    """Return the octave (floor of log2) of FLOPs per byte, within [MIN_OCTAVE, MAX_OCTAVE]."""
    if flops <= 0:
        return MIN_OCTAVE
    if bytes_moved <= 0:
        return MAX_OCTAVE
    return min(MAX_OCTAVE, max(MIN_OCTAVE, math.floor(math.log2(flops / bytes_moved))))


def summarize(nodes: Iterable[OpNode]) -> tuple[OpStats, ...]:
    """Sum operator nodes into statistics, sorted by kind, phase, octave and shape."""
    nodes = tuple(nodes)
    groups: dict[tuple[str, str, int, str], list[OpNode]] = {}
    for node, shape in zip(nodes, classify_shapes(nodes), strict=True):
        octave = intensity_octave(node.flops, node.bytes_moved)
        groups.setdefault((node.kind, node.phase, octave, shape), []).append(node)
    return tuple(
        OpStats(
            kind=kind,
            phase=phase,
            intensity_octave=octave,
            count=sum(node.count for node in members),
            input_elements_max=max(node.input_elements for node in members),
            input_elements=sum(node.count * node.input_elements for node in members),
            output_elements=sum(node.count * node.output_elements for node in members),
            flops=float(sum(node.count * node.flops for node in members)),
            bytes_moved=float(sum(node.count * node.bytes_moved for node in members)),
            parameters=sum(node.count * node.parameters for node in members),
            shape=shape,
        )
        for (kind, phase, octave, shape), members in sorted(groups.items())
    )
