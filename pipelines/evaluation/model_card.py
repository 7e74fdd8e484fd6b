"""Model card of a release: its training data and accuracy, as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from presage.models.release.release import Release
from presage.pipelines.evaluation.evaluation_tables import error_by, judged, records
from presage.pipelines.importers.import_run import Summary


def model_card(
    release: Release, sources: Sequence[Summary], forecasts: Mapping[str, pd.DataFrame]
) -> str:
    """Return the card of a release, given out-of-fold forecasts of its training data."""
    lines = [
        "# The pretrained release",
        "",
        f"Release `{release.release_id}`, built by `make pretrained`; "
        "[how to use it](../../docs/forecasts/pretrained.md).",
        "",
        "## Training data",
        "",
        "Imported rows; rows without a graph, or of a quantity without a predictor, are not used.",
        "",
        "| source | licence | solo runs | members of co-locations |",
        "|---|---|---:|---:|",
        *(
            f"| [{one.source}]({one.url.split(',')[0]}) | {one.licence} "
            f"| {one.tables.get('executions', 0):,} | {one.tables.get('colocations', 0):,} |"
            for one in sources
        ),
        "| our own campaigns, `data/profiles` | Apache-2.0 | | |",
        "",
        "Measurements by others, under their licences; without gpumemnet (no licence) and lucid "
        "(non-commercial use only).",
        "",
        "## Accuracy",
        "",
        "Mean / median absolute percentage error, and coverage of the 80 % interval, on rows",
        "whose job, or whole family, was left out of training.",
        "",
        "| predictor | device | rows | job left out | covers | family left out | covers |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for predictor, table in forecasts.items():
        found = records(error_by("device", judged(table)))
        by_device: dict[str, dict[str, dict[str, Any]]] = {}
        for row in found:
            by_device.setdefault(row["device"], {})[row["split"]] = row
        for device, by_split in by_device.items():
            cells = [
                f"{row['mape']:.1f} / {row['median_ape']:.1f} | {row['coverage_80%']:.0f} %"
                for row in (by_split["job"], by_split["family"])
            ]
            name, rows = predictor.replace("_", " "), by_split["job"]["rows"]
            lines.append(f"| {name} | {device} | {rows:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
