"""DVC stage that trains a placement scorer, exports it, and evaluates it on other clusters.

It learns from the gains of single actions over those of the analytic rule, by rollouts on the same
failures (:mod:`presage.placement.learnt.improvement`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from presage.pipelines.stages.stage import read_params, replace_folder, run_stage
from presage.placement.core.batches import CHECKPOINTS, BatchSettings
from presage.placement.core.rules import LARGEST, LEAST_FAILING, Rule
from presage.placement.learnt.export import export_onnx
from presage.placement.learnt.improvement import improve_rule
from presage.placement.stage.paired_evaluation import (
    heuristic_makespans,
    paired_ratio,
    rounded,
    scorer_makespans,
    worlds_of,
)
from presage.schedulers.policies.failures.learnt.placement_release import (
    FORMAT,
    KIND,
    MANIFEST,
    MODEL_FILE,
    placement_release_id,
    placement_schema_hash,
)

METRICS = "metrics.json"
EVALUATION_SEED = 9_000_000  # batches of no training


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSettings:
    """Settings of the stage; its jobs write checkpoints.

    Attributes
    ----------
    gpus : tuple of int
        Sizes of the clusters of the evaluation; the smallest and the largest bound the domain.
    trained_gpus : tuple of int
        Sizes of the clusters of the training; by default the largest one of ``gpus``.
    jobs_per_gpu : float
        Jobs of a batch for each GPU.
    exponent, patience : float
        Order and waiting of the analytic rule, as of the policy ``expected``.
    labelled : int
        Batches on which the gains of actions are measured, in equal parts of each size.
    validated : int
        Batches that choose the gain from which the scorer departs from the rule. On other batches
        of each size of ``gpus``, it may not be worse than the rule.
    epochs : int
        Passes over the gains.
    evaluated : int
        Batches of each size in the evaluation.
    """

    gpus: tuple[int, ...] = (8,)
    trained_gpus: tuple[int, ...] = ()
    jobs_per_gpu: float = 1.5
    exponent: float = 0.75
    patience: float = 0.3
    labelled: int = 60
    validated: int = 60
    epochs: int = 4
    evaluated: int = 200
    seed: int = 0

    @property
    def sizes_of_training(self) -> tuple[int, ...]:
        """Sizes of the clusters of the training."""
        return self.trained_gpus or (max(self.gpus),)


def rule_of(settings: PlacementSettings) -> Rule:
    """Return the analytic rule that advises the scorer."""
    return Rule(
        order=LARGEST, exponent=settings.exponent, choice=LEAST_FAILING,
        patience=settings.patience, is_interval_chosen=True,
    )  # fmt: skip


def train_placement(
    settings: PlacementSettings, folder: Path, base: BatchSettings = CHECKPOINTS
) -> dict[str, Any]:
    """Write a placement release to an empty folder; return its metrics.

    The same settings give the same ONNX file.

    Parameters
    ----------
    base : BatchSettings
        Distribution of the batches, whose numbers of GPUs and jobs are those of ``settings``.
    """
    rule, worlds = rule_of(settings), worlds_of(base, settings.gpus, settings.jobs_per_gpu)
    trained = worlds_of(base, settings.sizes_of_training, settings.jobs_per_gpu)
    judged = [one for one in worlds if one.gpus not in settings.sizes_of_training]
    scorer = improve_rule(
        trained, rule, seed=settings.seed, labelled=settings.labelled, epochs=settings.epochs,
        validated=settings.validated, judged=judged,
    )  # fmt: skip
    digest = export_onnx(scorer, folder / MODEL_FILE)
    makespans = heuristic_makespans(worlds, rule, settings.evaluated, seed=EVALUATION_SEED)
    model = (folder / MODEL_FILE).read_bytes()
    learnt = scorer_makespans(worlds, rule, model, settings.evaluated, seed=EVALUATION_SEED)
    metrics = {
        name: paired_ratio(learnt, one, confidence=0.95, resamples=2000, seed=0)._asdict()
        for name, one in makespans.items()
    }
    content = _manifest(settings, base, digest) | {"metrics": _rounded(metrics)}
    content["makespans_s"] = rounded(makespans | {"learnt": learnt})
    content["release_id"] = placement_release_id(content)
    (folder / MANIFEST).write_text(json.dumps(content, sort_keys=True) + "\n")
    return {"release_id": content["release_id"], "onnx_sha256": digest, **content["metrics"]}


def _manifest(settings: PlacementSettings, base: BatchSettings, digest: str) -> dict[str, Any]:
    training = asdict(settings)
    return {
        "kind": KIND,
        "format": FORMAT,
        "schema_hash": placement_schema_hash(),
        "files": {MODEL_FILE: digest},
        "domain": {
            "fewest_gpus": min(settings.gpus),
            "most_gpus": max(settings.gpus),
            "most_jobs_per_gpu": settings.jobs_per_gpu,
        },
        "rule": {
            "exponent": settings.exponent,
            "patience": settings.patience,
            "repair_s": 3600.0 * base.mttr_h,
            "sets_interval": True,
        },
        "training": training | {"world": {k: str(v) for k, v in asdict(base).items()}},
        # The training data are drawn: the settings and the seed are all of them.
        "data_digest": hashlib.sha256(json.dumps(training).encode()).hexdigest()[:12],
        "versions": {name: version(name) for name in ("presage", "torch", "numpy")},
    }


def _rounded(metrics: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: float(f"{value:.5g}") for key, value in one.items() if key != "is_tie"}
        for name, one in metrics.items()
    }


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: simulated clusters -> scorer")
    parser.add_argument("--target", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    settings = read_params("placement", PlacementSettings, besides=("gate",))

    def write(folder: Path) -> None:
        metrics = train_placement(settings, folder)
        (folder / METRICS).write_text(json.dumps(metrics, indent=1) + "\n")

    replace_folder(args.target, (MODEL_FILE, MANIFEST, METRICS), write)
    print(f"placement release in {args.target}")  # noqa: T201


if __name__ == "__main__":
    run_stage(main)
