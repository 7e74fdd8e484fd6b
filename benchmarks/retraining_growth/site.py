"""A generated site: kinds of jobs and devices that were varied from measured ones.

Every kind of job is a measured job with another batch size, and every device a data sheet of the
catalogue with a hidden speed of its own. The step time of a job on a device is its roofline time
there, times the measured ratio of step and roofline time of the job it was varied from, times the
hidden speed. Memory is varied in the same way from its prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Device, catalogue
from presage.features.job.batch_scaling import with_batch_size
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.tables.campaign import read_campaign
from presage.system.arrays import Array

ROOFLINE, MEMORY_PRIOR = map(columns("full").index, ("roofline_s", "memory_prior_bytes"))
LEAST_SCALE, MOST_SCALE = -2.0, 3.0  # powers of two of the measured batch size
JOB_SPREAD, DEVICE_SPREAD = 0.1, 0.15  # standard deviations of logarithms
VERSIONS = ("2.4.0", "2.7.1", "2.11.0", "2.13.0")
_AT_ONCE = 4096


@dataclass(frozen=True)
class Site:
    """Kinds of jobs and devices, and what is measured of them.

    Attributes
    ----------
    jobs : list of JobFeatures
    devices : list of Device
    step_ratio, memory_ratio, utilization, power_w : ndarray of shape (jobs,)
        Measured step time over roofline time, memory over its prior, utilization in [0, 1] and
        watts; NaN if it was not measured.
    speed : ndarray of shape (devices,)
        Factor on step times that no data sheet shows.
    """

    jobs: list[JobFeatures]
    devices: list[Device]
    step_ratio: Array
    memory_ratio: Array
    utilization: Array
    power_w: Array
    speed: Array

    def priors(self, pairs: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
        """Return roofline times and memory priors of jobs on devices, shape (pairs,)."""
        out = np.empty((len(pairs), 2))
        for start in range(0, len(pairs), _AT_ONCE):
            part = pairs[start : start + _AT_ONCE]
            placed = [Placement(self.jobs[job], self.devices[on]) for job, on in part]
            out[start : start + _AT_ONCE] = matrix(placed)[:, [ROOFLINE, MEMORY_PRIOR]]
        return out[:, 0], out[:, 1]


def make_site(campaigns: Sequence[Path], *, jobs: int, devices: int, seed: int) -> Site:
    """Return a site of as many kinds of jobs and devices, varied from measured campaigns."""
    rng = np.random.default_rng(seed)
    measured = [row for folder in campaigns for row in _measured(folder)]
    chosen = rng.permutation(np.arange(jobs) % len(measured))
    kinds = [_varied(measured[base][0], rng) for base in chosen]
    ratios = np.array([row[1:] for row in measured])[chosen]
    sheets = [catalogue()[kind] for kind in sorted(catalogue())]
    on = np.sort(rng.choice(len(sheets), devices, replace=False))
    return Site(
        kinds,
        [sheets[i] for i in rng.permutation(on)],
        ratios[:, 0] * rng.lognormal(0, JOB_SPREAD, jobs),
        ratios[:, 1] * rng.lognormal(0, JOB_SPREAD / 2, jobs),
        ratios[:, 2],
        ratios[:, 3],
        rng.lognormal(0, DEVICE_SPREAD, devices),
    )


def _measured(folder: Path) -> list[tuple[JobFeatures, float, float, float, float]]:
    """Return the measured jobs of a campaign, with the ratios of a :class:`Site`."""
    campaign = read_campaign(folder)
    ran = campaign.executions
    ran = ran[(ran["failure"] == "") & ran["step_time_median_s"].notna()]
    rows: list[dict[Any, Any]] = ran.to_dict("records")
    priors = matrix([campaign.placement(row) for row in rows])[:, [ROOFLINE, MEMORY_PRIOR]]
    return [
        (
            campaign.jobs[row["job_id"]],
            row["step_time_median_s"] / roofline_s,
            _number(row["memory_peak_bytes"]) / memory_bytes,
            _number(row["compute_utilization"]),
            _number(row["power_w"]),
        )
        for row, (roofline_s, memory_bytes) in zip(rows, priors, strict=True)
    ]


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _varied(features: JobFeatures, rng: np.random.Generator) -> JobFeatures:
    """Return a job with another batch size and framework version, without its name."""
    scale = 2.0 ** rng.uniform(LEAST_SCALE, MOST_SCALE)
    batch = max(1, round(features.job.batch_size * scale * rng.uniform(0.9, 1.1)))
    varied = with_batch_size(features, batch)
    version = VERSIONS[int(rng.integers(len(VERSIONS)))]
    job = replace(varied.job, job_id="", graph_digest="", framework_version=version)
    return replace(varied, job=job)
