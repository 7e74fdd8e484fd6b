"""What a release is made of and how far to trust it, as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from presage.features.quantities.registry import QUANTITIES
from presage.models.release.release import Release
from presage.pipelines.evaluation.evaluation_tables import error_by, judged, records
from presage.pipelines.importers.run import Summary


def model_card(
    release: Release, sources: Sequence[Summary], forecasts: Mapping[str, pd.DataFrame]
) -> str:
    """The page, of a release and the out-of-fold forecasts of the rows that taught it."""
    lines = [
        "# The release that comes with Presage",
        "",
        f"Release `{release.release_id}`, made by `make pretrained`; "
        "[what it is for](../../docs/pretrained.md).",
        "",
        "## Taught by",
        "",
        "Rows imported; those without a graph, or of what no predictor learns, taught nothing.",
        "",
        "| source | licence | runs alone | members of co-locations |",
        "|---|---|---:|---:|",
        *(
            f"| [{one.source}]({one.url.split(',')[0]}) | {one.licence} "
            f"| {one.tables.get('executions', 0):,} | {one.tables.get('colocations', 0):,} |"
            for one in sources
        ),
        "| our own campaigns, `data/profiles` | Apache-2.0 | | |",
        "",
        "Facts measured by others, under their licences; none of gpumemnet (no licence) or lucid "
        "(not for commercial use).",
        "",
        "## How wrong",
        "",
        "Mean / median absolute percentage error, and how many of the 80 % intervals hold, of rows",
        "whose job, or whole family, was left out.",
        "",
        "| predictor | device | rows | job left out | covers | family left out | covers |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for predictor in QUANTITIES:
        found = records(error_by("device", judged(forecasts[predictor])))
        by_device: dict[str, dict[str, dict[str, Any]]] = {}
        for row in found:
            by_device.setdefault(row["device"], {})[row["split"]] = row
        for device, of_split in by_device.items():
            cells = [
                f"{row['mape']:.1f} / {row['median_ape']:.1f} | {row['coverage_80%']:.0f} %"
                for row in (of_split["job"], of_split["family"])
            ]
            name, rows = predictor.replace("_", " "), of_split["job"]["rows"]
            lines.append(f"| {name} | {device} | {rows:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
