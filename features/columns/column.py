"""What a column of the feature matrix is: a quantity, or the share that it is of another one."""

from __future__ import annotations

from dataclasses import dataclass

from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS

ON_TOP = 0.05  # of a share that its prior counts elsewhere, or not at all
ONE = "one"


@dataclass(frozen=True, slots=True)
class OpSum:
    """Sum over a job's operators of some kinds and phases.

    ``of`` is "flops", "bytes_moved" or "count".
    """

    of: str
    kinds: tuple[str, ...] = OP_KINDS
    phases: tuple[str, ...] = PHASES


@dataclass(frozen=True, slots=True)
class OpMax:
    """Largest among a job's operators of some kinds and phases; 0 where it has none."""

    of: str
    kinds: tuple[str, ...] = OP_KINDS
    phases: tuple[str, ...] = PHASES


# By name: one of `job_values.NAMED`, `device_table.DEVICE_VALUES` or `row_values.ROW_VALUES`.
Quantity = str | OpSum | OpMax


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """A number describing a placement: ``of / max(over, least_over)``.

    ``of`` is None for the quantity of the column's own name.

    ``log_offset`` is None for a column used as it is; otherwise the model sees
    ``log(value + log_offset)``, the offset being the smallest value that matters. One that is
    ``by_layout``, on which images' layout tells, is read once more where they are channels-last.

    ``part`` says of a share of a prior how much of it the prior counts: 1 of a part of its sum,
    little of what comes on top of it; None of what is no such share.
    """

    name: str
    meaning: str
    log_offset: float | None
    of: Quantity | None = None
    over: Quantity = ONE
    least_over: float = 0.0
    by_layout: bool = False
    part: float | None = None
