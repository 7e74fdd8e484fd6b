"""``release.json`` as a file and as values: nothing of it is believed before it was checked here.

A release's digest says that it is what somebody made, not that it was made well. Whatever is
wrong is a ValueError that names its place; :func:`presage.models.release.release.load_release` says
of which folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from presage.errors import ReleaseError
from presage.features.device.device import Device

# A manifest has about 350 KB; 128 levels, 100 devices and 500 mixtures would be many.
MAX_BYTES, MAX_ENTRIES, MAX_CHARACTERS = 16 * 2**20, 4096, 256
MAX_MARGIN = 100  # a factor of 10**43
# Of a job's id. Among a million jobs in training, one of a thousand held out is taken for one of
# them by accident in four cases of a million.
JOB_DIGEST_CHARACTERS, MAX_JOBS = 12, 1_000_000
_INTEGER_FIELDS = ("memory_bytes", "cores", "context_bytes")


def read_manifest(path: Path) -> dict[str, Any]:
    """The object that the file holds.

    Raises
    ------
    ReleaseError
        It cannot be read, is too large, or is no object in JSON.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ReleaseError(
                f"{path}: larger than {MAX_BYTES >> 20} MiB, which no manifest is; restore the "
                "folder from the registry"
            )
        content = json.loads(path.read_text())
    except OSError as error:
        raise ReleaseError(
            f"{path}: cannot be read ({error.strerror}); give a folder written by `dvc repro` or "
            "`presage models show --download`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ReleaseError(
            f"{path}: not JSON ({error}); restore the folder from the registry"
        ) from error
    if not isinstance(content, dict):
        raise ReleaseError(f"{path}: not a release manifest; restore the folder from the registry")
    return content


def parse_text(value: Any, where: str) -> str:
    """A text that can be sent, and is no longer than a name."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise ValueError(f"{where} is no text of at most {MAX_CHARACTERS} characters")
    value.encode()  # a lone surrogate is a ValueError
    return value


def parse_number(value: Any, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} is no number")  # noqa: TRY004
    if not math.isfinite(value):
        raise ValueError(f"{where} is not finite")
    return float(value)


def parse_integer(value: Any, where: str) -> int:
    """A whole number that a message can carry."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError(f"{where} is no whole number below 2**63")
    return value


def parse_list(value: Any, where: str) -> list[Any]:
    """A list that is not too long."""
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise ValueError(f"{where} is no list of at most {MAX_ENTRIES} entries")
    return value


def parse_object(value: Any, where: str) -> Mapping[str, Any]:
    """An object with not too many names."""
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise ValueError(f"{where} is no object of at most {MAX_ENTRIES} names")
    for name in value:
        parse_text(name, f"a name in {where}")
    return value


def parse_texts(value: Any, where: str) -> tuple[str, ...]:
    """Texts of a list."""
    return tuple(parse_text(one, f"{where}[{i}]") for i, one in enumerate(parse_list(value, where)))


def parse_numbers(value: Any, where: str) -> tuple[float, ...]:
    """Finite numbers of a list."""
    return tuple(
        parse_number(one, f"{where}[{i}]") for i, one in enumerate(parse_list(value, where))
    )


def parse_levels(value: Any) -> tuple[float, ...]:
    """Quantile levels: rising, between 0 and 1."""
    levels = parse_numbers(value, "levels")
    if not levels or not all(a < b for a, b in zip((0.0, *levels), (*levels, 1.0), strict=True)):
        raise ValueError("levels do not rise from above 0 to below 1")
    return levels


def parse_devices(value: Any) -> dict[str, Device]:
    """Devices by kind; raises InvalidJobError, too, of one that cannot be."""
    devices = {}
    for i, row in enumerate(parse_list(value, "devices")):
        where = f"devices[{i}]"
        fields = dict(parse_object(row, where))
        kind = parse_text(fields.pop("kind"), f"{where}.kind")
        peaks = parse_object(fields["peak_flops_per_s"], f"{where}.peak_flops_per_s")
        fields["peak_flops_per_s"] = {
            name: parse_number(peak, f"{where}.{name}") for name, peak in peaks.items()
        }
        for name in fields.keys() - {"peak_flops_per_s"}:
            fields[name] = (parse_integer if name in _INTEGER_FIELDS else parse_number)(
                fields[name], f"{where}.{name}"
            )
        devices[kind] = Device(kind=kind, **fields)
    return devices


def job_digest(job_id: str) -> str:
    """What a release says of a job that it was trained on: not its name, which may tell much."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:JOB_DIGEST_CHARACTERS]


def parse_job_digests(value: Any) -> frozenset[str] | None:
    """Digests of the jobs in training; None of a release that does not say."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MAX_JOBS:
        raise ValueError(f"trained_on is no list of at most {MAX_JOBS} digests")
    pattern = re.compile(f"[0-9a-f]{{{JOB_DIGEST_CHARACTERS}}}")
    for one in value:
        if not isinstance(one, str) or not pattern.fullmatch(one):
            raise ValueError("trained_on holds what is no digest of a job")
    return frozenset(value)


def parse_guarantees(value: Any) -> dict[str, dict[str, dict[str, float]]]:
    """By predictor and slice: a number of rows, and per cents that are not below 0."""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for predictor, by_slice in parse_object(value, "promises").items():
        for name, figures in parse_object(by_slice, f"promises.{predictor}").items():
            where = f"promises.{predictor}.{name}"
            found = {
                k: parse_number(v, f"{where}.{k}") for k, v in parse_object(figures, where).items()
            }
            if any(figure < 0 for figure in found.values()) or any(
                found.get(share, 0) > 100 for share in ("below", "above", "in_domain")
            ):
                raise ValueError(f"{where} holds what is no number of rows or per cent")
            out.setdefault(predictor, {})[name] = found
    return out


def parse_margins(
    value: Any, where: str, levels: tuple[float, ...]
) -> dict[str, dict[float, float]]:
    """Margins by class of devices and lower level, each of them one of ``levels``."""
    out: dict[str, dict[float, float]] = {}
    for name, margins in parse_object(value, where).items():
        place = f"{where}.{name}"
        out[name] = {
            float(k): parse_number(v, place) for k, v in parse_object(margins, place).items()
        }
        if not out[name].keys() <= set(levels):
            raise ValueError(f"{place} has other levels than the release")
        if any(abs(margin) > MAX_MARGIN for margin in out[name].values()):
            raise ValueError(f"{place} has a margin beyond {MAX_MARGIN}")
    return out
