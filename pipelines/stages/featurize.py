"""DVC stage: campaigns -> one row per solo measurement, and one per co-location member."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from presage.errors import TrainingError
from presage.features.columns.schema import columns, matrix
from presage.features.device.device_class import DEVICE_CLASSES, device_class
from presage.features.job.architecture_groups import architecture_group
from presage.features.job.job_table import precision_codes
from presage.features.quantities.quantity_registry import solo_columns
from presage.features.tables.campaign import COLOCATION, Campaign, read_campaign
from presage.features.tables.schemas import REPORTED_SOURCE, TABLES
from presage.models.calibration.training_domain import (
    Domain,
    classify,
    explain_out_of_domain,
    fit_domain,
)
from presage.models.release.training_data import CampaignFolder, TableFile
from presage.models.training.scaling_rows import scaling_table
from presage.models.training.solo_rows import SOLO_KEY
from presage.models.training.splits import Folds, device_folds, folds_by_split
from presage.pipelines.pretraining.pretrained_networks import read_pretrained
from presage.pipelines.reported.recency import Recency, read_recency
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.stage import replace_folder, run_stage
from presage.system.arrays import Mask
from presage.system.files.atomic_file import write_atomically
from presage.system.processes.spread import spread

OUTPUT_NAMES = (
    "solo.parquet", "interference.parquet", "scaling.parquet", "devices.json", "campaigns.json",
)  # fmt: skip
MEASUREMENT_KEY = ["job_id", "device_kind", "share"]  # identifies repeated measurements
EQUAL_WEIGHTS = Recency(
    half_life_days=sys.float_info.max, most_weight=1.0, newest_runs=sys.maxsize
)  # all rows have equal weight


def measured_columns() -> list[str]:
    """Return the columns of ``executions`` that training reads."""
    return [*solo_columns(), "setup_s"]


def featurize_solo(campaign: Campaign) -> pd.DataFrame:
    """Return one row per solo run: keys, measurements, and features of both sets.

    Quantities that a source did not measure are NaN. A job that only ran co-located has a row
    without measurements, because its features matter for its co-runners.
    """
    ran = campaign.executions[campaign.executions["failure"] == ""]
    ran = pd.concat([ran, _rows_without_solo_run(campaign, ran)], ignore_index=True)
    placements = campaign.placements(ran)
    jobs = [placement.job.job for placement in placements]
    keys = pd.DataFrame(
        {
            "job_id": [job.job_id for job in jobs],
            "model": [job.name for job in jobs],
            "family": [job.family for job in jobs],
            "precision": [job.precision for job in jobs],
            "device_kind": ran["device_kind"],
            "device_class": [device_class(placement.device) for placement in placements],
            "machine": ran["machine"],
            "campaign": ran["campaign"],
            "share": ran["share"],
            "source": ran["source"],
            "measured_at_s": ran["measured_at_s"],
            "weight": 1.0,
        }
    )
    features = [
        pd.DataFrame(
            matrix(placements, feature_set),
            columns=[f"{feature_set}.{name}" for name in columns(feature_set)],
        )
        for feature_set in ("published", "full")
    ]
    return pd.concat([keys, ran.reindex(columns=measured_columns()), *features], axis=1)


def _rows_without_solo_run(campaign: Campaign, ran: pd.DataFrame) -> pd.DataFrame:
    """Return a row without measurements for each co-location member without a solo run there."""
    members = campaign.colocations.drop_duplicates(SOLO_KEY)
    known = pd.MultiIndex.from_frame(ran[SOLO_KEY])
    missing = members[~pd.MultiIndex.from_frame(members[SOLO_KEY]).isin(known)]
    return missing.reindex(columns=ran.columns).assign(**dict.fromkeys(measured_columns(), np.nan))


def is_measured(solo: pd.DataFrame) -> Mask:
    """Return whether any quantity of each row was measured."""
    return solo[measured_columns()].notna().any(axis=1).to_numpy(bool)


def row_weights(rows: pd.DataFrame, recency: Recency) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the training weight of each row: 1, or by age if the row was reported."""
    reported = (rows["source"] == REPORTED_SOURCE).to_numpy(bool)
    at_s = rows["measured_at_s"].to_numpy(np.float64)
    age_s = np.maximum(at_s[reported].max(initial=0.0) - at_s, 0)
    return np.where(reported, recency.most_weight * recency.decay(age_s), 1.0)


def drop_superseded(solo: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without measurements that newer reports of the same job replace.

    Otherwise outdated measurements of a device that has changed would be used in training,
    calibration and evaluation together with the current ones.
    """
    reported = (solo["source"] == REPORTED_SOURCE).to_numpy(bool)
    out = solo.copy()
    for name in solo_columns():
        newest = solo[reported & solo[name].notna()].groupby(MEASUREMENT_KEY)["measured_at_s"].max()
        since = newest.reindex(pd.MultiIndex.from_frame(solo[MEASUREMENT_KEY])).to_numpy(np.float64)
        out.loc[~reported & (since > solo["measured_at_s"].to_numpy()), name] = np.nan
    return out


def fit_domains(solo: pd.DataFrame, known: Mapping[str, Domain]) -> dict[str, Domain]:
    """Return the domain of every device class among the rows, united with the ``known`` one."""
    found = dict(known)
    measured = is_measured(solo)
    for name in DEVICE_CLASSES:
        rows = solo[(solo["device_class"] == name) & measured]
        if rows.empty:
            continue
        domain = fit_domain(
            feature_matrix(rows, "full"), list(rows["model"]), list(rows["precision"])
        )
        found[name] = known[name].union(domain) if name in known else domain
    return found


def add_reasons(solo: pd.DataFrame, known: Mapping[str, Domain]) -> pd.DataFrame:
    """Add columns on the position of each row to the domain of the other folds, for each split.

    ``reason.SPLIT`` is why a row is out of domain, "" for rows in domain; ``near.SPLIT`` is whether
    it is near training. Folds are those of the networks: each device class has its own.
    """
    out = []
    for _, rows in solo.groupby("device_class", sort=False):
        folds = folds_by_split(rows)
        folds["group"] = device_folds(list(rows["family"].map(architecture_group)))
        added: dict[str, Any] = {}
        for split, of_row in folds.items():
            reasons, near = check_rows(rows, of_row, known)
            added |= {f"reason.{split}": reasons, f"near.{split}": near}
        out.append(rows.assign(**added))
    return pd.concat(out).sort_index()


def check_rows(
    solo: pd.DataFrame, folds: Folds, known: Mapping[str, Domain]
) -> tuple[list[str], Mask]:
    """Return why each row is outside the domain of the other folds, "", and which are near it."""
    out, near = np.full(len(solo), "", dtype=object), np.zeros(len(solo), dtype=bool)
    tests = [folds == fold for fold in np.unique(folds)]
    found = spread(_check_fold, tests, shared=(solo, known))
    for test, (reasons, is_near) in zip(tests, found, strict=True):
        out[test], near[test] = reasons, is_near
    return list(out), near & (out == "")


def _check_fold(
    solo: pd.DataFrame, known: Mapping[str, Domain], test: Mask
) -> tuple[list[str], Mask]:
    """Return reasons of the rows of one fold, and which are near the domain of the others."""
    rows, train = solo[test], solo[~test & is_measured(solo)]
    if train.empty:
        return ["no other job was measured"] * len(rows), np.zeros(len(rows), dtype=bool)
    features, precisions = feature_matrix(rows, "full"), precision_codes(rows["precision"])
    domains = fit_domains(train, known)
    reasons = np.array(explain_out_of_domain(domains, features, precisions), dtype=object)
    _, near = classify(domains, features, precisions)
    kinds = rows["device_kind"]
    unmeasured = ~kinds.isin(train["device_kind"].unique()).to_numpy(bool)
    reasons[unmeasured] = "no job was measured on " + kinds[unmeasured]
    return list(reasons), near


def featurize_interference(campaign: Campaign) -> pd.DataFrame:
    """Return one row per member of every co-location with at least one known slowdown.

    A member without a known slowdown is included for its effect on the others. A slowdown below 1
    (noise, or a co-located job that keeps the cores out of power saving) counts as 1, the minimum
    of any forecast.
    """
    colocations = campaign.colocations
    # If a member failed, the slowdowns of the others are unknown.
    known = colocations["slowdown"].notna().groupby([colocations[name] for name in COLOCATION])
    ran = colocations[known.transform("any")].reset_index(drop=True)
    key = ran["colocation_id"] + " in " + ran["campaign"] + " on " + ran["machine"]
    return pd.DataFrame(
        {
            "colocation": key,
            "member": ran["member"],
            "members": ran["members"],
            "job_id": ran["job_id"],
            "family": [campaign.jobs[job_id].job.family for job_id in ran["job_id"]],
            "device_kind": ran["device_kind"],
            "device_class": [
                device_class(campaign.devices[key])
                for key in zip(ran["device_kind"], ran["machine"], ran["campaign"], strict=True)
            ],
            "machine": ran["machine"],
            "campaign": ran["campaign"],
            "share": ran["share"],
            "source": ran["source"],
            "measured_at_s": ran["measured_at_s"],
            "weight": 1.0,
            "slowdown": ran["slowdown"].clip(lower=1.0),
        }
    )


def device_rows(campaigns: Sequence[Campaign]) -> list[dict[str, object]]:
    """Return the calibrated devices; of a kind in several campaigns, the last one."""
    latest = {d.kind: d for c in campaigns for d in c.devices.values()}
    return [asdict(latest[kind]) for kind in sorted(latest)]


def describe_folder(campaign: Campaign) -> CampaignFolder:
    """Return the tables of a campaign with their digests, to detect changes later."""
    return CampaignFolder(
        folder=_portable_name(campaign.folder),
        campaigns=tuple(sorted({name for _, _, name in campaign.devices})),
        tables={
            path.stem: TableFile(
                rows=pq.read_metadata(path).num_rows,
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for path in sorted(campaign.folder.glob("*.parquet"))
            if path.stem in TABLES
        },
    )


def _portable_name(folder: Path) -> str:
    """Return a folder's path relative to the checkout; outside of it, only its name."""
    root = Path.cwd()
    path = Path(os.path.normpath(root / folder))  # without resolving links
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def featurize(
    folders: Sequence[Path],
    target: Path,
    pretrained: Path | None = None,
    recency: Recency = EQUAL_WEIGHTS,
) -> None:
    """Write the outputs of the stage, ``OUTPUT_NAMES``, for all campaigns.

    Parameters
    ----------
    folders : sequence of Path
        Folders of the campaigns' tables.
    target : Path
        Folder to write.
    pretrained : Path, optional
        Folder of networks to fine-tune, whose domains count as known.
    recency : Recency
        Weights of reported rows.

    Raises
    ------
    TableError
        A campaign's tables are corrupt.
    TrainingError
        No campaign has a job that ran.
    """
    campaigns = [c for c in map(read_campaign, folders) if c.devices]  # without reports: none
    if not any((c.executions["failure"] == "").any() for c in campaigns):
        raise TrainingError(
            f"no job ran in {', '.join(map(str, folders))}; measure some with `presage profile`"
        )
    start = read_pretrained(pretrained)
    if start is not None:
        campaigns = [start.restore_speeds(campaign) for campaign in campaigns]
    solo = pd.concat([featurize_solo(c) for c in campaigns], ignore_index=True)
    interference = pd.concat([featurize_interference(c) for c in campaigns], ignore_index=True)
    solo["weight"] = row_weights(solo, recency)
    interference["weight"] = row_weights(interference, recency)
    solo = drop_superseded(solo)
    known = {} if start is None else start.domains
    solo = add_reasons(solo, known)
    scaling = scaling_table(campaigns).as_frame()
    tables = [asdict(describe_folder(campaign)) for campaign in campaigns]

    def write(folder: Path) -> None:
        write_atomically(folder / "solo.parquet", solo.to_parquet)
        write_atomically(folder / "interference.parquet", interference.to_parquet)
        write_atomically(folder / "scaling.parquet", scaling.to_parquet)
        _write_json(folder / "devices.json", device_rows(campaigns))
        _write_json(folder / "campaigns.json", tables)

    replace_folder(target, OUTPUT_NAMES, write)


def _write_json(path: Path, content: object) -> None:
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda partial: partial.write_text(text))


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: campaigns -> features")
    parser.add_argument("campaigns", type=Path, nargs="+", help="folders of measured tables")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--pretrained", type=Path, help="folder of networks to fine-tune")
    args = parser.parse_args(argv)
    featurize(args.campaigns, args.target, args.pretrained, read_recency())


if __name__ == "__main__":
    run_stage(main)
