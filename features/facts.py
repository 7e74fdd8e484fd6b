"""Sums over a placement's operators that several columns need, and what a column is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from presage.features.cells import cell_of
from presage.features.kernel_memory import kernel_bytes
from presage.features.placement import Placement
from presage.features.roofline import Roofline, roofline

ON_TOP = 0.05  # of a share that its prior counts elsewhere, or not at all


class Facts:
    """What is summed once per placement."""

    def __init__(self, placement: Placement) -> None:
        self.job = placement.job
        self.device = placement.device
        self.share = placement.share
        self.stats = placement.job.op_stats
        self.roofline: Roofline = roofline(placement.job, placement.device, placement.share)
        self.kernel_bytes = kernel_bytes(self.stats, self.job.job.precision)
        # The sum over all holders: what the memory predictor learns the factor over.
        self.memory_prior_bytes = (
            self.device.context_bytes + self.job.peak_live_bytes + sum(self.kernel_bytes.values())
        )
        self.flops = self.bytes_moved = 0.0
        self.count = 0
        self.largest_input = 0
        self.unknown_ops = 0
        self.kind_input_max: dict[str, int] = {}
        self.kind_bytes: dict[str, float] = {}
        self.kind_flops: dict[str, float] = {}
        self.phase_flops: dict[str, float] = {}
        self.cell_s: dict[str, float] = {}
        self.shape_s: dict[tuple[str, str], float] = {}
        for row, (compute_s, memory_s) in zip(self.stats, self.roofline.row_times, strict=True):
            cell = cell_of(row, compute_s, memory_s)
            row_s = max(compute_s, memory_s)
            self.cell_s[cell] = self.cell_s.get(cell, 0.0) + row_s
            shape = (row.kind, row.shape)
            self.shape_s[shape] = self.shape_s.get(shape, 0.0) + row_s
            self.flops += row.flops
            self.bytes_moved += row.bytes_moved
            self.count += row.count
            self.largest_input = max(self.largest_input, row.input_elements_max)
            kind = row.kind
            self.unknown_ops += row.count * (kind == "Other")
            self.kind_input_max[kind] = max(
                self.kind_input_max.get(kind, 0), row.input_elements_max
            )
            self.kind_bytes[kind] = self.kind_bytes.get(kind, 0.0) + row.bytes_moved
            self.kind_flops[kind] = self.kind_flops.get(kind, 0.0) + row.flops
            self.phase_flops[row.phase] = self.phase_flops.get(row.phase, 0.0) + row.flops


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """A number describing a placement.

    ``log_offset`` is None for a column used as it is; otherwise the model sees
    ``log(value + log_offset)``, the offset being the smallest value that matters. One that is
    ``by_layout``, on which images' layout tells, is read once more where they are channels-last.

    ``part`` says of a share of a prior how much of it the prior counts: 1 of a part of its sum,
    little of what comes on top of it; None of what is no such share.
    """

    name: str
    meaning: str
    log_offset: float | None
    compute: Callable[[Facts], float]
    by_layout: bool = False
    part: float | None = None
