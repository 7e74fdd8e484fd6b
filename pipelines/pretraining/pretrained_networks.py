"""Pretrained release of public tables, and the networks to fine-tune from.

Only the networks of GPUs are fine-tuned. Those of processors were trained on the campaigns that
`dvc.yaml` trains and evaluates on, so a fold would start from its held-out rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from presage.errors import ReleaseError
from presage.features.device.device import Device
from presage.features.device.device_class import GPU
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.features.tables.campaign import Campaign
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
        """Return the domains of the device classes that are fine-tuned from."""
        domains = self.release.domains
        return {name: domains[name] for name in STARTS if name in domains}

    def devices(self, predictor: str) -> set[str]:
        """Return the device kinds in the training data of the networks to start from."""
        found = self.release.trained_devices.get(predictor, ())
        return {kind for kind in found if self.release.find_device_class(kind) in STARTS}

    @property
    def calibrated(self) -> dict[str, Device]:
        """Return the devices of the training data, as their source measured them."""
        kinds = set().union(*map(self.devices, QUANTITIES))
        return {kind: device for kind, device in self.release.devices.items() if kind in kinds}

    def restore_speeds(self, campaign: Campaign) -> Campaign:
        """Return a campaign in which trained kinds of GPUs have the speeds of the training data.

        The networks learned how far a device is from these speeds, most of which are data sheets.
        `presage profile` measures less: a matrix product reaches four fifths of the peak. Networks
        that are fed measured speeds count this twice. A kind that is not in the training data keeps
        its measured speeds. Memory sizes stay as measured.
        """
        known = self.calibrated
        devices = {
            key: _with_speeds(device, known[device.kind]) if device.kind in known else device
            for key, device in campaign.devices.items()
        }
        return replace(campaign, devices=devices)

    def most_members(self, name: str) -> int:
        """Return the size of the largest co-location in the training data of a device class."""
        return self.release.max_members[name] if name in STARTS else 1

    def networks(self, predictor: str) -> dict[str, Path]:
        """Return the files of the networks to start from, by device class; may be empty."""
        paths = {name: self.folder / NETWORKS / f"{predictor}-{name}.npz" for name in STARTS}
        return {name: path for name, path in paths.items() if path.is_file()}


def _with_speeds(device: Device, of: Device) -> Device:
    """Return a device with the speeds ``of`` another one."""
    return replace(
        device,
        peak_flops_per_s=of.peak_flops_per_s,
        memory_bandwidth_bytes_per_s=of.memory_bandwidth_bytes_per_s,
        op_overhead_s=of.op_overhead_s,
    )


def read_pretrained(folder: Path | None) -> Pretrained | None:
    """Read the pretrained release at ``folder``; None without a folder.

    Raises
    ------
    ReleaseError
        The release is corrupt or of another version, or its networks are missing.
    """
    if folder is None:
        return None
    found = Pretrained(folder, load_release(folder / RELEASE))
    for predictor in QUANTITIES:
        if found.devices(predictor) and not found.networks(predictor):
            raise ReleaseError(
                f"{folder / NETWORKS}: no networks of {predictor}, which the release was trained "
                "with; restore them from git, or rebuild both with `make pretrained`"
            )
    return found
