"""Export of the learnt policy as ONNX: the same weights give the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from presage.models.onnx_export.export import export
from presage.placement.learnt.scorer import JobScorer
from presage.schedulers.policies.failures.learnt.placement_features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
)
from presage.system.files.atomic_file import replace_bytes

OUTPUT = "logits"


class _Logits(nn.Module):
    """Scorer without its value."""

    def __init__(self, scorer: JobScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, jobs: Tensor, cluster: Tensor, allowed: Tensor, advised: Tensor) -> Tensor:
        logits: Tensor = self.scorer(jobs, cluster, allowed, advised).logits
        return logits


def export_onnx(scorer: JobScorer, path: Path) -> str:
    """Write a scorer as an ONNX file and return the SHA-256 of the file.

    Inputs are ``jobs`` of shape (S, J, F), ``cluster`` (S, G), ``allowed`` and ``advised``
    (S, J + 1), both bool; the output ``logits`` has the shape (S, J + 1). S and J are free; J + 1
    is the length of ``allowed``.
    """
    states, jobs = 3, 5
    mask = torch.ones(states, jobs + 1, dtype=torch.bool)
    examples = {
        "jobs": (torch.zeros(states, jobs, len(JOB_FEATURES)), ("states", "jobs")),
        "cluster": (torch.zeros(states, len(CLUSTER_FEATURES)), ("states",)),
        "allowed": (mask, ("states", "actions")),
        "advised": (mask.clone(), ("states", "actions")),
    }
    content = export(_Logits(scorer), examples, OUTPUT)
    replace_bytes(path, content, durable=True)
    return hashlib.sha256(content).hexdigest()
