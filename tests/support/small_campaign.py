"""A few families of a committed campaign: real measurements that train in seconds."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd
import pyarrow as pa

from presage.features.tables import schemas as tables

PROFILES = Path(__file__).parents[2] / "data/profiles"
FAMILIES = ("convnext", "gnn", "mlp", "neumf", "resnet", "td3", "vgg")


def small_campaign(
    folder: Path, families: Collection[str] = FAMILIES, solo: Collection[str] | None = None
) -> Path:
    """The folder, with the tables of the campaign of its name cut to jobs of some families.

    With ``solo`` only the jobs of these ids have solo measurements; co-locations stay.
    """
    jobs, nodes, executions, colocations, devices = (
        tables.read(table, PROFILES / folder.name / f"{name}.parquet").to_pandas(
            types_mapper=pd.ArrowDtype
        )
        for name, table in tables.CAMPAIGN_TABLES.items()
    )
    jobs = jobs[jobs["family"].isin(families)]
    strange = colocations.loc[~colocations["job_id"].isin(jobs["job_id"]), "colocation_id"]
    cut = {
        "jobs": jobs,
        "nodes": nodes[nodes["graph_digest"].isin(jobs["graph_digest"])],
        "executions": executions[executions["job_id"].isin(solo or jobs["job_id"])],
        "colocations": colocations[~colocations["colocation_id"].isin(strange)],
        "devices": devices,
    }
    for name, rows in cut.items():
        data = pa.Table.from_pandas(rows, preserve_index=False)
        tables.write(tables.CAMPAIGN_TABLES[name], data, folder / f"{name}.parquet")
    return folder
