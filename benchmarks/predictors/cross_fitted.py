"""Cross-fitted releases: each is trained without one half of the job families.

Run ``python -m benchmarks.predictors.cross_fitted TABLES TARGET``. From the tables of a source, as
``presage import`` writes them, TARGET/0/release and TARGET/1/release are each trained on every
other family, starting from the pretrained networks like an operator's retraining. Each takes about
seven minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from presage.features.quantities.quantity_registry import solo_quantities
from presage.features.tables import schemas as tables

FOLDS = 2
OURS = ("data/profiles/cpu-2", "data/profiles/cpu-2-zoo")


def fold_of(families: Sequence[str]) -> dict[str, int]:
    """Return, for each family, the release that was not trained on it."""
    return {family: i % FOLDS for i, family in enumerate(sorted(set(families)))}


def main() -> None:
    """Split, and let the stages learn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("tables", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    for fold in range(FOLDS):
        _write_without(fold, args.tables, args.target / f"{fold}" / "tables")
        _learn(args.target / f"{fold}")


def _write_without(fold: int, source: Path, target: Path) -> None:
    """Write the tables of a source without a fold's families and jobs co-located with them."""
    data = {
        name: tables.read(table, source / f"{name}.parquet")
        for name, table in tables.CAMPAIGN_TABLES.items()
    }
    families = data["jobs"]["family"].to_pylist()
    left_out = fold_of(families)
    job_ids = data["jobs"]["job_id"].to_pylist()
    known = [job for job, of in zip(job_ids, families, strict=True) if left_out[of] != fold]
    for name in ("jobs", "executions"):
        data[name] = data[name].filter(pc.is_in(data[name]["job_id"], pa.array(known)))
    together = data["colocations"]
    out_of_domain = together.filter(pc.invert(pc.is_in(together["job_id"], pa.array(known))))
    has_out_of_domain = pc.is_in(
        together["colocation_id"], out_of_domain["colocation_id"].combine_chunks()
    )
    data["colocations"] = together.filter(pc.invert(has_out_of_domain))
    for name, table in tables.CAMPAIGN_TABLES.items():
        tables.write(table, data[name], target / f"{name}.parquet")


def _learn(folder: Path) -> None:
    features, models, pretrained = f"{folder}/features", f"{folder}/models", "data/pretrained"
    _stage("featurize", f"{folder}/tables", *OURS, "--target", features, "--pretrained", pretrained)
    for name in solo_quantities():
        _stage("train", name, "--features", features, "--target", f"{models}/{name}",
               "--pretrained", pretrained)  # fmt: skip
    _stage("train_interference", "--features", features, "--models", models,
           "--target", f"{models}/interference", "--pretrained", pretrained)  # fmt: skip
    _stage("evaluate", "--features", features, "--models", models,
           "--target", f"{folder}/evaluation")  # fmt: skip
    _stage("build_release", "--features", features, "--models", models,
           "--evaluation", f"{folder}/evaluation", "--target", f"{folder}/release",
           "--pretrained", pretrained)  # fmt: skip


def _stage(name: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", f"presage.pipelines.stages.{name}", *arguments], check=True
    )


if __name__ == "__main__":
    main()
