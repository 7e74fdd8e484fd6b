"""Reading and validation of ``release.json``.

The digest of a release proves that it is unchanged, not that its values are valid, so every value
is checked. Functions raise a ValueError that names the field;
:func:`presage.models.release.release.load_release` adds the folder.
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

# A manifest has about 500 KB. Far fewer entries than this are expected in any list.
MAX_BYTES, MAX_ENTRIES, MAX_CHARACTERS = 16 * 2**20, 4096, 256
MAX_MARGIN = 100  # a factor of 10**43
# Length of a job's digest. With a million training jobs and a thousand held-out jobs, the
# probability of any accidental match is four in a million.
JOB_DIGEST_CHARACTERS, MAX_JOBS = 12, 1_000_000
_INTEGER_FIELDS = ("memory_bytes", "cores", "context_bytes")


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the JSON object in a manifest file.

    Raises
    ------
    ReleaseError
        The file cannot be read, is too large, or is not a JSON object.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ReleaseError(
                f"{path}: larger than {MAX_BYTES >> 20} MiB, too large for a manifest; restore the "
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
    """Return a string of limited length that can be encoded as UTF-8."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise ValueError(f"{where} is not a text of at most {MAX_CHARACTERS} characters")
    value.encode()  # a lone surrogate is a ValueError
    return value


def parse_number(value: Any, where: str) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} is not a number")  # noqa: TRY004
    if not math.isfinite(value):
        raise ValueError(f"{where} is not finite")
    return float(value)


def parse_integer(value: Any, where: str) -> int:
    """Return an integer that fits in 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError(f"{where} is not an integer below 2**63")
    return value


def parse_list(value: Any, where: str) -> list[Any]:
    """Return a list of limited length."""
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise ValueError(f"{where} is not a list of at most {MAX_ENTRIES} entries")
    return value


def parse_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return an object with a limited number of keys."""
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise ValueError(f"{where} is not an object of at most {MAX_ENTRIES} keys")
    for name in value:
        parse_text(name, f"a key of {where}")
    return value


def parse_texts(value: Any, where: str) -> tuple[str, ...]:
    """Return the strings of a list."""
    return tuple(
        parse_text(item, f"{where}[{i}]") for i, item in enumerate(parse_list(value, where))
    )


def parse_numbers(value: Any, where: str) -> tuple[float, ...]:
    """Return the finite numbers of a list."""
    return tuple(
        parse_number(item, f"{where}[{i}]") for i, item in enumerate(parse_list(value, where))
    )


def parse_levels(value: Any) -> tuple[float, ...]:
    """Return quantile levels, which increase and lie in (0, 1)."""
    levels = parse_numbers(value, "levels")
    if not levels or not all(a < b for a, b in zip((0.0, *levels), (*levels, 1.0), strict=True)):
        raise ValueError("levels do not increase within (0, 1)")
    return levels


def parse_devices(value: Any) -> dict[str, Device]:
    """Return devices by kind; raise InvalidJobError, too, for impossible values."""
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
    """Return the digest that stands for a training job, whose name may be confidential."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:JOB_DIGEST_CHARACTERS]


def parse_job_digests(value: Any) -> frozenset[str] | None:
    """Return the digests of the training jobs; None if the release does not record them."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MAX_JOBS:
        raise ValueError(f"trained_on is not a list of at most {MAX_JOBS} digests")
    pattern = re.compile(f"[0-9a-f]{{{JOB_DIGEST_CHARACTERS}}}")
    for digest in value:
        if not isinstance(digest, str) or not pattern.fullmatch(digest):
            raise ValueError("trained_on has an entry that is not a job digest")
    return frozenset(value)


def parse_guarantees(value: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Return the calibration guarantees by predictor and slice: rows, and percentages >= 0."""
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
                raise ValueError(f"{where} has a negative number, or a percentage above 100")
            out.setdefault(predictor, {})[name] = found
    return out


def parse_margins(
    value: Any, where: str, levels: tuple[float, ...]
) -> dict[str, dict[float, float]]:
    """Return margins by device class and lower level, which must be one of ``levels``."""
    out: dict[str, dict[float, float]] = {}
    for name, margins in parse_object(value, where).items():
        place = f"{where}.{name}"
        out[name] = {
            float(k): parse_number(v, place) for k, v in parse_object(margins, place).items()
        }
        if not out[name].keys() <= set(levels):
            raise ValueError(f"{place} has levels that the release does not have")
        if any(abs(margin) > MAX_MARGIN for margin in out[name].values()):
            raise ValueError(f"{place} has a margin above {MAX_MARGIN}")
    return out
