"""Operator time shares: the roofline's seconds by kind of operator, phase and shape.

The ratio of a step's time to its roofline depends on the mix of operators: a kernel that reaches a
third of a device's peak does so in every model. The shares are independent of size, so a network
that learns the factor over the roofline from them generalizes to unseen models and devices.
"""

from __future__ import annotations

from presage.features.columns.column import ON_TOP, FeatureColumn, OpSum
from presage.features.columns.row_values import LEAST_S, MISFIT_KINDS, bucket_s, misfit_s
from presage.features.graph.op_kinds import CONVOLUTIONS
from presage.features.graph.operator_buckets import OPERATOR_BUCKETS

LEAST_SHARE = 1e-3  # smallest share that matters
_BACKWARD = OpSum("count", phases=("backward",))


def _bucket_share(name: str) -> FeatureColumn:
    return FeatureColumn(
        f"time_share.{name}", "of the roofline's step time", LEAST_SHARE,
        bucket_s(name), denominator="roofline_s",
        depends_on_layout=name.startswith(CONVOLUTIONS), prior_weight=1.0,
    )  # fmt: skip


def _misfit(kind: str, shape: str) -> FeatureColumn:
    """Return the ill-shaped share over all buckets of ``kind``: per bucket it would be rare."""
    return FeatureColumn(
        f"misfit_share.{kind} {shape}", "of the roofline's step time", LEAST_SHARE,
        misfit_s(kind, shape), denominator="roofline_s",
        depends_on_layout=kind in CONVOLUTIONS, prior_weight=ON_TOP,
    )  # fmt: skip


TIME_SHARE_COLUMNS: tuple[FeatureColumn, ...] = (
    FeatureColumn("framework_release", "releases of torch since 1.0", None),
    FeatureColumn("channels_last_release", "framework_release where images are NHWC, else 0", None),
    FeatureColumn("half_precision", "1 for fp16 or bf16", None),
    FeatureColumn("tf32", "1 for tf32", None),
    FeatureColumn("fp64", "1 for fp64", None),
    FeatureColumn(
        "trains", "1 if there is a backward pass", None,
        _BACKWARD, denominator=_BACKWARD, min_denominator=1.0,
    ),
    FeatureColumn(
        "log_compute_over_memory", "mean, weighted by time", None,
        "log_ratio_s", denominator="bound_s", min_denominator=LEAST_S,
    ),
    FeatureColumn(
        "loading_share", "loading of samples, over the roofline's step time", LEAST_SHARE,
        "loading_s", denominator="roofline_s", prior_weight=ON_TOP,
    ),
    *map(_bucket_share, OPERATOR_BUCKETS),
    *(_misfit(*each) for each in MISFIT_KINDS),
)  # fmt: skip
