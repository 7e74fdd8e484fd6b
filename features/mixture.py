"""What a step's time is made of: the roofline's seconds by kind of operator, phase and shape.

How far a step is from its roofline is a matter of what it is mixed from: a kernel that runs at a
third of a device's peak does so in every model. The shares have no size, so that a network which
learns from them the factor over the roofline carries to models, and devices, it has not seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from presage.features.cells import CELLS, LEAST_S
from presage.features.facts import ON_TOP, Facts, FeatureColumn
from presage.features.job import JobFeatures
from presage.features.op_kinds import CONVOLUTIONS
from presage.features.op_shape import MISFITS, PRODUCTS

LEAST_SHARE = 1e-3  # of a step's time that matters
# About what a sample and a byte of it cost where a step loads its data.
SAMPLE_S, BYTE_S = 5e-6, 1e-9
RELEASES_OF_TORCH_1 = 14  # 1.13 was followed by 2.0
NEWEST_RELEASE = 23.0  # 2.9's, taken where none is told


def framework_release(version: str) -> float:
    """Releases of torch since 1.0: "1.12" is 12, "2.1" is 15; 2.0 follows 1.13."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return NEWEST_RELEASE
    return float(int(match[2]) + RELEASES_OF_TORCH_1 * (int(match[1]) - 1))


def _cell(name: str) -> FeatureColumn:
    return FeatureColumn(
        f"time_share.{name}", "of the roofline's step time", LEAST_SHARE,
        lambda facts: facts.cell_s.get(name, 0.0) / facts.roofline.step_s,
        by_layout=name.startswith(CONVOLUTIONS), part=1.0,
    )  # fmt: skip


def _misfit(kind: str, shape: str) -> FeatureColumn:
    """Of the cells of ``kind`` together, what is ill shaped: crossed with them it would be rare."""
    return FeatureColumn(
        f"misfit_share.{kind} {shape}", "of the roofline's step time", LEAST_SHARE,
        lambda facts: facts.shape_s.get((kind, shape), 0.0) / facts.roofline.step_s,
        by_layout=kind in CONVOLUTIONS, part=ON_TOP,
    )  # fmt: skip


def _release(facts: Facts) -> float:
    return framework_release(facts.job.job.framework_version)


def loading_s(job: JobFeatures) -> float:
    """About what a step's samples take to load."""
    loaded_s = SAMPLE_S * job.job.batch_size + BYTE_S * job.memory.batch_bytes
    return loaded_s if job.job.loads_data else 0.0


def _log_ratio(facts: Facts) -> float:
    """Mean of the operators' logarithm of compute over memory time, by their share."""
    total = 0.0
    for compute_s, memory_s in facts.roofline.row_times:
        ratio = (compute_s + LEAST_S) / (memory_s + LEAST_S)
        total += max(compute_s, memory_s) * math.log(ratio)
    return total / max(facts.roofline.bound_s, LEAST_S)


def _is_precision(*names: str) -> Callable[[Facts], float]:
    return lambda facts: float(facts.job.job.precision in names)


MIXTURE: tuple[FeatureColumn, ...] = (
    FeatureColumn("framework_release", "releases of torch since 1.0", None, _release),
    FeatureColumn(
        "channels_last_release", "framework_release where images are NHWC, else 0", None,
        lambda f: _release(f) * (f.job.job.memory_format == "channels-last"),
    ),
    FeatureColumn("half_precision", "1 for fp16 or bf16", None, _is_precision("fp16", "bf16")),
    FeatureColumn("tf32", "1 for tf32", None, _is_precision("tf32")),
    FeatureColumn("fp64", "1 for fp64", None, _is_precision("fp64")),
    FeatureColumn("trains", "1 if there is a backward pass", None, lambda f: float(f.job.trains)),
    FeatureColumn("log_compute_over_memory", "mean, by share of time", None, _log_ratio),
    FeatureColumn(
        "loading_share", "of loading samples, beside the roofline's step time", LEAST_SHARE,
        lambda f: loading_s(f.job) / f.roofline.step_s, part=ON_TOP,
    ),
    *map(_cell, CELLS),
    *(_misfit(kind, shape) for kind in PRODUCTS for shape in MISFITS),
)  # fmt: skip
