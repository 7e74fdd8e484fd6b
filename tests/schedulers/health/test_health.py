"""Health signals from recorded lines and files of drivers and Kubernetes nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import TableError
from presage.schedulers.health.health_signal import HealthSignal, Severity
from presage.schedulers.health.memory_health import (
    MemoryHealth,
    memory_signals,
    parse_nvidia_smi,
    read_nvml,
)
from presage.schedulers.health.node_conditions import node_signals
from presage.schedulers.health.xid import XidEvent, normal_bus, parse_xid, xid_signals

SAMPLE = Path(__file__).parent / "samples/nvidia_smi_h200.xml"
GPU = "GPU-00000000-1111-2222-3333-444444444444"

# Kernel log: lines as in NVIDIA's documentation and as reported by users.
LOG = f"""\
[ 10.1] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build
[Fri Aug 30 11:43:09 2024] NVRM: GPU at PCI:0000:cb:00: {GPU}
[Fri Aug 30 11:43:09 2024] NVRM: GPU Board Serial Number: 1650000000000
[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics
NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu.
[61.1] NVRM: Xid (PCI:0000:cb:00): 79, pid=12, name=python, GPU has fallen off the bus.
kernel: NVRM: Xid (PCI:0002:00:00): 119, pid=1582259, name=nvc, Timeout after 6s of waiting for RPC
NVRM: Xid (PCI:0000:cb:00): 999, new in a later driver
"""


def test_xid_errors_in_a_kernel_log():
    found = xid_signals(LOG.splitlines())

    assert [(one.device, one.severity) for one in found] == [
        (GPU, Severity.NOTICE),
        ("0000:10:1c", Severity.DEGRADED),
        (GPU, Severity.FAILED),
        ("0002:00:00", Severity.FAILED),
        (GPU, Severity.NOTICE),
    ]
    assert found[2].reason == "Xid 79: the GPU has fallen off the bus"
    assert parse_xid("NVRM: Xid (PCI:0000:3B:00.0): 48, DBE") == XidEvent("0000:3b:00", 48)
    assert normal_bus("00000000:3B:00.0") == "0000:3b:00"


@given(st.text())
def test_any_line_is_read(line):
    xid_signals([line, f"NVRM: Xid {line}", f"NVRM: Xid (PCI:{line}): 1,"])


def test_memory_of_a_healthy_gpu_as_recorded():
    assert parse_nvidia_smi(SAMPLE.read_text()) == [MemoryHealth(GPU)]


def test_memory_with_errors():
    text = SAMPLE.read_text()
    for name, value in (
        ("dram_uncorrectable", "2"), ("sram_uncorrectable_parity", "1"),
        ("remapped_row_unc", "3"), ("remapped_row_pending", "Yes"),
    ):  # fmt: skip
        for old in ("0", "No"):
            text = text.replace(f"<{name}>{old}<", f"<{name}>{value}<", 1)
    (found,) = parse_nvidia_smi(text)

    assert found == MemoryHealth(GPU, 3, 3, is_pending=True)


def test_counters_of_older_drivers_and_gpus_without_them():
    text = (
        "<nvidia_smi_log><gpu><uuid>GPU-a</uuid><ecc_errors><volatile><sram_uncorrectable>1"
        "</sram_uncorrectable><dram_uncorrectable>4</dram_uncorrectable></volatile></ecc_errors>"
        "</gpu><gpu><uuid>GPU-b</uuid><remapped_rows>N/A</remapped_rows></gpu></nvidia_smi_log>"
    )
    assert parse_nvidia_smi(text) == [MemoryHealth("GPU-a", 5), MemoryHealth("GPU-b")]
    for broken in ("", "<a/>", "No devices were found"):
        with pytest.raises(TableError, match="run `nvidia-smi -q -x`"):
            parse_nvidia_smi(broken)


def test_signals_follow_from_two_readings():
    before = [MemoryHealth("a", 1), MemoryHealth("b"), MemoryHealth("c", 9), MemoryHealth("d")]
    now = [MemoryHealth("a", 3), MemoryHealth("b", is_pending=True), MemoryHealth("c", 0),
           MemoryHealth("e", has_failed=True)]  # fmt: skip

    assert [one[:3] for one in memory_signals(before, now)] == [
        ("a", "ecc", Severity.DEGRADED),
        ("b", "rows", Severity.DEGRADED),
        ("e", "rows", Severity.FAILED),
        ("d", "rows", Severity.FAILED),
    ]
    assert memory_signals(now[:1], now[:1]) == []


class FakeNvml:
    """NVML with three GPUs: one with errors, one without counters, one that is lost."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        if index == 2:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, device):
        return (b"GPU-a", "GPU-b")[device]

    def nvmlDeviceGetTotalEccErrors(self, device, kind, counter):
        assert (kind, counter) == (1, 0)
        if device:
            raise self.NVMLError("not supported")
        return 7

    def nvmlDeviceGetTemperature(self, device, sensor):
        assert sensor == 0
        return (61, 35)[device]

    def nvmlDeviceGetPowerUsage(self, device):
        if device:
            raise self.NVMLError("not supported")
        return 412_500

    def nvmlDeviceGetRemappedRows(self, device):
        if device:
            raise self.NVMLError("not supported")
        return 1, 2, 1, 0


def test_the_same_from_nvml():
    assert read_nvml(FakeNvml()) == [
        MemoryHealth("GPU-a", 7, 2, is_pending=True),
        MemoryHealth("GPU-b"),
    ]


def node(*conditions, taints=()):
    rows = [dict(zip(("type", "status", "message"), one, strict=False)) for one in conditions]
    return {"status": {"conditions": rows}, "spec": {"taints": list(taints)}}


def test_conditions_of_a_kubernetes_node():
    healthy = node(
        ("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "True"),
        ("GpuXidError", "False", "No Health Failures"),
    )  # fmt: skip
    assert node_signals(healthy) == []
    assert node_signals(node(("Ready", "Unknown"))) == [
        HealthSignal("", "condition", Severity.FAILED, "Ready is Unknown")
    ]
    # As NVSentinel writes them.
    many = node(
        ("GpuXidError", "True",
         "ErrorCode:79 gpu:0 XID error occured Recommended Action=NODE_REBOOT;"
         f"ErrorCode:63 PCI:0002:00:00 GPU_UUID:{GPU} remap Recommended Action=COMPONENT_RESET;"),
        ("SysLogsXIDError", "True", "ErrorCode:48 PCI:0000:3B:00 DBE Recommended Action=X;"),
        ("NvswitchErrorFromKmsgWatch", "True", "28002 Therm Warn Recommended Action=NONE"),
        ("GpuThermalWatch", "True", ""),
    )  # fmt: skip
    assert [one[:3] for one in node_signals(many)] == [
        ("#0", "condition", Severity.FAILED),
        (GPU, "condition", Severity.DEGRADED),
        ("0000:3b:00", "condition", Severity.DEGRADED),
        ("", "condition", Severity.NOTICE),
        ("", "condition", Severity.DEGRADED),
    ]
    assert node_signals(many)[0].reason == "GpuXidError: Xid 79: the GPU has fallen off the bus"


def test_taints_of_a_kubernetes_node():
    def taint(key, effect="NoSchedule"):
        return {"key": key, "value": "true", "effect": effect}

    found = node_signals(
        node(taints=[
            taint("nvidia.com/gpu"), taint("nvidia.com/syslog-xid-error"),
            taint("nvidia.com/gpu-xid-error", "NoExecute"), taint("team", "NoExecute"),
            taint("node.kubernetes.io/unreachable"), taint("nvidia.com/gpu-x", "PreferNoSchedule"),
        ])
    )  # fmt: skip
    assert [(one.reason, one.severity) for one in found] == [
        ("nvidia.com/syslog-xid-error", Severity.DEGRADED),
        ("nvidia.com/gpu-xid-error", Severity.FAILED),
        ("node.kubernetes.io/unreachable", Severity.FAILED),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(
        ("status", "spec", "conditions", "taints", "type", "message", "key", "effect")), inner),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(("status", "spec")), JSON))
def test_any_node_is_read(content):
    node_signals(content)
