"""Checks of ``presage doctor``: devices, drivers and packages here, and services."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from presage.cli.output.json_output import print_json
from presage.errors import PresageError
from presage.features.device.local_device import detect
from presage.features.device.nvml_gpu import torch_runs_on_nvidia
from presage.system.text.terminal import Table, print_table, styled
from presage.system.text.units import quantity

if TYPE_CHECKING:
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice
    from presage.serving.client.credentials import Credentials

PACKAGES = (
    "presage", "torch", "onnx", "onnxruntime", "numpy", "grpcio", "protobuf", "mlflow", "dvc",
    "nvidia-ml-py",
)  # fmt: skip

_MARKS = {True: ("ok", "green"), False: ("no", "red"), None: ("", "")}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check; ``ok`` is None where the checked component is optional."""

    what: str
    found: str
    ok: bool | None


def diagnose(server: str, registry: str, credentials: Credentials | None = None) -> list[Finding]:
    """Check devices, drivers, packages and, if given, a server and a registry."""
    findings = [Finding("python", platform.python_version(), ok=True), _device(), *nvidia()]
    findings.append(_jobs_account())
    findings += [_package(name) for name in PACKAGES]
    if server:
        findings.append(_server(server, credentials))
    if registry:
        findings.append(_registry(registry))
    return findings


def print_report(findings: list[Finding], *, as_json: bool) -> None:
    """Print findings as a table or as JSON."""
    if as_json:
        print_json([{"what": f.what, "found": f.found, "ok": f.ok} for f in findings])
        return
    table = Table("what", "found", "")
    for finding in findings:
        word, style = _MARKS[finding.ok]
        table.add_row(finding.what, finding.found, styled(word, style))
    print_table(table)


def _jobs_account() -> Finding:
    """Return the account that a cluster agent started by this user runs jobs as."""
    if os.geteuid() == 0:
        found = "an agent started by root runs each job as its submitter's account"
        return Finding("cluster jobs", found, ok=None)
    return Finding(
        "cluster jobs",
        f"an agent started by this user (uid {os.geteuid()}) runs all jobs as this user: every "
        "submitter can read its files and token; only an agent started by root changes accounts",
        ok=None,
    )


def _device() -> Finding:
    try:
        device = detect()
    except PresageError as error:
        return Finding("device", str(error), ok=False)
    memory = quantity(device.memory_bytes, "bytes")
    return Finding("device", f"{device.kind}: {device.cores} cores, {memory}", ok=True)


def nvidia(driver: Any = None) -> list[Finding]:
    """Return findings on the NVIDIA driver, its first GPU, and how jobs can share that GPU.

    Parameters
    ----------
    driver : module, optional
        pynvml, or an object with its functions.
    """
    if driver is None:
        try:
            import pynvml
        except ImportError:
            return [Finding("NVIDIA driver", "nvidia-ml-py is not installed", ok=None)]
        driver = pynvml
    try:
        driver.nvmlInit()
        gpus = driver.nvmlDeviceGetCount()
        found = [_driver(driver, gpus)]
    except driver.NVMLError as error:
        return [Finding("NVIDIA driver", f"not available ({error})", ok=None)]
    try:
        return [*found, *(_gpu(driver) if gpus else ())]
    except PresageError as error:
        return [*found, Finding("GPU", str(error), ok=False)]


def _driver(driver: Any, gpus: int) -> Finding:
    cuda = driver.nvmlSystemGetCudaDriverVersion()  # 13020 is 13.2
    found = f"{driver.nvmlSystemGetDriverVersion()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    if gpus and not torch_runs_on_nvidia():
        found = f"{found}, {gpus} GPUs, but torch has no CUDA support"
        return Finding("NVIDIA driver", found, ok=False)
    return Finding("NVIDIA driver", f"{found}, {gpus} GPUs", ok=True)


def _gpu(driver: Any) -> Iterator[Finding]:
    """Yield findings on the GPU that jobs run on."""
    from presage.pipelines.profiling.running.gpu_sharing import MPS_CONTROL, detect_sharing
    from presage.pipelines.profiling.sampling.dcgm import dcgm_is_installed
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice

    gpu = NvmlDevice(driver)
    memory, sharing = gpu.query("nvmlDeviceGetMemoryInfo"), detect_sharing(driver)
    size = "memory unknown" if memory is None else quantity(memory.total, "bytes")
    name = gpu.query("nvmlDeviceGetName")
    yield Finding("GPU", f"{name}, {size}, compute mode {sharing.compute_mode}", ok=True)
    yield _counters(gpu)
    slices = ", ".join(f"{part.uuid} ({part.fraction:.2f})" for part in sharing.slices)
    yield Finding("MIG", f"on: {slices or 'no slices'}" if sharing.mig else "off", ok=None)
    mps = "the daemon is running" if sharing.mps else f"no daemon; `{MPS_CONTROL} -d` starts one"
    yield Finding("MPS", mps, ok=None)
    dcgm = shutil.which("dcgmi") if dcgm_is_installed() else "not installed"
    yield Finding("DCGM", str(dcgm), ok=None)


def _counters(gpu: NvmlDevice) -> Finding:
    """Return whether this user may read the counters that `presage profile` measures with."""
    from presage.pipelines.profiling.sampling.nvml_errors import Verdict

    gpu.query("nvmlDeviceGetUtilizationRates")
    gpu.query("nvmlDeviceGetSamples", gpu.driver.NVML_GPU_UTILIZATION_SAMPLES, 0)
    gpu.query("nvmlDeviceGetComputeRunningProcesses")
    gpu.query("nvmlDeviceGetProcessUtilization", 0)
    gpu.query("nvmlDeviceGetTotalEnergyConsumption")
    forbidden = [name for name, why in gpu.never.items() if why is Verdict.FORBIDDEN]
    if forbidden:
        return Finding("GPU counters", f"no permission for {', '.join(forbidden)}", ok=False)
    missing = f"all but {', '.join(gpu.never)}" if gpu.never else "all"
    return Finding("GPU counters", missing, ok=True)


def _package(name: str) -> Finding:
    try:
        return Finding(name, version(name), ok=True)
    except PackageNotFoundError:
        return Finding(name, "not installed", ok=None)


def _server(target: str, credentials: Credentials | None) -> Finding:
    from presage.serving.client.client import PresageClient

    try:
        with PresageClient(target, timeout_s=2.0, credentials=credentials) as client:
            info = client.release()
    except PresageError as error:
        return Finding(f"server {target}", str(error), ok=False)
    return Finding(f"server {target}", f"serves release {info.release_id}", ok=True)


def _registry(uri: str) -> Finding:
    from presage.models.registry.registry import Registry

    try:
        champion = Registry(uri).champion()
    except PresageError as error:
        return Finding(f"registry {uri}", str(error), ok=False)
    found = "no champion yet" if champion is None else f"champion is {champion.release_id}"
    return Finding(f"registry {uri}", found, ok=True)
