"""Gavel (OSDI 2020): steps per second of 26 solo jobs, in all pairs, and on up to 8 devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from presage.pipelines.importers.gavel_files import Pair, SoloRun, measurements
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.public_job import PublicModel, add_job
from presage.pipelines.profiling.running.work import Row, colocation_id

ORIGIN = Origin("gavel", "https://github.com/stanford-futuredata/gavel, scheduler/", "MIT")
MODELS = {
    "ResNet-18": PublicModel("resnet", "18-s32", "sgd", 3 * 32 * 32),
    "ResNet-50": PublicModel("resnet", "50-s224", "sgd", 3 * 224 * 224),
    "Transformer": PublicModel("seq2seq_transformer", "base-t32", "adam", 64),
    "LM": PublicModel("lstm_lm", "w200-d2-v33k", "sgd", 35),
    "Recommendation": PublicModel("recommender_autoencoder", "ml20m-w200", "adam", 20_108),
    "CycleGAN": PublicModel("cyclegan", "r9-s256", "adam", 2 * 3 * 256 * 256),
    "A3C": PublicModel("a3c", "pong-n20", "adam", 80 * 80),
}
# The V100s of the clouds where it was measured have 16 GB; other names are as in the catalogue.
DEVICES = {"v100": "v100-16gb"}
JOB = re.compile(r"(?P<model>[\w-]+)(?: \(batch size (?P<batch>\d+)\))?")


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read upstream's JSON, or the tidied tables of pairs and isolated jobs."""
    for _, measured in measurements(path):
        _add(measured, imported, graphs)


def _add(measured: Iterable[SoloRun | Pair], imported: Imported, graphs: GraphCache) -> None:
    for one in measured:
        names = one.jobs if isinstance(one, Pair) else (one.job,)
        if any(_parse(name) is None for name in names):
            imported.skip("a job that is none of the 26")
            continue
        device = imported.kind_of(DEVICES.get(one.gpu, one.gpu))
        if device is None:
            continue
        job_ids = [_describe(name, imported, graphs) for name in names]
        if isinstance(one, Pair):
            _add_pair(one, job_ids, device, imported)
        else:
            _add_solo(one, job_ids[0], device, imported)


def _parse(name: str) -> tuple[str, int] | None:
    match = JOB.fullmatch(name)
    if match is None or match["model"] not in MODELS:
        return None
    return match["model"], int(match["batch"] or 1)


def _describe(name: str, imported: Imported, graphs: GraphCache) -> str:
    found = _parse(name)
    assert found is not None
    model, batch_size = found
    job_id = f"gavel/{model}/b{batch_size}"
    add_job(imported, graphs, job_id, MODELS[model], batch_size=batch_size)
    return job_id


def _add_solo(one: SoloRun, job_id: str, device: str, imported: Imported) -> None:
    campaign = one.campaign
    if one.steps_per_s <= 0 and one.devices > 1:
        imported.skip("did not run on several devices (0 steps/s)")
    elif one.devices > 1:
        # Upstream's profiler sums the steps of all workers, each at the job's batch size.
        step_s = one.devices / one.steps_per_s
        imported.scale_out(
            job_id, device, campaign=campaign, nodes=0, devices=one.devices,
            placement=one.placement, step_time_s=step_s,
        )  # fmt: skip
    elif one.placement != "consolidated":
        imported.skip("one device, unconsolidated: the consolidated measurement again")
    elif one.steps_per_s <= 0:
        imported.execution(job_id, device, campaign=campaign, failure="infeasible")
    else:
        imported.execution(
            job_id, device, campaign=campaign, step_time_median_s=1 / one.steps_per_s
        )


def _add_pair(pair: Pair, job_ids: list[str], device: str, imported: Imported) -> None:
    feasible = min(pair.together) > 0
    members = [
        _member(job_id, solo, together, feasible, imported)
        for job_id, solo, together in zip(job_ids, pair.solo, pair.together, strict=True)
    ]
    imported.colocation(colocation_id(job_ids, device), members, device, campaign=pair.campaign)


def _member(job_id: str, solo: float, together: float, feasible: bool, imported: Imported) -> Row:
    member: Row = {"job_id": job_id, "solo_step_time_s": 1 / solo if solo > 0 else None}
    if not feasible:
        return member | {"fits": False, "failure": "infeasible"}
    if together == solo:
        imported.note("slowdown left out: clipped at exactly 1.0 upstream")
        return member
    return member | {"step_time_median_s": 1 / together}
