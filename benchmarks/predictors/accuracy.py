"""Error of every predictor on the committed campaigns, written to docs/benchmarks/accuracy.md.

Run ``python -m benchmarks.predictors.accuracy [CAMPAIGN_FOLDER...]``; it takes some minutes on one
core. The stages are those of dvc.yaml on only these campaigns, so the page does not depend on the
machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.markdown import write_page
from presage.features.quantities.quantity_registry import solo_quantities
from presage.pipelines.stages import evaluate, featurize, train, train_interference

PAGE = Path("docs/benchmarks/accuracy.md")
COMMITTED = [Path("data/profiles/cpu-2"), Path("data/profiles/cpu-2-zoo")]
MODELS = {
    "mlp": "MLP",
    "mlp_published": "MLP, published features",
    "boosted_trees": "boosted trees",
    "linear": "linear",
    "constant": "constant",
    "mean_by_members": "mean by number of members",
}


def measure(campaigns: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Return metrics of campaigns, computed by running every stage."""
    features, models = str(folder / "features"), folder / "models"
    featurize.main([*map(str, campaigns), "--target", features])
    for name in solo_quantities():
        train.main([name, "--features", features, "--target", str(models / name)])
    common = ["--features", features, "--models", str(models)]
    train_interference.main([*common, "--target", str(models / "interference")])
    evaluate.main([*common, "--target", str(folder / "evaluation")])
    metrics: dict[str, Any] = json.loads((folder / "evaluation" / "metrics.json").read_text())
    return metrics


def table(metrics: dict[str, Any]) -> list[str]:
    """Return Markdown rows: one for each predictor, split and model."""
    lines = [
        "| predictor | held out by | model | MAPE % | median % | within 10 % | MAE "
        "| 80 % interval covers | 90 % covers | 80 % width |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for predictor, splits in metrics.items():
        for split in ("job", "family"):
            for key, name in MODELS.items():
                found = splits[split].get(key)
                if found is None:
                    continue
                is_best = found["mape"] == min(one["mape"] for one in splits[split].values())
                cells = [f"{found[m]:.1f}" for m in ("mape", "median_ape", "within_10pct")]
                cells.append(f"{found['mae']:.3g}")
                if "coverage_80%" in found:
                    cells += [f"{found[f'coverage_{c}%']:.0f}" for c in (80, 90)]
                    cells.append(f"{found['interval_width_80%']:.0f}")
                else:
                    cells += ["", "", ""]
                what = predictor.replace("_", " ")
                model = f"**{name}**" if is_best else name
                lines.append(f"| {what} | {split} | {model} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Write the page."""
    campaigns = [Path(name) for name in sys.argv[1:]] or COMMITTED
    with tempfile.TemporaryDirectory() as folder:
        metrics = measure(campaigns, Path(folder))
        solo = pd.read_parquet(Path(folder) / "features" / "solo.parquet")
        shared = pd.read_parquet(Path(folder) / "features" / "interference.parquet")
    named = " ".join(map(str, campaigns))
    rows = [
        "# Accuracy on the committed campaigns",
        "",
        "This page has the error of every predictor and of its baselines on measured jobs. "
        f"Written by `python -m benchmarks.predictors.accuracy {named}`: {len(solo)} solo jobs of "
        f"{solo['family'].nunique()} families and {shared['colocation'].nunique()} co-locations "
        f"({len(shared)} victims) on {', '.join(sorted(set(solo['device_kind'])))}. "
        "All figures are for held-out rows: five folds by job (a digest of its name), and each "
        "family left out in turn. A co-location is held out if any of its members is. Baselines "
        "use the same features, folds and target (the constant: the median of the target). The MLP "
        "of step times is its mean with other boosted trees (decision 65). MAE is "
        "in the target's unit: fraction, bytes, seconds, or factor. Width is relative to the "
        "measured value, in per cent. The hyper-parameters (params.yaml) were chosen from about "
        "fifteen settings on the same folds, so the networks' figures are slightly optimistic; "
        "the baselines were not tuned.",
        "",
        *table(metrics),
        "",
    ]
    write_page(PAGE, rows)
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
