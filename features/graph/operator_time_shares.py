"""What a step's time is made of: the roofline's seconds by kind of operator, phase and shape.

How far a step is from its roofline is a matter of what it is mixed from: a kernel that runs at a
third of a device's peak does so in every model. The shares have no size, so that a network which
learns from them the factor over the roofline carries to models, and devices, it has not seen.
"""

from __future__ import annotations

from presage.features.columns.column import ON_TOP, FeatureColumn, OpSum
from presage.features.columns.row_values import LEAST_S, MISFIT_KINDS, cell_s, misfit_s
from presage.features.graph.op_kinds import CONVOLUTIONS
from presage.features.graph.operator_buckets import CELLS

LEAST_SHARE = 1e-3  # of a step's time that matters
_BACKWARD = OpSum("count", phases=("backward",))


def _cell(name: str) -> FeatureColumn:
    return FeatureColumn(
        f"time_share.{name}", "of the roofline's step time", LEAST_SHARE,
        cell_s(name), over="roofline_s", by_layout=name.startswith(CONVOLUTIONS), part=1.0,
    )  # fmt: skip


def _misfit(kind: str, shape: str) -> FeatureColumn:
    """Of the cells of ``kind`` together, what is ill shaped: crossed with them it would be rare."""
    return FeatureColumn(
        f"misfit_share.{kind} {shape}", "of the roofline's step time", LEAST_SHARE,
        misfit_s(kind, shape), over="roofline_s", by_layout=kind in CONVOLUTIONS, part=ON_TOP,
    )  # fmt: skip


MIXTURE: tuple[FeatureColumn, ...] = (
    FeatureColumn("framework_release", "releases of torch since 1.0", None),
    FeatureColumn("channels_last_release", "framework_release where images are NHWC, else 0", None),
    FeatureColumn("half_precision", "1 for fp16 or bf16", None),
    FeatureColumn("tf32", "1 for tf32", None),
    FeatureColumn("fp64", "1 for fp64", None),
    FeatureColumn(
        "trains", "1 if there is a backward pass", None, _BACKWARD, over=_BACKWARD, least_over=1.0
    ),
    FeatureColumn(
        "log_compute_over_memory", "mean, by share of time", None,
        "log_ratio_s", over="bound_s", least_over=LEAST_S,
    ),
    FeatureColumn(
        "loading_share", "of loading samples, beside the roofline's step time", LEAST_SHARE,
        "loading_s", over="roofline_s", part=ON_TOP,
    ),
    *map(_cell, CELLS),
    *(_misfit(*each) for each in MISFIT_KINDS),
)  # fmt: skip
