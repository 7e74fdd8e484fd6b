"""Forecasts of the shipped release for an H200, written to docs/benchmarks/hopper.md.

Run ``python -m benchmarks.predictors.hopper``. The measurements in ``data/profiles/h200`` are part
of no training set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.markdown import write_page
from presage.features.colocation import Colocation
from presage.features.device.device import Device, Share
from presage.features.forecast import Forecast
from presage.features.placement import Placement
from presage.features.tables.campaign import Campaign, read_campaign
from presage.models.release.pretrained import pretrained_release
from presage.models.release.release import load_release
from presage.serving.predictor.predictor import Predictor

CAMPAIGN = Path("data/profiles/h200")
PAGE = Path("docs/benchmarks/hopper.md")
DAY = "2026-11-26"
_IMPLAUSIBLE = 0.8

LIMITS = """## Limits

- **{low} of {rows} slowdowns are below {implausible:g}, which no sharing can cause.** The
  steps of these jobs are shorter than a time slice of the GPU, or wait for the CPU. Step times are
  medians of single steps, so steps within a slice look fast, and the long pauses between slices do
  not count. Slowdowns by the number of steps in the window would include them. Until slowdowns are
  measured that way, these rows are unsuitable for training, and the scores of slowdowns say little.
- One GPU, ten minutes, two seeds of one campaign. Two jobs were measured again afterwards: 0.70 and
  0.69 ms (dcgan), 2.73 and 2.95 ms (neumf).
- PyTorch was 2.11, not the pinned 2.13. The MPS daemon did not run.
"""


class Score(NamedTuple):
    """Errors of one quantity on some rows.

    Attributes
    ----------
    error : float
        Median of the absolute relative errors; for slowdowns, the mean absolute error.
    bias : float
        Median of predicted over measured.
    coverage : float
        Fraction of rows inside the 80 % interval.
    flagged : float
        Fraction of rows that the release calls out of domain.
    """

    rows: int
    error: float
    bias: float
    coverage: float
    flagged: float


def score(forecasts: Sequence[Forecast], measured: Sequence[float], *, absolute: bool) -> Score:
    """Return the errors of forecasts; rows without a measurement are left out."""
    pairs = [(f, m) for f, m in zip(forecasts, measured, strict=True) if np.isfinite(m)]
    median = np.array([f.median for f, _ in pairs])
    truth = np.array([m for _, m in pairs])
    inside = [f.low <= m <= f.high for f, m in pairs]
    errors = np.abs(median - truth)
    error = errors.mean() if absolute else np.median(errors / truth)
    outside = [not f.in_domain for f, _ in pairs]
    bias = float(np.median(median / truth))
    return Score(len(pairs), float(error), bias, float(np.mean(inside)), float(np.mean(outside)))


def solo_scores(predictor: Predictor, campaign: Campaign, device: Device) -> dict[str, Score]:
    """Return the scores of solo jobs by quantity."""
    rows = campaign.executions
    jobs = [campaign.jobs[job_id] for job_id in rows["job_id"]]
    found = predictor.predict([Placement(job, device) for job in jobs])
    training = ~rows["job_id"].str.contains("/inference").to_numpy()
    step_s = rows["step_time_median_s"].to_numpy()

    def part(mask: np.ndarray) -> Score:
        picked = [one.step_time_s for one, is_in in zip(found, mask, strict=True) if is_in]
        return score(picked, step_s[mask], absolute=False)

    return {
        "step time, training": part(training),
        "step time, inference": part(~training),
        "memory": score(
            [one.memory_bytes for one in found], list(rows["memory_peak_bytes"]), absolute=False
        ),
        "utilization": score(
            [one.compute_utilization for one in found],
            list(rows["compute_utilization"]),
            absolute=True,
        ),
    }


def colocated(
    predictor: Predictor, campaign: Campaign, device: Device
) -> tuple[Score, float, pd.DataFrame]:
    """Return the scores of slowdowns, the error of a constant, and the rows.

    The constant is the median slowdown of this campaign by the number of members, so it knows the
    answers; it is a floor for what ignores the jobs.
    """
    forecasts: list[Forecast] = []
    rows = campaign.colocations
    rows = rows[rows["slowdown"].notna()]
    kept = []
    for _, group in rows.groupby("colocation_id", sort=True):
        members = group.sort_values("member")
        jobs = tuple(campaign.jobs[job_id] for job_id in members["job_id"])
        share = Share(1 / len(jobs))
        colocation = Colocation(device, jobs, (share,) * len(jobs))
        forecasts += predictor.predict_interference([colocation])[0].slowdowns
        kept.append(members)
    table = pd.concat(kept)
    constant = table.groupby("members")["slowdown"].transform("median")
    floor = float((constant - table["slowdown"]).abs().mean())
    return score(forecasts, list(table["slowdown"]), absolute=True), floor, table


def page(predictor: Predictor, campaign: Campaign) -> Iterator[str]:
    """Yield the lines of the page."""
    (measured,) = campaign.devices.values()
    sheet = predictor.device(measured.kind)
    rows, sets = campaign.executions, campaign.colocations["colocation_id"].nunique()
    yield "# Forecasts for an H200, which is not in the training data"
    yield ""
    yield (
        f"{len(rows)} jobs solo and {sets} co-locations of two to "
        f"four jobs, measured on one NVIDIA H200 on {DAY} by"
    )
    yield "`benchmarks/profiling/gpu_campaign.sh` ([how](../pipeline/measuring.md)), with"
    yield "time-slicing. The tables and the environment are in `data/profiles/h200`; no training"
    yield "set contains them."
    yield "Written by `python -m benchmarks.predictors.hopper`."
    yield ""
    yield f"Versions: `{rows['versions'].iloc[0]}`."
    yield ""
    for name, device in (("data sheet", sheet), ("measured", measured)):
        yield f"## Device constants: {name}"
        yield ""
        yield "| quantity | rows | error | predicted / measured | in the 80 % interval | flagged |"
        yield "|---|---:|---:|---:|---:|---:|"
        for quantity, found in solo_scores(predictor, campaign, device).items():
            yield _line(quantity, found, is_share=quantity == "utilization")
        found, floor, _ = colocated(predictor, campaign, device)
        yield _line("slowdown", found, is_share=True)
        yield ""
        yield (
            "The best constant per number of members, which is fitted to these measurements, has a"
            f"\nmean absolute error of {floor:.2f}. Flagged rows are out of domain for the release."
        )
        yield ""
    yield from _slowdowns(campaign)


def _line(name: str, found: Score, *, is_share: bool) -> str:
    error = f"{found.error:.2f}" if is_share else f"{found.error:.1%}"
    return (
        f"| {name} | {found.rows} | {error} | {found.bias:.2f} | {found.coverage:.0%} "
        f"| {found.flagged:.0%} |"
    )


def _slowdowns(campaign: Campaign) -> Iterator[str]:
    rows = campaign.colocations
    yield "## Measured slowdowns"
    yield ""
    yield "| jobs on the GPU | rows | median | 10 to 90 % |"
    yield "|---:|---:|---:|---:|"
    for members, group in rows[rows["slowdown"].notna()].groupby("members"):
        low, middle, high = np.quantile(group["slowdown"], [0.1, 0.5, 0.9])
        yield f"| {members} | {len(group)} | {middle:.2f} | {low:.2f} to {high:.2f} |"
    yield ""
    low_rows = int((rows["slowdown"] < _IMPLAUSIBLE).sum())
    yield LIMITS.format(low=low_rows, rows=len(rows), implausible=_IMPLAUSIBLE).rstrip()


def main() -> None:
    """Write the page."""
    predictor = Predictor(load_release(pretrained_release()))
    write_page(PAGE, page(predictor, read_campaign(CAMPAIGN)))


if __name__ == "__main__":
    main()
