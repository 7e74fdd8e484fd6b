"""Definition of a feature column: a quantity, or the ratio of two quantities."""

from __future__ import annotations

from dataclasses import dataclass

from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS

ON_TOP = 0.05  # for a share that the prior counts elsewhere or not at all
ONE = "one"


@dataclass(frozen=True, slots=True)
class OpSum:
    """Sum over a job's operators of some kinds and phases.

    ``value`` is "flops", "bytes_moved" or "count".
    """

    value: str
    kinds: tuple[str, ...] = OP_KINDS
    phases: tuple[str, ...] = PHASES


@dataclass(frozen=True, slots=True)
class OpMax:
    """Maximum over a job's operators of some kinds and phases; 0 without such operators."""

    value: str
    kinds: tuple[str, ...] = OP_KINDS
    phases: tuple[str, ...] = PHASES


# Names are those of `job_values.NAMED`, `device_table.DEVICE_VALUES` or `row_values.ROW_VALUES`.
Quantity = str | OpSum | OpMax


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """A number that describes a placement: ``numerator / max(denominator, min_denominator)``.

    ``numerator`` is None for the quantity with the column's own name.

    ``log_offset`` is None for a column that is used unchanged; otherwise the model sees
    ``log(value + log_offset)``, where the offset is the smallest value that matters. A column
    with ``depends_on_layout`` has a second input that holds its value for channels-last jobs.

    ``prior_weight`` is the fraction of a share that its prior counts: 1 for a component of the
    prior's sum, a small number for a share on top of the sum, None for other columns.
    """

    name: str
    meaning: str
    log_offset: float | None
    numerator: Quantity | None = None
    denominator: Quantity = ONE
    min_denominator: float = 0.0
    depends_on_layout: bool = False
    prior_weight: float | None = None
