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
from presage.features.job.framework_version import FRAMEWORK_RELEASE
from presage.features.quantities.quantity_registry import INTERFERENCE, QUANTITIES, solo_quantities
from presage.features.scaling.scaling_law import ScalingLaw
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
from presage.models.training.scaling_law_fit import MIN_MODELS, fit_scaling_law
from presage.models.training.scaling_rows import read_scaling_table
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.pretraining.pretrained_networks import STARTS, Pretrained, read_pretrained
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.featurize import fit_domains, is_measured
from presage.pipelines.stages.stage import read_table, run_stage
from presage.pipelines.trained_quantities import trained_quantities

VERSIONS = ("torch", "onnx", "numpy", "presage")


def training_rows(solo: pd.DataFrame) -> pd.DataFrame:
    """Return the training rows of the released networks: those of the other folds."""
    rows: pd.DataFrame = solo[job_folds(list(solo["job_id"])) != HELD_OUT_FOLD]
    if rows.empty:
        raise ReleaseError(
            f"all {len(solo)} rows are held out; add a campaign with `presage profile`"
        )
    return rows


def training_colocations(interference: pd.DataFrame) -> pd.DataFrame:
    """Return the members of the training co-locations, which have no held-out member."""
    held_out = job_folds(list(interference["job_id"])) == HELD_OUT_FOLD
    hidden = interference["colocation"].isin(interference.loc[held_out, "colocation"])
    rows: pd.DataFrame = interference[~hidden]
    return rows


def read_campaigns(path: Path) -> tuple[CampaignFolder, ...]:
    """Return the folders of tables that featurize has read.

    Raises
    ------
    TableError
        The file is missing or corrupt.
    """
    try:
        return parse_folders(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TableError(
            f"{path}: not a list of tables ({one_line(error)}); run featurize again"
        ) from error


def campaign_rows(
    solo: pd.DataFrame, interference: pd.DataFrame, classes: Mapping[str, Collection[str]]
) -> tuple[CampaignRows, ...]:
    """Return the numbers of training rows of each campaign, machine and device class.

    ``classes`` are, by predictor, the device classes with enough rows for training; rows of other
    classes do not count.
    """
    use = solo["setup_s"].notna()
    for name, quantity in solo_quantities().items():
        use |= solo[quantity.column].notna() & solo["device_class"].isin(classes[name])
    use_colocated = interference["slowdown"].notna()
    use_colocated &= interference["device_class"].isin(classes[INTERFERENCE.name])
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for table, rows, training in (
        ("executions", solo[use], training_rows(solo)),
        ("colocations", interference[use_colocated], training_colocations(interference)),
    ):
        where = zip(rows["campaign"], rows["machine"], rows["device_class"], strict=True)
        for key, is_training in zip(where, rows.index.isin(training.index), strict=True):
            counts.setdefault(key, Counter())[table if is_training else f"held_out_{table}"] += 1
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
    """Return the release whose networks were fine-tuned, with their training data."""
    if start is None:
        return None
    files = sorted(path for name in QUANTITIES for path in start.networks(name).values())
    data = read_training_data(start.release.manifest, str(start.release.folder))
    return BaseRelease(
        start.release.release_id,
        {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        None if data is None else data.restrict_to(STARTS),
    )


def read_job_digests(
    models: Path, classes: Mapping[str, Collection[str]], start: Pretrained | None
) -> set[str]:
    """Return the digests of the training jobs of all networks, read from their files."""
    files = [models / name / f"{cls}.npz" for name in QUANTITIES for cls in classes[name]]
    if start is not None:
        files += [path for name in QUANTITIES for path in start.networks(name).values()]
    return set().union(*map(read_training_jobs, files))


def read_margins(path: Path) -> dict[str, dict[str, dict[float, float]]]:
    """Read margins by novelty, device class and level, as a training stage wrote them."""
    return {
        novelty: {
            name: {float(level): margin for level, margin in margins.items()}
            for name, margins in by_class.items()
        }
        for novelty, by_class in json.loads(path.read_text()).items()
    }


def trained_releases(solo: pd.DataFrame, start: Pretrained | None) -> dict[str, set[float]]:
    """Return the framework releases in training by device class; ``solo`` are training rows."""
    column = f"full.{FRAMEWORK_RELEASE}"
    measured = solo[is_measured(solo)]
    found = {name: set(rows[column]) for name, rows in measured.groupby("device_class")}
    before = {} if start is None else start.release.trained_releases
    return {
        name: {float(one) for one in found.get(name, set()) | before.get(name, frozenset())}
        for name in DEVICE_CLASSES
        if name in found or name in before
    }


def trained_classes(models: Path) -> dict[str, list[str]]:
    """Return, for each predictor, the device classes that had enough rows for training."""
    return {
        name: [cls for cls in DEVICE_CLASSES if (models / name / f"{cls}.npz").is_file()]
        for name in QUANTITIES
    }


def trained_devices(
    solo: pd.DataFrame,
    colocated: pd.DataFrame,
    classes: Mapping[str, Collection[str]],
    start: Pretrained | None,
) -> dict[str, set[str]]:
    """Return the device kinds in the training of each predictor, or of the fine-tuned networks.

    ``solo`` and ``colocated`` are the training rows.
    """
    measured = {
        name: solo[solo[quantity.column].notna()] for name, quantity in solo_quantities().items()
    }
    measured[INTERFERENCE.name] = colocated
    found = {
        name: set(rows.loc[rows["device_class"].isin(classes[name]), "device_kind"])
        for name, rows in measured.items()
    }
    before = {name: set() if start is None else start.devices(name) for name in found}
    return {name: kinds | before[name] for name, kinds in found.items()}


def largest_colocations(
    colocated: pd.DataFrame, classes: Collection[str], start: Pretrained | None
) -> dict[str, int]:
    """Return the members of the largest training co-location, by device class."""
    largest = (
        colocated[colocated["device_class"].isin(classes)].groupby("device_class")["members"].max()
    )
    return {
        name: max(int(largest.get(name, 1)), 1 if start is None else start.most_members(name))
        for name in DEVICE_CLASSES
    }


def setup_quantiles(solo: pd.DataFrame) -> dict[str, list[float]]:
    """Return start-up seconds at each level, per device kind and over all kinds ("").

    Raises
    ------
    TrainingError
        No row has a start-up time.
    """
    measured = solo[solo["setup_s"].notna()]
    if measured.empty:
        raise TrainingError(
            f"none of {len(solo)} jobs has setup_s, which imported sources do not measure; "
            "add a campaign with `presage profile`"
        )
    groups = {"": measured, **dict(iter(measured.groupby("device_kind")))}
    return {
        str(kind): [float(q) for q in np.quantile(rows["setup_s"], LEVELS)]
        for kind, rows in groups.items()
    }


def read_devices(features: Path, start: Pretrained | None) -> list[Device]:
    """Return the calibrated devices by kind; those of featurize replace pretrained ones."""
    devices = {} if start is None else start.calibrated
    for row in json.loads((features / "devices.json").read_text()):
        devices[row["kind"]] = Device(**row)
    return [devices[kind] for kind in sorted(devices)]


def fit_release_law(path: Path, start: Pretrained | None) -> ScalingLaw | None:
    """Return the scaling law of the measured steps on several GPUs.

    With too few models it is that of the release whose networks were fine-tuned; None without one.
    """
    table = read_scaling_table(read_table(path))
    if len(set(table.model)) >= MIN_MODELS:
        return fit_scaling_law(table)
    return None if start is None else start.release.scaling_law


def assemble_release(
    features: Path, models: Path, evaluation: Path, target: Path, pretrained: Path | None = None
) -> Release:
    """Write the release folder from the outputs of the stages and the fine-tuned networks."""
    start, classes = read_pretrained(pretrained), trained_classes(models)
    trained = trained_quantities(models)
    solo_file, interference_file = features / "solo.parquet", features / "interference.parquet"
    solo, interference = read_table(solo_file), read_table(interference_file)
    training, colocated = training_rows(solo), training_colocations(interference)
    onnx_files = {name: (models / name / "model.onnx").read_bytes() for name in trained}
    content = ReleaseContent(
        models=onnx_files,
        levels=LEVELS,
        devices=read_devices(features, start),
        trained_devices=trained_devices(training, colocated, classes, start),
        max_members=largest_colocations(colocated, classes[INTERFERENCE.name], start),
        domains=fit_domains(training, {} if start is None else start.domains),
        trained_releases=trained_releases(training, start),
        novelty_margins={
            name: read_margins(models / name / "novelty_margins.json") for name in trained
        },
        setup_s=setup_quantiles(training),
        probes=make_probes(
            onnx_files,
            feature_matrix(training, "full").astype(np.float32),
            list(training["device_kind"]),
            median=LEVELS.index(0.5),
        ),
        metrics=json.loads((evaluation / "metrics.json").read_text()),
        guarantees=json.loads((evaluation / "promises.json").read_text()),
        data_digest=_digest(solo_file, interference_file),
        versions={name: version(name) for name in VERSIONS},
        trained_on=read_job_digests(models, classes, start),
        scaling_law=fit_release_law(features / "scaling.parquet", start),
        training_data=TrainingData(
            read_campaigns(features / "campaigns.json"),
            campaign_rows(solo, interference, classes),
            describe_base_release(start),
        ).as_json(),
    )
    return write_release(target, content)


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: predictors -> release folder")
    parser.add_argument("--features", type=Path, required=True, help="folder of featurize")
    parser.add_argument("--models", type=Path, required=True, help="folder of the predictors")
    parser.add_argument("--evaluation", type=Path, required=True, help="folder of evaluate")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    parser.add_argument("--pretrained", type=Path, help="folder of the fine-tuned networks")
    args = parser.parse_args(argv)
    release = assemble_release(
        args.features, args.models, args.evaluation, args.target, args.pretrained
    )
    print(f"release {release.release_id} in {args.target}")  # noqa: T201


if __name__ == "__main__":
    run_stage(main)
