"""Placement releases that tests are short with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from presage.placement.learnt.export import export_onnx
from presage.placement.learnt.scorer import JobScorer
from presage.schedulers.policies.failures.learnt.placement_release import (
    FORMAT,
    KIND,
    MANIFEST,
    MODEL_FILE,
    placement_release_id,
    placement_schema_hash,
)


def random_scorer(seed: int = 1) -> JobScorer:
    """Return a scorer that departs from the rule in many states."""
    torch.manual_seed(seed)
    scorer = JobScorer()
    for last in (scorer.start, scorer.wait):
        torch.nn.init.normal_(last.weight, std=4.0)
    scorer.trust.data.fill_(0.1)
    return scorer


def write_release(folder: Path, scorer: JobScorer | None = None, **changed: Any) -> Path:
    """Write a release with a scorer; ``changed`` are fields of the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    export_onnx(scorer or random_scorer(), folder / MODEL_FILE)
    content = {
        "kind": KIND,
        "format": FORMAT,
        "schema_hash": placement_schema_hash(),
        "files": {MODEL_FILE: hashlib.sha256((folder / MODEL_FILE).read_bytes()).hexdigest()},
        "domain": {"fewest_gpus": 1, "most_gpus": 64, "most_jobs_per_gpu": 50.0},
        "rule": {"exponent": 0.5, "patience": 0.7, "repair_s": 7200.0, "sets_interval": False},
        **changed,
    }
    content["release_id"] = placement_release_id(content)
    (folder / MANIFEST).write_text(json.dumps(content))
    return folder
