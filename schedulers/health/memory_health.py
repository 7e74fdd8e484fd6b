"""Memory errors and row remapping of GPUs, from ``nvidia-smi -q -x`` or NVML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from presage.errors import TableError
from presage.schedulers.health.health_signal import HealthSignal, Severity
from presage.schedulers.health.nvml_devices import nvml_devices

_UNCORRECTABLE = ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")
_OLDER = ("sram_uncorrectable", "dram_uncorrectable")  # drivers before 545


class MemoryHealth(NamedTuple):
    """State of a GPU's memory.

    Attributes
    ----------
    uuid : str
    uncorrectable : int
        Uncorrectable errors since the driver was loaded.
    remapped : int
        Rows that were remapped after uncorrectable errors.
    is_pending, has_failed : bool
        Whether a row waits for a reset to be remapped, or could not be remapped.
    """

    uuid: str
    uncorrectable: int = 0
    remapped: int = 0
    is_pending: bool = False
    has_failed: bool = False


def parse_nvidia_smi(text: str) -> list[MemoryHealth]:
    """Parse the output of ``nvidia-smi -q -x``; counters that a GPU lacks are 0.

    Raises
    ------
    TableError
        The text is not such output.
    """
    try:
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as error:
        raise TableError(f"nvidia-smi: is not XML ({error}); run `nvidia-smi -q -x`") from None
    if root.tag != "nvidia_smi_log":
        raise TableError(f"nvidia-smi: root is {root.tag!r}; run `nvidia-smi -q -x`")
    return [_memory_health(gpu) for gpu in root.iter("gpu")]


def _memory_health(gpu: ElementTree.Element) -> MemoryHealth:
    volatile = "ecc_errors/volatile/"
    names = _UNCORRECTABLE if gpu.find(volatile + _UNCORRECTABLE[0]) is not None else _OLDER
    return MemoryHealth(
        (gpu.findtext("uuid") or "").strip(),
        sum(_count(gpu.findtext(volatile + name)) for name in names),
        _count(gpu.findtext("remapped_rows/remapped_row_unc")),
        gpu.findtext("remapped_rows/remapped_row_pending") == "Yes",
        gpu.findtext("remapped_rows/remapped_row_failure") == "Yes",
    )


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def read_nvml(nvml: Any) -> list[MemoryHealth]:
    """Read the same from NVML, which is initialized: the module ``pynvml``.

    A GPU whose handle cannot be had is left out, as :func:`memory_signals` then reports it.
    """
    found = []
    for name, device in nvml_devices(nvml):
        found.append(MemoryHealth(name, *_nvml_counts(nvml, device)))
    return found


def _nvml_counts(nvml: Any, device: Any) -> tuple[int, int, bool, bool]:
    """Return the fields of MemoryHealth after the UUID; 0 for counters that the GPU lacks."""
    try:
        errors = nvml.nvmlDeviceGetTotalEccErrors(
            device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    except nvml.NVMLError:
        errors = 0
    try:
        _, remapped, pending, failed = nvml.nvmlDeviceGetRemappedRows(device)
    except nvml.NVMLError:
        return int(errors), 0, False, False
    return int(errors), int(remapped), bool(pending), bool(failed)


def memory_signals(
    before: Sequence[MemoryHealth], now: Sequence[MemoryHealth]
) -> list[HealthSignal]:
    """Return the signals that follow from two readings.

    New errors and pending rows are degraded. Rows that cannot be remapped, and GPUs that have
    disappeared, are failed. Counters that restart, as after a reset, are no errors.
    """
    known: Mapping[str, MemoryHealth] = {one.uuid: one for one in before}
    signals = []
    for one in now:
        was = known.get(one.uuid, MemoryHealth(one.uuid))
        if one.has_failed:
            reason = "a memory row cannot be remapped"
            signals.append(HealthSignal(one.uuid, "rows", Severity.FAILED, reason))
        elif one.is_pending:
            reason = "a memory row is remapped at the next reset"
            signals.append(HealthSignal(one.uuid, "rows", Severity.DEGRADED, reason))
        if (more := one.uncorrectable - was.uncorrectable) > 0:
            reason = f"{more} new uncorrectable memory errors"
            signals.append(HealthSignal(one.uuid, "ecc", Severity.DEGRADED, reason))
    gone = known.keys() - {one.uuid for one in now}
    reason = "the driver does not list the GPU any more"
    signals += [HealthSignal(uuid, "rows", Severity.FAILED, reason) for uuid in sorted(gone)]
    return signals
