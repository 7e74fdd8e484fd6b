"""Catalogue of devices: its figures are possible, and every name means one device."""

from collections import Counter

import pytest
import yaml

from presage.errors import UnknownDeviceError
from presage.features.device.device import CATALOGUE_FILE, catalogue, device_kind, find_device
from presage.features.device.names import normalize_name

GPUS = [one for one in catalogue().values() if one.compute_capability > 0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # By NVIDIA's driver
        ("Tesla K80", "k80"),
        ("Tesla P4", "p4"),
        ("Tesla P40", "p40"),
        ("Quadro P400", None),
        ("Quadro P4000", "quadro-p4000"),
        ("Tesla P100-PCIE-12GB", "p100-12gb"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla P100-SXM2-16GB", "p100-sxm2"),
        ("Tesla T4", "t4"),
        ("NVIDIA T400 4GB", None),
        ("T400", None),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("Tesla V100-SXM3-32GB", "v100"),
        ("Tesla V100S-PCIE-32GB", "v100s"),
        ("NVIDIA TITAN X (Pascal)", "titan-x"),
        ("GeForce GTX TITAN X", "gtx-titan-x"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 2060 with Max-Q Design", "rtx-2060-max-q"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-SXM2-32GB-LS", None),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A40-48Q", None),
        ("NVIDIA H200 SXM5 141GB", "h200"),
        # By published tables, instance types and Kubernetes labels
        ("V100M16", "v100-16gb"),
        ("V100M32", "v100"),
        ("NVIDIA_A100-PCIE-40GB", "a100-40gb"),
        ("a100-40g", "a100-40gb"),
        ("a100_80g", "a100-80gb"),
        ("A100 SXM", "a100-40gb"),
        ("A100-SXM-80G", "a100-80gb-sxm"),
        ("H100-80GB-SXM5", "h100"),
        ("nvidia-h100-80gb", "h100"),
        ("H100-PCIe-80GB", "h100-pcie"),
        ("Tesla T4 16GB", "t4"),
        ("T4-PCIe-16GB", "t4"),
        ("GeForce RTX 3060 12GB", "rtx-3060"),
        ("NVIDIA GeForce RTX 4060 Ti 16GB", None),
        ("GTX 1060 3GB", None),
        ("V100 24GB", None),
        ("V100 PCIe SXM2", None),
        ("rtx3090", "rtx-3090"),
        ("4090", "rtx-4090"),
        ("2080ti", "rtx-2080-ti"),
        ("GeForce RTX 2080 TI", "rtx-2080-ti"),
        ("1080Ti", "gtx-1080-ti"),
        ("GeForce RTX 2060 MaxQ", "rtx-2060-max-q"),
        ("titanxp", "titan-xp"),
        ("TitanRTX", "titan-rtx"),
        ("titan_v", "titan-v"),
        ("a100", "a100-40gb"),
        ("v100", "v100"),
        ("cpu-i9_10940x", "cpu-i9-10940x"),
        ("i7-12700h", "cpu-i7-12700h"),
        ("amd-9950x", "cpu-ryzen-9950x"),
        # By /proc/cpuinfo
        ("12th Gen Intel(R) Core(TM) i7-12700H", "cpu-i7-12700h"),
        ("Intel(R) Core(TM) i9-10940X CPU @ 3.30GHz", "cpu-i9-10940x"),
        ("AMD Ryzen 9 9950X 16-Core Processor", "cpu-ryzen-9950x"),
        # No source
        ("AMD Radeon RX 6800", None),
        ("cpu", None),
        ("2", None),
        ("", None),
    ],
)
def test_a_name_is_matched_as_a_whole(name, kind):
    assert device_kind(name) == kind


def test_a_name_identifies_one_device():
    rows = yaml.safe_load(CATALOGUE_FILE.read_text())
    said = Counter(
        key
        for kind, row in rows.items()
        for key in {normalize_name(n) for n in (kind, *row.get("names", ()))}
    )

    assert [key for key, times in said.items() if times > 1] == []


def test_every_kind_is_found_by_its_own_name_in_any_spelling():
    for kind in catalogue().keys() - {"cpu-1", "cpu-2", "cpu-4", "cpu-8"}:
        assert device_kind(kind.replace("-", " ").upper()) == kind


def test_a_device_is_found_by_any_of_its_names():
    assert find_device("NVIDIA GeForce RTX 4090") == catalogue()["rtx-4090"]
    with pytest.raises(UnknownDeviceError, match=r"kind 'FooBar 9' is in the cat.*--devices FILE"):
        find_device("FooBar 9")


# What a typing error in a figure would break --------------------------------------------------


@pytest.mark.parametrize("one", GPUS, ids=lambda one: one.kind)
def test_a_gpu_does_one_multiply_add_per_core_and_clock(one):
    clock_hz = one.peak_flops_per_s["fp32"] / (2 * one.cores)

    assert 0.8e9 < clock_hz < 2.7e9


@pytest.mark.parametrize("one", GPUS, ids=lambda one: one.kind)
def test_a_gpu_is_no_slower_in_fewer_bits(one):
    peaks = one.peak_flops_per_s
    narrow = [peaks[name] for name in ("fp32", "tf32", "fp16") if name in peaks]

    assert narrow == sorted(narrow)
    assert peaks.get("bf16", peaks.get("fp16")) == peaks.get("fp16")
    assert peaks["fp64"] <= peaks["fp32"]
    assert ("bf16" in peaks) == ("tf32" in peaks) == (one.compute_capability >= 8)


@pytest.mark.parametrize("one", GPUS, ids=lambda one: one.kind)
def test_a_gpu_reads_its_memory_in_5_to_400_milliseconds(one):
    assert 0.005 < one.memory_bytes / one.memory_bandwidth_bytes_per_s < 0.4
    assert 4 < one.peak_flops_per_s["fp32"] / one.memory_bandwidth_bytes_per_s < 130


def test_a_newer_card_of_a_series_is_no_slower():
    series = [f"rtx-{n}" for n in ("2080", "3080", "4080", "5080")]
    speeds = [catalogue()[kind].flops_per_s("fp16") for kind in series]

    assert speeds == sorted(speeds)
