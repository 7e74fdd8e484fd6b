"""DVC stage: predictors and metrics -> the release folder."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

from presage.errors import ReleaseError, TableError, TrainingError, one_line
from presage.features.device.device import Device
from presage.features.device.device_class import DEVICE_CLASSES
from presage.features.quantities.registry import INTERFERENCE, QUANTITIES, solo_quantities
from presage.models.release.make_probes import make_probes
from presage.models.release.release import Release
from presage.models.release.release_content import ReleaseContent, write_release
from presage.models.release.training_data import (
    BaseRelease,
    CampaignFolder,
    CampaignRows,
    TrainingData,
    parse_folders,
    read_training_data,
)
from presage.models.training.fine_tuning import read_training_jobs
from presage.models.training.fit import LEVELS
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.pretraining.pretrained_networks import STARTS, Pretrained, read_pretrained
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.featurize import fit_domains
from presage.pipelines.stages.stage import read_table, run_stage

VERSIONS = ("torch", "onnx", "numpy", "presage")


def training_rows(solo: pd.DataFrame) -> pd.DataFrame:
    """Rows that every shipped network has seen: what the release vouches for."""
    rows: pd.DataFrame = solo[job_folds(list(solo["job_id"])) != HELD_OUT_FOLD]
    if rows.empty:
        raise ReleaseError(
            f"all of {len(solo)} rows are held out; add a campaign of `presage profile`"
        )
    return rows


def training_colocations(interference: pd.DataFrame) -> pd.DataFrame:
    """Members of the co-locations that the shipped networks have seen: no member held out."""
    held_out = job_folds(list(interference["job_id"])) == HELD_OUT_FOLD
    hidden = interference["colocation"].isin(interference.loc[held_out, "colocation"])
    rows: pd.DataFrame = interference[~hidden]
    return rows


def read_campaigns(path: Path) -> tuple[CampaignFolder, ...]:
    """Folders of tables that featurize has read.

    Raises
    ------
    TableError
        The file is missing or damaged.
    """
    try:
        return parse_folders(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TableError(
            f"{path}: does not say which tables there were ({one_line(error)}); run featurize again"
        ) from error


def campaign_rows(
    solo: pd.DataFrame, interference: pd.DataFrame, classes: Mapping[str, Collection[str]]
) -> tuple[CampaignRows, ...]:
    """How many rows of each campaign, machine and class of devices taught a predictor.

    Of a class that a predictor had too few rows of, none did.
    """
    use = solo["setup_s"].notna()
    for name, quantity in solo_quantities().items():
        use |= solo[quantity.column].notna() & solo["device_class"].isin(classes[name])
    use_together = interference["slowdown"].notna()
    use_together &= interference["device_class"].isin(classes[INTERFERENCE.name])
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for table, rows, taught in (
        ("executions", solo[use], training_rows(solo)),
        ("colocations", interference[use_together], training_colocations(interference)),
    ):
        where = zip(rows["campaign"], rows["machine"], rows["device_class"], strict=True)
        for key, is_taught in zip(where, rows.index.isin(taught.index), strict=True):
            counts.setdefault(key, Counter())[table if is_taught else f"held_out_{table}"] += 1
    return tuple(
        CampaignRows(
            *key,
            executions=found["executions"],
            colocations=found["colocations"],
            held_out_executions=found["held_out_executions"],
            held_out_colocations=found["held_out_colocations"],
        )
        for key, found in sorted(counts.items())
    )


def describe_base_release(start: Pretrained | None) -> BaseRelease | None:
    """The release whose networks were gone on from, and what had taught these."""
    if start is None:
        return None
    files = sorted(path for name in QUANTITIES for path in start.networks(name).values())
    before = read_training_data(start.release.manifest, str(start.release.folder))
    return BaseRelease(
        start.release.release_id,
        {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        None if before is None else before.restrict_to(STARTS),
    )


def read_job_digests(
    models: Path, classes: Mapping[str, Collection[str]], start: Pretrained | None
) -> set[str]:
    """Digests of the jobs that taught any network, as the networks themselves say."""
    files = [models / name / f"{one}.npz" for name in QUANTITIES for one in classes[name]]
    if start is not None:
        files += [path for name in QUANTITIES for path in start.networks(name).values()]
    return set().union(*map(read_training_jobs, files))


def read_margins(path: Path) -> dict[str, dict[float, float]]:
    """Margins by class of devices and level, as a training stage wrote them."""
    return {
        name: {float(level): margin for level, margin in of_class.items()}
        for name, of_class in json.loads(path.read_text()).items()
    }


def trained_classes(models: Path) -> dict[str, list[str]]:
    """Of each predictor, classes of devices that had enough rows to be learnt here."""
    return {
        name: [one for one in DEVICE_CLASSES if (models / name / f"{one}.npz").is_file()]
        for name in QUANTITIES
    }


def trained_devices(
    seen: pd.DataFrame,
    together: pd.DataFrame,
    classes: Mapping[str, Collection[str]],
    start: Pretrained | None,
) -> dict[str, set[str]]:
    """Kinds that each predictor has learnt, here or where its networks began."""
    told = {
        name: seen[seen[quantity.column].notna()] for name, quantity in solo_quantities().items()
    }
    told[INTERFERENCE.name] = together
    found = {
        name: set(rows.loc[rows["device_class"].isin(classes[name]), "device_kind"])
        for name, rows in told.items()
    }
    before = {name: set() if start is None else start.devices(name) for name in found}
    return {name: kinds | before[name] for name, kinds in found.items()}


def largest_colocations(
    together: pd.DataFrame, classes: Collection[str], start: Pretrained | None
) -> dict[str, int]:
    """Of each class of devices, members of the largest co-location that was learnt."""
    largest = (
        together[together["device_class"].isin(classes)].groupby("device_class")["members"].max()
    )
    return {
        name: max(int(largest.get(name, 1)), 1 if start is None else start.most_members(name))
        for name in DEVICE_CLASSES
    }


def setup_quantiles(solo: pd.DataFrame) -> dict[str, list[float]]:
    """Start-up seconds at each level, per device kind and over all of them ("").

    Raises
    ------
    TrainingError
        No row tells how long a job takes to start.
    """
    told = solo[solo["setup_s"].notna()]
    if told.empty:
        raise TrainingError(
            f"none of {len(solo)} jobs tells its setup_s, which imported sources do not; "
            "add a campaign that `presage profile` measured"
        )
    groups = {"": told, **dict(iter(told.groupby("device_kind")))}
    return {
        str(kind): [float(q) for q in np.quantile(rows["setup_s"], LEVELS)]
        for kind, rows in groups.items()
    }


def assemble_release(
    features: Path, models: Path, evaluation: Path, target: Path, pretrained: Path | None = None
) -> Release:
    """Write the release folder from the outputs of the stages, and of the networks begun with."""
    start, classes = read_pretrained(pretrained), trained_classes(models)
    solo_file, interference_file = features / "solo.parquet", features / "interference.parquet"
    solo, interference = read_table(solo_file), read_table(interference_file)
    seen, together = training_rows(solo), training_colocations(interference)
    devices = {} if start is None else start.calibrated
    for row in json.loads((features / "devices.json").read_text()):
        devices[row["kind"]] = Device(**row)
    onnx_files = {name: (models / name / "model.onnx").read_bytes() for name in QUANTITIES}
    digest = hashlib.sha256(solo_file.read_bytes() + interference_file.read_bytes()).hexdigest()
    content = ReleaseContent(
        models=onnx_files,
        levels=LEVELS,
        devices=[devices[kind] for kind in sorted(devices)],
        trained_devices=trained_devices(seen, together, classes, start),
        max_members=largest_colocations(together, classes[INTERFERENCE.name], start),
        domains=fit_domains(seen, {} if start is None else start.domains),
        out_of_domain_margins={
            name: read_margins(models / name / "strangers.json") for name in QUANTITIES
        },
        setup_s=setup_quantiles(seen),
        probes=make_probes(
            onnx_files,
            feature_matrix(seen, "full").astype(np.float32),
            list(seen["device_kind"]),
            median=LEVELS.index(0.5),
        ),
        metrics=json.loads((evaluation / "metrics.json").read_text()),
        guarantees=json.loads((evaluation / "promises.json").read_text()),
        data_digest=digest,
        versions={name: version(name) for name in VERSIONS},
        trained_on=read_job_digests(models, classes, start),
        training_data=TrainingData(
            read_campaigns(features / "campaigns.json"),
            campaign_rows(solo, interference, classes),
            describe_base_release(start),
        ).as_json(),
    )
    return write_release(target, content)


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: predictors -> release folder")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the predictors")
    parser.add_argument("--evaluation", type=Path, required=True, help="folder of evaluate")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--pretrained", type=Path, help="folder of networks gone on from")
    args = parser.parse_args(argv)
    release = assemble_release(
        args.features, args.models, args.evaluation, args.target, args.pretrained
    )
    print(f"release {release.release_id} in {args.target}")  # noqa: T201


if __name__ == "__main__":
    run_stage(main)
