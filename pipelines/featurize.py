"""DVC stage: campaigns -> one row per measured job, and one per victim of a co-location."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from presage.features.errors import TrainingError
from presage.features.schema import columns, matrix
from presage.models.domain import learn_domain
from presage.models.splits import Folds, family_folds, job_folds
from presage.pipelines.campaigns import COLOCATION, Campaign, read_campaign
from presage.pipelines.feature_table import feature_matrix
from presage.pipelines.stage import run_stage, write_atomically

MEASURED = ("compute_utilization", "memory_peak_bytes", "step_time_median_s", "setup_s")


def featurize_solo(campaign: Campaign) -> pd.DataFrame:
    """One row per job that ran alone: who it is, what was measured, features of both sets.

    What a source did not measure is NaN.
    """
    ran = campaign.executions[campaign.executions["failure"] == ""].reset_index(drop=True)
    placements = [campaign.placement(row) for row in ran.to_dict("records")]
    jobs = [placement.job.job for placement in placements]
    who = pd.DataFrame(
        {
            "job_id": [job.job_id for job in jobs],
            "model": [job.name for job in jobs],
            "family": [job.family for job in jobs],
            "precision": [job.precision for job in jobs],
            "device_kind": ran["device_kind"],
            "machine": ran["machine"],
            "campaign": ran["campaign"],
            "share": ran["share"],
        }
    )
    features = [
        pd.DataFrame(
            matrix(placements, feature_set),
            columns=[f"{feature_set}.{name}" for name in columns(feature_set)],
        )
        for feature_set in ("published", "full")
    ]
    return pd.concat([who, ran[list(MEASURED)], *features], axis=1)


def reasons(solo: pd.DataFrame, folds: Folds) -> list[str]:
    """Why each row is a stranger to those of the other folds, "" where it is none."""
    features = feature_matrix(solo, "full")
    who = [solo[name].to_numpy() for name in ("model", "device_kind", "precision")]
    out = np.full(len(solo), "", dtype=object)
    for fold in np.unique(folds):
        seen, asked = folds != fold, folds == fold
        if not seen.any():
            continue
        domain = learn_domain(features[seen], *(list(names[seen]) for names in who))
        out[asked] = domain.reasons(features[asked], *(list(names[asked]) for names in who[1:]))
    return list(out)


def featurize_interference(campaign: Campaign) -> pd.DataFrame:
    """One row per member of every co-location of which any slowdown is known.

    A member whose own is not known is there for what it does to the others. One below 1 (noise,
    or a neighbour that keeps the cores awake) is learnt and judged as 1: nobody slows down by
    less than nothing, and no forecast says so.
    """
    every = campaign.colocations
    # A member that failed leaves the others without a slowdown.
    known = every["slowdown"].notna().groupby([every[name] for name in COLOCATION])
    ran = every[known.transform("any")].reset_index(drop=True)
    key = ran["colocation_id"] + " in " + ran["campaign"] + " on " + ran["machine"]
    return pd.DataFrame(
        {
            "colocation": key,
            "member": ran["member"],
            "members": ran["members"],
            "job_id": ran["job_id"],
            "family": [campaign.jobs[job_id].job.family for job_id in ran["job_id"]],
            "device_kind": ran["device_kind"],
            "machine": ran["machine"],
            "campaign": ran["campaign"],
            "share": ran["share"],
            "slowdown": ran["slowdown"].clip(lower=1.0),
        }
    )


def device_rows(campaigns: Sequence[Campaign]) -> list[dict[str, object]]:
    """Calibrated devices, the last campaign's where a kind was measured more than once."""
    latest = {d.kind: d for c in campaigns for d in c.devices.values()}
    return [asdict(latest[kind]) for kind in sorted(latest)]


def featurize(folders: Sequence[Path], target: Path) -> None:
    """Write solo.parquet, interference.parquet and devices.json of all campaigns.

    Raises
    ------
    TableError
        A campaign's tables are damaged.
    TrainingError
        No campaign holds a job that ran.
    """
    campaigns = [read_campaign(folder) for folder in folders]
    solo = pd.concat([featurize_solo(c) for c in campaigns], ignore_index=True)
    interference = pd.concat([featurize_interference(c) for c in campaigns], ignore_index=True)
    if solo.empty:
        raise TrainingError(
            f"no job ran in {', '.join(map(str, folders))}; measure some with `presage profile`"
        )
    solo["reason.job"] = reasons(solo, job_folds(list(solo["job_id"])))
    solo["reason.family"] = reasons(solo, family_folds(list(solo["family"])))
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "solo.parquet", solo.to_parquet)
    write_atomically(target / "interference.parquet", interference.to_parquet)
    rows = json.dumps(device_rows(campaigns), indent=2, sort_keys=True) + "\n"
    write_atomically(target / "devices.json", lambda path: path.write_text(rows))


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: campaigns -> features")
    parser.add_argument("campaigns", type=Path, nargs="+", help="folders of measured tables")
    parser.add_argument("--target", type=Path, required=True)
    args = parser.parse_args(argv)
    featurize(args.campaigns, args.target)


if __name__ == "__main__":
    run_stage(main)
