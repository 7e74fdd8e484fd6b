"""Errors of predicted steps on several GPUs, as a server process answers them.

Each model is predicted by a release whose scaling law was fitted without it. The step on one GPU is
that of the release that ships with Presage.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from presage.features.device.node_spread import spread
from presage.features.job.job_description import JobFeatures
from presage.features.scaling.scaling_law import ScalingLaw
from presage.features.scaling.scaling_request import (
    GpuPlacement,
    MeasuredStep,
    ScalingRequest,
)
from presage.features.tables.campaign import Campaign
from presage.models.release.release import MANIFEST
from presage.models.release.release_id import content_id
from presage.pipelines.benchmark.benchmark_splits import make_folds
from presage.serving.client.client import PresageClient

SHIPPED = Path("data/pretrained/release")
FEW = 8  # measured placements of a job, where not all others are


@dataclass(frozen=True, slots=True)
class ServedError:
    """Mean absolute error in per cent, and the share of steps within the 80 % interval."""

    percent: float
    covered_percent: float


@contextmanager
def served(law: ScalingLaw) -> Iterator[PresageClient]:
    """Serve the shipped networks with a scaling law in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        release = Path(folder) / "release"
        shutil.copytree(SHIPPED, release)
        content = json.loads((release / MANIFEST).read_text()) | {"scaling_law": law.as_json()}
        content["release_id"] = content_id(content)
        (release / MANIFEST).write_text(json.dumps(content))
        command = [sys.executable, "-m", "presage", "serve", "--release", str(release)]
        with subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                announced = re.match(r"serving release (\w+) on (\S+)", line)
                assert announced is not None, line
                with PresageClient(announced[2], timeout_s=30.0) as client:
                    yield client
            finally:
                process.terminate()
                process.wait()


def placement_errors(
    client: PresageClient, campaign: Campaign, model: str, kind: str, *, most: int = 0
) -> list[tuple[float, bool]]:
    """Return the relative error of each held-out step of a model, and whether it was covered.

    Placements are dealt into folds. Those of a fold are predicted from measured steps of the others
    with the same batch: from all, or from ``most`` drawn ones.
    """
    device, rng = client.device(kind), np.random.default_rng(0)
    errors: list[tuple[float, bool]] = []
    for job, rows in _jobs(campaign, model):
        folds = make_folds(list(rows["placement"]), seed=0)
        for fold in np.unique(folds):
            held_out = rows[(folds == fold) & (rows["devices"] > 1)]
            if held_out.empty:
                continue
            known = rows[folds != fold]
            if most:
                known = known.iloc[rng.choice(len(known), min(most, len(known)), replace=False)]
            request = ScalingRequest(
                job, device, tuple(_placements(held_out, job)),
                GpuPlacement(1, 1, job.job.batch_size),
                tuple(map(MeasuredStep, _placements(known, job), known["step_time_s"])),
            )  # fmt: skip
            for one, true_s in zip(
                client.predict_scaling(request).forecasts, held_out["step_time_s"], strict=True
            ):
                found = one.step_time_s
                errors.append((abs(found.median / true_s - 1), found.low <= true_s <= found.high))
    return errors


def refit_error(
    client: PresageClient,
    job: JobFeatures,
    kind: str,
    requested: tuple[int, int],
    true_s: Mapping[tuple[int, int], float],
    measured: Sequence[tuple[int, int]],
) -> list[tuple[float, bool]]:
    """Return the errors at all sizes but the measured ones; the global batch is constant."""
    sizes = [size for size in true_s if size not in measured]
    request = ScalingRequest(
        job, client.device(kind), tuple(GpuPlacement(*size) for size in sizes),
        GpuPlacement(*requested),
        tuple(MeasuredStep(GpuPlacement(*size), true_s[size]) for size in measured),
    )  # fmt: skip
    return [
        (
            abs(one.step_time_s.median / true_s[size] - 1),
            one.step_time_s.low <= true_s[size] <= one.step_time_s.high,
        )
        for size, one in zip(sizes, client.predict_scaling(request).forecasts, strict=True)
    ]


def summary(errors: Sequence[tuple[float, bool]]) -> ServedError:
    """Return the mean of errors."""
    percents, covered = np.array(errors, dtype=np.float64).mean(axis=0) * 100
    return ServedError(float(percents), float(covered))


def mean_error(parts: Sequence[ServedError]) -> ServedError:
    """Return the mean over models, each with the same weight."""
    return ServedError(
        float(np.mean([one.percent for one in parts])),
        float(np.mean([one.covered_percent for one in parts])),
    )


def _jobs(campaign: Campaign, model: str) -> Iterator[tuple[JobFeatures, pd.DataFrame]]:
    for job_id, rows in campaign.scale_out.groupby("job_id"):
        job = campaign.jobs[str(job_id)]
        if job.job.name == model and (rows["devices"] > 1).any():
            yield job, rows


def _placements(rows: pd.DataFrame, job: JobFeatures) -> Iterator[GpuPlacement]:
    for row in rows.to_dict("records"):
        where = spread(row["nodes"], row["devices"], row["placement"])
        yield GpuPlacement(where.devices, where.nodes, job.job.batch_size)
