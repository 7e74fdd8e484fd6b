"""What comes with Presage: a release of public tables, and the networks that they taught.

Only GPUs' networks are gone on from. Those of processors were taught by the campaigns that
`dvc.yaml` trains and judges on: a fold would begin with what its held-out rows had said.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from presage.errors import ReleaseError
from presage.features.device.device import Device
from presage.features.device.device_class import GPU
from presage.features.quantities.registry import QUANTITIES
from presage.models.calibration.training_domain import Domain
from presage.models.release.release import Release, load_release

STARTS = (GPU,)
RELEASE, NETWORKS = "release", "networks"


@dataclass(frozen=True)
class Pretrained:
    """The folder ``data/pretrained``."""

    folder: Path
    release: Release

    @property
    def domains(self) -> dict[str, Domain]:
        """Of the classes that are gone on from."""
        domains = self.release.domains
        return {name: domains[name] for name in STARTS if name in domains}

    def devices(self, predictor: str) -> set[str]:
        """Kinds that the networks to go on from have learnt."""
        found = self.release.trained_devices.get(predictor, ())
        return {kind for kind in found if self.release.class_of(kind) in STARTS}

    @property
    def calibrated(self) -> dict[str, Device]:
        """Devices that they were learnt from, as their source measured them."""
        kinds = set().union(*map(self.devices, QUANTITIES))
        return {kind: device for kind, device in self.release.devices.items() if kind in kinds}

    def most_members(self, name: str) -> int:
        """Of the largest co-location that was learnt on that class of devices."""
        return self.release.max_members[name] if name in STARTS else 1

    def networks(self, predictor: str) -> dict[str, Path]:
        """By class of devices, files of what to go on from; of some predictors there is nothing."""
        paths = {name: self.folder / NETWORKS / f"{predictor}-{name}.npz" for name in STARTS}
        return {name: path for name, path in paths.items() if path.is_file()}


def read_pretrained(folder: Path | None) -> Pretrained | None:
    """What lies at ``folder``; nothing where none is named.

    Raises
    ------
    ReleaseError
        The release there is damaged, or of another version, or its networks are not there.
    """
    if folder is None:
        return None
    found = Pretrained(folder, load_release(folder / RELEASE))
    for predictor in QUANTITIES:
        if found.devices(predictor) and not found.networks(predictor):
            raise ReleaseError(
                f"{folder / NETWORKS}: no networks of {predictor}, which the release beside has "
                "learnt; restore them from git, or make both again with `make pretrained`"
            )
    return found
