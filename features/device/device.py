"""Devices and shares of them: the hardware half of every feature vector (requirement F3)."""

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
from presage.features.device.names import parts_of, spelled
from presage.system.known_names import did_you_mean

SHARING_MODES = ("exclusive", "time-slice", "mps", "mig", "mig-mps", "cpu-quota")

CATALOGUE_FILE = Path(__file__).with_name("catalogue.yaml")
DEVICES_VARIABLE = "PRESAGE_DEVICES"  # names a file of further kinds
ADD_KIND = (
    "`presage devices` lists all; measure it with `presage profile`, or add its data sheet by "
    "--devices FILE"
)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a device's compute that a job is given, and how it is held to it."""

    fraction: float = 1.0
    mode: str = "exclusive"

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InvalidJobError(
                f"share of {self.fraction} of a device; give a fraction above 0 and at most 1"
            )
        if self.mode not in SHARING_MODES:
            raise InvalidJobError(
                f"sharing mode {self.mode!r} is not known; use one of {', '.join(SHARING_MODES)}"
            )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Device:
    """A kind of device, by its data sheet or as calibrated on a machine.

    Attributes
    ----------
    compute_capability : float
        NVIDIA's number (7.0 for a V100); 0 for a CPU.
    cores : int
        CUDA cores, or CPU cores.
    peak_flops_per_s : Mapping[str, float]
        FLOP/s per precision; "fp32" is always there.
    memory_bandwidth_bytes_per_s : float
        Bytes per second.
    op_overhead_s : float
        Least time from one operator to the next: dispatch on a CPU, launch on a GPU.
    context_bytes : int
        Memory that a job takes before its first tensor: framework, CUDA context.
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
        """Peak FLOP/s at ``precision``; fp32's where the device has no figure for it."""
        return self.peak_flops_per_s.get(precision, self.peak_flops_per_s["fp32"])


@cache
def _sheets() -> Mapping[str, Mapping[str, Any]]:
    """Sheets of the catalogue, and of the file that ``PRESAGE_DEVICES`` names."""
    import yaml

    rows: dict[str, Mapping[str, Any]] = yaml.safe_load(CATALOGUE_FILE.read_text())
    if path := os.environ.get(DEVICES_VARIABLE):
        rows |= _added(Path(path), rows)
    return rows


def _added(path: Path, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Sheets of a user's file, none of whose names is another device's."""
    taken = {key: kind for kind, row in known.items() for key in _keys(kind, row)}
    found: dict[str, Mapping[str, Any]] = {}
    for kind, (row, line) in read_device_file(path).items():
        for key in _keys(kind, row):
            if taken.setdefault(key, kind) != kind or kind in known:
                raise ConfigError(
                    f"{path}:{line}: {kind} is the name of {taken[key]!r}, which is known already; "
                    "give it, and its names, other ones"
                )
        found[kind] = row
    return found


def _keys(kind: str, row: Mapping[str, Any]) -> set[str]:
    """Spellings of a kind's names; the kind itself is one. "cpu-2" has no name but the kind."""
    keys = {spelled(name) for name in (kind, *row.get("names", ()))}
    return {key for key in keys if key and not key.isdigit()}


def use_devices(path: Path) -> None:
    """Add the kinds of devices in a file to the catalogue, of this process and its children.

    Raises
    ------
    ConfigError
        As :func:`presage.features.device.catalogue_file.read_device_file`; a name is another
        device's.
    """
    os.environ[DEVICES_VARIABLE] = str(path.absolute())
    forget_devices()
    catalogue()


def forget_devices() -> None:
    """Read the catalogue, and the file that ``PRESAGE_DEVICES`` names, again when next asked."""
    for cached in (_sheets, catalogue, _kinds, _models):
        cached.cache_clear()


@cache
def catalogue() -> Mapping[str, Device]:
    """Return devices by name: those of ``catalogue.yaml``, and those of the user's file."""
    return {
        kind: Device(kind=kind, **{key: value for key, value in row.items() if key != "names"})
        for kind, row in _sheets().items()
    }


def names_of(kind: str) -> tuple[str, ...]:
    """Return what else a kind of the catalogue is called."""
    return tuple(_sheets()[kind].get("names", ()))


@cache
def _kinds() -> Mapping[str, str]:
    """Kind by the spelling of each of its names."""
    return {key: kind for kind, row in _sheets().items() for key in _keys(kind, row)}


@cache
def _models() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """GPUs of each model, and the forms that the names of each one say."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for kind, row in _sheets().items():
        if catalogue()[kind].compute_capability == 0:
            continue
        said = [parts for name in (kind, *row.get("names", ())) if (parts := parts_of(name))]
        forms = frozenset(parts.form for parts in said if parts.form)
        for parts in said:
            found.setdefault(parts.model, {})[kind] = forms
    return found


def device_kind(name: str) -> str | None:
    """Kind in the catalogue of what a driver or a published table calls ``name``.

    Memory and form (SXM, PCIe, NVL) may be said anywhere in the name, and must be the card's own.
    None where no sheet is of it: a variant (laptop, MIG slice) is not the card it is named after.
    """
    if name in catalogue():
        return name
    return _kinds().get(spelled(name)) or _kind_by_parts(name)


def _kind_by_parts(name: str) -> str | None:
    said = parts_of(name)
    if said is None or (said.memory_gb is None and not said.form):
        return None
    fitting = [
        kind
        for kind, forms in _models().get(said.model, {}).items()
        if said.memory_gb in (None, *_gigabytes(catalogue()[kind].memory_bytes))
        and (not said.form or not forms or said.form in forms)
    ]
    usual = _kinds().get(said.model)
    if usual in fitting:
        return usual
    # Of an A100 with 80 GB the kind that is called no more than that.
    plain = [kind for kind in fitting if (own := parts_of(kind)) and not own.form]
    chosen = plain if len(plain) == 1 else fitting
    return chosen[0] if len(chosen) == 1 else None


def _gigabytes(memory_bytes: int) -> tuple[int, int]:
    """As data sheets round: binary, or decimal."""
    return round(memory_bytes / 2**30), round(memory_bytes / 1e9)


def find_device(kind: str, known: Mapping[str, Device] | None = None) -> Device:
    """Device of that kind: from ``known`` first, else from the catalogue, by any of its names.

    Raises
    ------
    UnknownDeviceError
        Names the nearest kinds that are known.
    """
    found = known_device(kind, known)
    if found is None:
        raise UnknownDeviceError(
            f"no device of kind {kind!r} is in the catalogue; {similar_kinds(kind, known)} "
            f"{ADD_KIND}"
        )
    return found


def known_device(kind: str, known: Mapping[str, Device] | None = None) -> Device | None:
    """As :func:`find_device`, None where there is none."""
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
    """Processor cores that this process may use; all of them where the system cannot tell."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def cpu_kind() -> str:
    """Name of this machine's processor as a device: "cpu-" and the cores this process may use."""
    return f"cpu-{usable_cores()}"
