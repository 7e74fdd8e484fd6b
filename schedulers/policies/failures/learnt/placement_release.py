"""Release of a placement scorer: a folder with an ONNX file and ``release.json``.

ONNX contract
-------------
``jobs`` float32 (states, jobs, ``JOB_FEATURES``), ``cluster`` float32 (states,
``CLUSTER_FEATURES``), ``allowed`` and ``advised`` bool (states, jobs + 1), where the last action is
to wait -> ``logits`` float32 (states, jobs + 1): the largest one is the action to take.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from presage.errors import ReleaseError, one_line
from presage.schedulers.policies.failures.learnt.placement_features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
)

KIND = "placement"  # field `kind` of the manifest
FORMAT = 2
MANIFEST, MODEL_FILE = "release.json", "placement.onnx"
OUTPUT = "logits"
_VERSION = 1  # of the formulas of the features; raise it if a formula changes
_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SizeDomain:
    """Cluster and queue sizes on which the release was compared with every heuristic.

    Attributes
    ----------
    fewest_gpus, most_gpus : int
        Number of devices of a cluster.
    most_jobs_per_gpu : float
        Number of pending and running jobs over that of devices.
    """

    fewest_gpus: int
    most_gpus: int
    most_jobs_per_gpu: float

    def problem(self, gpus: int, jobs: int) -> str:
        """Return why sizes are out of the domain; "" if they are within it."""
        if not self.fewest_gpus <= gpus <= self.most_gpus:
            return f"{gpus} devices are out of its domain of {self.fewest_gpus} to {self.most_gpus}"
        most = self.most_jobs_per_gpu * gpus
        if jobs > most:
            return (
                f"{jobs} jobs are out of its domain of at most {most:g}, "
                f"{self.most_jobs_per_gpu:g} for each device"
            )
        return ""


@dataclass(frozen=True, slots=True)
class PlacementRelease:
    """Placement release whose files have been verified.

    Attributes
    ----------
    release_id : str
        Digest of the manifest, which has the digest of the ONNX file.
    schema_hash : str
        Digest of the features that the scorer was trained on.
    domain : SizeDomain
    exponent, patience : float
        The analytic rule that advises the scorer: order and waiting of the policy ``expected``.
    sets_interval : bool
        Whether jobs with checkpoints get the best interval for their devices.
    repair_s : float
        Expected time from a failure until a job has devices again.
    manifest : mapping
        Content of ``release.json``.
    """

    folder: Path
    release_id: str
    schema_hash: str
    domain: SizeDomain
    exponent: float
    patience: float
    sets_interval: bool
    repair_s: float
    manifest: Mapping[str, Any]

    @property
    def search_params(self) -> Mapping[str, str]:
        """Values by which the registry finds the release."""
        return {f"domain.{name}": str(value) for name, value in self.manifest["domain"].items()}

    @property
    def model(self) -> bytes:
        """Content of the ONNX file."""
        return (self.folder / MODEL_FILE).read_bytes()


@cache
def placement_schema_hash() -> str:
    """Return the digest of the features of this version."""
    content = json.dumps([_VERSION, JOB_FEATURES, CLUSTER_FEATURES])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def placement_release_id(content: Mapping[str, Any]) -> str:
    """Return the id that a manifest with this content must have: 12 hexadecimal digits."""
    rest = {key: value for key, value in content.items() if key != "release_id"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12]


def load_placement_release(folder: Path) -> PlacementRelease:
    """Load the placement release at ``folder`` and verify its files.

    A release with another feature schema is loaded too; a policy must not use its scorer.

    Raises
    ------
    ReleaseError
        A file is missing or was changed, or the folder is no placement release.
    """
    content = _read_manifest(folder / MANIFEST)
    try:
        if content.get("kind") != KIND or content["format"] != FORMAT:
            raise ReleaseError(
                f"{folder}: not a placement release of format {FORMAT}; give a folder that "
                "`dvc repro placement` wrote"
            )
        if placement_release_id(content) != content["release_id"]:
            raise ReleaseError(
                f"{folder / MANIFEST}: content does not match its release_id "
                f"{one_line(content['release_id'])}; restore the folder from the registry"
            )
        _check_model(folder / MODEL_FILE, str(content["files"][MODEL_FILE]))
        return _parse(folder, content)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ReleaseError(
            f"{folder / MANIFEST}: not a placement release ({type(error).__name__}: "
            f"{one_line(error)}); restore the folder from the registry"
        ) from error


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ReleaseError(f"{path}: larger than 1 MiB; restore the folder from the registry")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ReleaseError(
            f"{path}: cannot be read ({error.strerror}); give the folder of a placement release"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{path}: not JSON; restore the folder from the registry") from error
    if not isinstance(content, dict):
        raise ReleaseError(f"{path}: not a JSON object; restore the folder from the registry")
    return content


def _check_model(path: Path, expected: str) -> None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ReleaseError(
            f"{path}: cannot be read ({error.strerror}); restore the folder from the registry"
        ) from error
    if found != expected:
        raise ReleaseError(
            f"{path}: sha256 is {found[:12]}..., the manifest says {expected[:12]}...; the file "
            "was changed: restore the folder from the registry"
        )


def _parse(folder: Path, content: Mapping[str, Any]) -> PlacementRelease:
    domain, rule = content["domain"], content["rule"]
    numbers = [float(rule[name]) for name in ("exponent", "patience", "repair_s")]
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError(f"rule {numbers} has numbers that are not finite and >= 0")
    return PlacementRelease(
        folder=folder,
        release_id=str(content["release_id"]),
        schema_hash=str(content["schema_hash"]),
        domain=SizeDomain(
            int(domain["fewest_gpus"]), int(domain["most_gpus"]), float(domain["most_jobs_per_gpu"])
        ),
        exponent=numbers[0],
        patience=numbers[1],
        sets_interval=bool(rule["sets_interval"]),
        repair_s=numbers[2],
        manifest=content,
    )
