"""Devices and shares of devices: the hardware part of every feature vector (requirement F3)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from presage.errors import ConfigError, InvalidJobError, UnknownDeviceError
from presage.features.device.catalogue_file import read_device_file
from presage.features.device.names import normalize_name, parse_name
from presage.system.text.known_names import did_you_mean

SHARING_MODES = ("exclusive", "time-slice", "mps", "mig", "mig-mps", "cpu-quota")

CATALOGUE_FILE = Path(__file__).with_name("catalogue.yaml")
DEVICES_VARIABLE = "PRESAGE_DEVICES"  # path of a file with further kinds
ADD_KIND = (
    "`presage devices` lists all kinds; measure the device with `presage profile`, or add its data "
    "sheet with --devices FILE"
)


@dataclass(frozen=True, slots=True)
class Share:
    """Fraction of a device's compute that a job may use, and the mechanism that limits the job."""

    fraction: float = 1.0
    mode: str = "exclusive"

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InvalidJobError(
                f"share {self.fraction} of a device is not valid; use a fraction above 0 and at "
                "most 1"
            )
        if self.mode not in SHARING_MODES:
            raise InvalidJobError(
                f"sharing mode {self.mode!r} is not known; use one of {', '.join(SHARING_MODES)}"
            )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Device:
    """A kind of device, from its data sheet or calibrated on a machine.

    Attributes
    ----------
    compute_capability : float
        NVIDIA's number (7.0 for a V100); 0 for a CPU.
    cores : int
        CUDA cores, or CPU cores.
    peak_flops_per_s : Mapping[str, float]
        FLOP/s per precision; "fp32" is required.
    memory_bandwidth_bytes_per_s : float
        Bytes per second.
    op_overhead_s : float
        Least time between two operators: dispatch on a CPU, launch on a GPU.
    context_bytes : int
        Memory that a job uses before its first tensor: framework, CUDA context.
    """

    kind: str
    compute_capability: float
    memory_bytes: int
    cores: int
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bandwidth_bytes_per_s: float
    op_overhead_s: float
    context_bytes: int

    def __post_init__(self) -> None:
        positive = {
            "memory_bytes": self.memory_bytes,
            "cores": self.cores,
            "memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s,
            "peak_flops_per_s['fp32']": self.peak_flops_per_s.get("fp32", 0.0),
            **{
                f"peak_flops_per_s[{name!r}]": value
                for name, value in self.peak_flops_per_s.items()
            },
        }
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise InvalidJobError(
                    f"device {self.kind!r}: {name}={value}, must be a finite number > 0; "
                    "take it from the data sheet"
                )
        for name in ("compute_capability", "op_overhead_s", "context_bytes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidJobError(
                    f"device {self.kind!r}: {name}={value}, must be a finite number >= 0; "
                    "take it from the data sheet, or measure it with `presage profile`"
                )

    def flops_per_s(self, precision: str) -> float:
        """Return peak FLOP/s at ``precision``, or fp32's if the device has no figure for it."""
        return self.peak_flops_per_s.get(precision, self.peak_flops_per_s["fp32"])


@cache
def _data_sheets() -> Mapping[str, Mapping[str, Any]]:
    """Return the data sheets of the catalogue and of the file in ``PRESAGE_DEVICES``."""
    import yaml

    # libyaml, where PyYAML has it, saves every command 0.1 s.
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    rows: dict[str, Mapping[str, Any]] = yaml.load(CATALOGUE_FILE.read_text(), loader)  # noqa: S506
    if path := os.environ.get(DEVICES_VARIABLE):
        rows |= _read_added_sheets(Path(path), rows)
    return rows


def _read_added_sheets(
    path: Path, known: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return the data sheets of a user's file; a name must not be another device's."""
    taken = {key: kind for kind, row in known.items() for key in _keys(kind, row)}
    found: dict[str, Mapping[str, Any]] = {}
    for kind, (row, line) in read_device_file(path).items():
        for key in _keys(kind, row):
            if taken.setdefault(key, kind) != kind or kind in known:
                raise ConfigError(
                    f"{path}:{line}: {kind!r} is already a name of {taken[key]!r}; "
                    "use other names for the new kind"
                )
        found[kind] = row
    return found


def _keys(kind: str, row: Mapping[str, Any]) -> set[str]:
    """Return the normalized names of a kind, its own included; a bare number is not a name."""
    keys = {normalize_name(name) for name in (kind, *row.get("names", ()))}
    return {key for key in keys if key and not key.isdigit()}


def load_device_file(path: Path) -> None:
    """Add the device kinds in a file to the catalogue of this process and its children.

    Raises
    ------
    ConfigError
        As :func:`presage.features.device.catalogue_file.read_device_file`, or a name is already
        another device's.
    """
    os.environ[DEVICES_VARIABLE] = str(path.absolute())
    clear_device_cache()
    catalogue()


def clear_device_cache() -> None:
    """Clear the caches, so that the next use reads catalogue and ``PRESAGE_DEVICES`` again."""
    for cached in (_data_sheets, catalogue, _kinds_by_name, _gpus_by_model):
        cached.cache_clear()


@cache
def catalogue() -> Mapping[str, Device]:
    """Return devices by kind: those of ``catalogue.yaml``, and those of the user's file."""
    return {
        kind: Device(kind=kind, **{key: value for key, value in row.items() if key != "names"})
        for kind, row in _data_sheets().items()
    }


def device_aliases(kind: str) -> tuple[str, ...]:
    """Return the other names of a kind of the catalogue."""
    return tuple(_data_sheets()[kind].get("names", ()))


@cache
def _kinds_by_name() -> Mapping[str, str]:
    """Return kinds by the normalized form of each of their names."""
    return {key: kind for kind, row in _data_sheets().items() for key in _keys(kind, row)}


@cache
def _gpus_by_model() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return, for each model, its GPU kinds and the forms that their names contain."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for kind, row in _data_sheets().items():
        if catalogue()[kind].compute_capability == 0:
            continue
        names = [parts for name in (kind, *row.get("names", ())) if (parts := parse_name(name))]
        forms = frozenset(parts.form for parts in names if parts.form)
        for parts in names:
            found.setdefault(parts.model, {})[kind] = forms
    return found


def device_kind(name: str) -> str | None:
    """Return the catalogue's kind for a name used by a driver or a published table.

    Memory and form (SXM, PCIe, NVL) may occur anywhere in the name, and must be the card's own.
    The result is None without a data sheet; a variant (laptop, MIG slice) is not the full card.
    """
    if name in catalogue():
        return name
    return _kinds_by_name().get(normalize_name(name)) or _kind_by_parts(name)


def _kind_by_parts(name: str) -> str | None:
    parts = parse_name(name)
    if parts is None or (parts.memory_gb is None and not parts.form):
        return None
    fitting = [
        kind
        for kind, forms in _gpus_by_model().get(parts.model, {}).items()
        if parts.memory_gb in (None, *_gigabytes(catalogue()[kind].memory_bytes))
        and (not parts.form or not forms or parts.form in forms)
    ]
    usual = _kinds_by_name().get(parts.model)
    if usual in fitting:
        return usual
    # Without a form in the name, prefer the kind whose own name has none: an A100 with 80 GB.
    plain = [kind for kind in fitting if (kind_parts := parse_name(kind)) and not kind_parts.form]
    chosen = plain if len(plain) == 1 else fitting
    return chosen[0] if len(chosen) == 1 else None


def _gigabytes(memory_bytes: int) -> tuple[int, int]:
    """Return gigabytes as data sheets round them: binary, or decimal."""
    return round(memory_bytes / 2**30), round(memory_bytes / 1e9)


def find_device(kind: str, known: Mapping[str, Device] | None = None) -> Device:
    """Return the device of a kind: from ``known`` first, else from the catalogue by any name.

    Raises
    ------
    UnknownDeviceError
        No such kind exists; the message names the nearest known kinds.
    """
    found = known_device(kind, known)
    if found is None:
        raise UnknownDeviceError(
            f"no device of kind {kind!r} is in the catalogue; {similar_kinds(kind, known)} "
            f"{ADD_KIND}"
        )
    return found


def known_device(kind: str, known: Mapping[str, Device] | None = None) -> Device | None:
    """Return the same as :func:`find_device`, or None if the kind is unknown."""
    own, named = known or {}, device_kind(kind) or kind
    for name in (kind, named):
        if name in own or name in catalogue():
            return own.get(name) or catalogue()[name]
    return None


def similar_kinds(kind: str, known: Mapping[str, Device] | None = None) -> str:
    """Return the end of a sentence about an unknown device kind, with its full stop."""
    kinds = sorted({*catalogue(), *(known or {})})
    otherwise = f"none of the {len(kinds)} known kinds is similar."
    return did_you_mean(kind.lower(), kinds, most=3, otherwise=otherwise)


def usable_cores() -> int:
    """Return the number of cores this process may use; all cores if the system cannot tell."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def cpu_kind() -> str:
    """Return the kind of this machine's processor: "cpu-" and the cores this process may use."""
    return f"cpu-{usable_cores()}"
