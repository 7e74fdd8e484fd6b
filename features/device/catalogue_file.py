"""Reader of device kinds that a user adds, in the form of ``features/device/catalogue.yaml``.

.. code-block:: yaml

    mi300x:
      compute_capability: 9.4
      memory_bytes: 206158430208
      cores: 19456
      peak_flops_per_s: {fp32: 1.634e14, fp16: 1.3074e15}
      memory_bandwidth_bytes_per_s: 5.3e12
      names: [AMD Instinct MI300X]

``op_overhead_s`` (default 1e-5), ``context_bytes`` (default 536870912) and ``names`` are optional.
Units are those of :class:`presage.features.device.device.Device`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from presage.errors import ConfigError, one_line
from presage.features.job.job_description import PRECISIONS
from presage.system.files.user_file import read_regular
from presage.system.text.known_names import did_you_mean

Sheet = dict[str, Any]

MOST_BYTES = 1 << 20
DEFAULTS: Mapping[str, float] = {"op_overhead_s": 1e-5, "context_bytes": 2**29}
_WHOLE = ("memory_bytes", "cores", "context_bytes")
_NUMBERS = ("compute_capability", "memory_bandwidth_bytes_per_s", "op_overhead_s")
_MAY_BE_0 = ("compute_capability", "op_overhead_s", "context_bytes")
_FIELDS = (*_WHOLE, *_NUMBERS, "peak_flops_per_s", "names")
_KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MOST_NAME = 128


def read_device_file(path: Path) -> dict[str, tuple[Sheet, int]]:
    """Return the data sheet of each kind in a YAML file, and the line where it begins.

    Raises
    ------
    ConfigError
        The file cannot be read or is not YAML; a field is unknown, missing or invalid. The
        message names file, line and field.
    """
    import yaml

    try:
        content = read_regular(path, MOST_BYTES).decode()
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the path of a YAML file"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML ({one_line(error)})") from None
    if root is None:
        raise ConfigError(f"{path}: empty; write `KIND: {{memory_bytes: ..., cores: ...}}`")
    sheets = {}
    for kind, node in _pairs(root, f"{path}:1: the file"):
        line = node.start_mark.line + 1
        if not _KIND.fullmatch(kind):
            raise ConfigError(
                f"{path}:{line}: kind {one_line(repr(kind))} is not valid; use at most 64 "
                "lower-case letters, digits, '.', '-' and '_'"
            )
        sheets[kind] = _sheet(node, f"{path}:{{line}}: {kind}"), line
    return sheets


def _sheet(root: Any, where: str) -> Sheet:
    """Return the fields of one kind; ``where`` has a placeholder for the line."""
    at = where.format(line=root.start_mark.line + 1)
    sheet: Sheet = dict(DEFAULTS)
    for name, node in _pairs(root, at):
        here = f"{where.format(line=node.start_mark.line + 1)}.{one_line(name)}"
        if name not in _FIELDS:
            raise ConfigError(f"{here} is not a field; {did_you_mean(name, _FIELDS)}")
        if name == "names":
            sheet[name] = _names(node, here)
        elif name == "peak_flops_per_s":
            sheet[name] = _peaks(node, here)
        else:
            sheet[name] = _number(node, here, name)
    missing = [name for name in _FIELDS if name not in sheet and name != "names"]
    if missing:
        raise ConfigError(f"{at}.{missing[0]} is missing; take it from the data sheet")
    return sheet


def _peaks(root: Any, where: str) -> dict[str, float]:
    peaks = {}
    for precision, node in _pairs(root, where):
        if precision not in PRECISIONS:
            allowed = ", ".join(PRECISIONS)
            raise ConfigError(f"{where}.{one_line(precision)} is no precision; use {allowed}")
        peaks[precision] = float(_number(node, f"{where}.{precision}", precision))
    if "fp32" not in peaks:
        raise ConfigError(f"{where}.fp32 is missing; take it from the data sheet")
    return peaks


def _names(root: Any, where: str) -> list[str]:
    nodes = root.value if root.id == "sequence" else [root]
    names = [node.value for node in nodes if node.id == "scalar"]
    if len(names) < len(nodes) or not all(
        0 < len(name) <= _MOST_NAME and name.isprintable() for name in names
    ):
        raise ConfigError(f"{where}: must be a list of names; for example names: [My GPU, my-gpu]")
    return names


def _number(node: Any, where: str, name: str) -> float | int:
    """Parse a number as YAML or Python writes it: YAML 1.1 reads 1e13 as text."""
    text = node.value if node.id == "scalar" else ""
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        value = math.nan
    least = "at least 0" if name in _MAY_BE_0 else "above 0"
    is_large_enough = value >= 0 if name in _MAY_BE_0 else value > 0
    is_whole = name not in _WHOLE or (value.is_integer() and value < 2**63)
    if not (math.isfinite(value) and is_large_enough and is_whole):
        what = "a whole number" if name in _WHOLE else "a number"
        raise ConfigError(
            f"{where}: {one_line(repr(text))} is not {what} {least}; take it from the data sheet"
        )
    return int(value) if name in _WHOLE else value


def _pairs(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of a mapping; a repeated key is an error."""
    if node.id != "mapping":
        raise ConfigError(f"{where} must be a mapping from names to values")
    seen: set[str] = set()
    for key, value in node.value:
        if key.id != "scalar":
            raise ConfigError(f"{where} has a key that is not a name")
        if key.value in seen:
            raise ConfigError(f"{where}: {one_line(key.value)} occurs twice; remove one")
        seen.add(key.value)
        yield key.value, value
