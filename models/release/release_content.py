"""Content of a release, and writing it to a folder with its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import columns, schema_hash
from presage.features.device.device import Device
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.features.scaling.scaling_law import ScalingLaw
from presage.models.calibration.training_domain import Domain
from presage.models.release.probes import Probes
from presage.models.release.release import (
    FORMAT,
    MANIFEST,
    ByClass,
    Release,
    load_release,
)
from presage.models.release.release_id import content_id
from presage.system.files.atomic_file import write_new
from presage.system.files.atomic_folder import replaced_folder

_MODE = 0o666  # before the umask


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseContent:
    """Content of a release; see :class:`~presage.models.release.release.Release`.

    Attributes
    ----------
    models : mapping of str to bytes
        ONNX file of each predictor.
    metrics : mapping
        Metrics of the evaluation, serializable as JSON.
    data_digest : str
        Digest of the training tables.
    versions : mapping of str to str
        Versions of the libraries used in training.
    guarantees, trained_on, training_data, scaling_law : optional
        Omitted from the manifest if None.
    trained_releases : mapping of str to collection of float
        Framework releases in training, by device class.
    """

    models: Mapping[str, bytes]
    levels: Sequence[float]
    devices: Sequence[Device]
    trained_devices: Mapping[str, Collection[str]]
    max_members: Mapping[str, int]
    domains: Mapping[str, Domain]
    novelty_margins: Mapping[str, Mapping[str, ByClass]]
    setup_s: Mapping[str, Sequence[float]]
    probes: Probes
    metrics: Mapping[str, Any]
    data_digest: str
    versions: Mapping[str, str]
    guarantees: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None
    trained_on: Collection[str] | None = None
    training_data: Mapping[str, Any] | None = None
    scaling_law: ScalingLaw | None = None
    trained_releases: Mapping[str, Collection[float]] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """Return the content of ``release.json``."""
        content = {
            "format": FORMAT,
            "feature_set": "full",
            "schema_hash": schema_hash("full"),
            "columns": columns("full"),
            "member_columns": list(MEMBER_COLUMNS),
            "op_kinds": list(OP_KINDS),
            "levels": list(self.levels),
            "predictors": {
                name: {
                    "unit": quantity.unit,
                    "sha256": hashlib.sha256(self.models[name]).hexdigest(),
                }
                for name, quantity in QUANTITIES.items()
                if name in self.models
            },
            "devices": [_device_as_json(device) for device in self.devices],
            "trained_devices": {
                name: sorted(self.trained_devices[name])
                for name in QUANTITIES
                if name in self.models
            },
            "max_members": dict(self.max_members),
            "domains": {name: domain.as_json() for name, domain in self.domains.items()},
            "trained_releases": {name: sorted(has) for name, has in self.trained_releases.items()},
            "novelty_margins": {
                predictor: {name: _margins_as_json(found) for name, found in by_novelty.items()}
                for predictor, by_novelty in self.novelty_margins.items()
            },
            "setup_s": {kind: list(values) for kind, values in self.setup_s.items()},
            "probes": self.probes.as_json(),
            "metrics": self.metrics,
            "data_digest": self.data_digest,
            "versions": dict(self.versions),
            **self._optional(),
        }
        return content | {"release_id": content_id(content)}

    def _optional(self) -> dict[str, Any]:
        optional = {
            "promises": self.guarantees,
            "trained_on": None if self.trained_on is None else sorted(self.trained_on),
            "scaling_law": None if self.scaling_law is None else self.scaling_law.as_json(),
            "learnt_from": None if self.training_data is None else dict(self.training_data),
        }
        return {name: value for name, value in optional.items() if value is not None}


def write_release(folder: Path, content: ReleaseContent) -> Release:
    """Write a release folder in place of an older one.

    A reader finds the complete old or new release; on a system that cannot swap two folders, the
    folder is missing for an instant. If writing fails or is interrupted, the old release stays.
    """
    with replaced_folder(folder) as partial:
        for name, model in content.models.items():
            write_new(partial / f"{name}.onnx", model, mode=_MODE)
        manifest = json.dumps(content.manifest(), indent=2, sort_keys=True) + "\n"
        write_new(partial / MANIFEST, manifest.encode(), mode=_MODE)
    return load_release(folder)


def _device_as_json(device: Device) -> dict[str, Any]:
    return asdict(device) | {"peak_flops_per_s": dict(device.peak_flops_per_s)}


def _margins_as_json(by_class: ByClass) -> dict[str, dict[str, float]]:
    return {
        name: {f"{level:g}": margin for level, margin in margins.items()}
        for name, margins in by_class.items()
    }
