"""`presage doctor`: what this machine has, and whether the services answer."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

from presage.features.device import detect
from presage.features.errors import PresageError
from presage.features.gpu import torch_runs_on_nvidia
from presage.render import print_json, quantity

PACKAGES = (
    "presage", "torch", "onnx", "onnxruntime", "numpy", "grpcio", "protobuf", "mlflow", "dvc",
    "nvidia-ml-py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: ``ok`` is None when it was not asked for or is optional."""

    what: str
    found: str
    ok: bool | None


def diagnose(server: str, registry: str) -> list[Finding]:
    """Look at devices, drivers, packages and, where named, a server and a registry."""
    findings = [Finding("python", platform.python_version(), ok=True), _device(), _nvidia()]
    findings += [_package(name) for name in PACKAGES]
    if server:
        findings.append(_server(server))
    if registry:
        findings.append(_registry(registry))
    return findings


def print_report(findings: list[Finding], *, as_json: bool) -> None:
    """Findings as a table or as JSON."""
    if as_json:
        print_json([{"what": f.what, "found": f.found, "ok": f.ok} for f in findings])
        return
    table = Table("what", "found", "")
    for finding in findings:
        mark = {True: "[green]ok[/green]", False: "[red]no[/red]", None: ""}[finding.ok]
        table.add_row(finding.what, finding.found, mark)
    Console().print(table)


def _device() -> Finding:
    try:
        device = detect()
    except PresageError as error:
        return Finding("device", str(error), ok=False)
    memory = quantity(device.memory_bytes, "bytes")
    return Finding("device", f"{device.kind}: {device.cores} cores, {memory}", ok=True)


def _nvidia() -> Finding:
    try:
        import pynvml
    except ImportError:
        return Finding("NVIDIA driver", "nvidia-ml-py is not installed", ok=None)
    try:
        pynvml.nvmlInit()
        gpus = pynvml.nvmlDeviceGetCount()
        found = f"{pynvml.nvmlSystemGetDriverVersion()}, {gpus} GPUs"
    except pynvml.NVMLError as error:
        return Finding("NVIDIA driver", f"none answers ({error})", ok=None)
    if gpus and not torch_runs_on_nvidia():
        return Finding("NVIDIA driver", f"{found}; torch is built without CUDA", ok=False)
    return Finding("NVIDIA driver", found, ok=True)


def _package(name: str) -> Finding:
    try:
        return Finding(name, version(name), ok=True)
    except PackageNotFoundError:
        return Finding(name, "not installed", ok=None)


def _server(target: str) -> Finding:
    from presage.serving.client import PresageClient

    try:
        with PresageClient(target, timeout_s=2.0) as client:
            info = client.release()
    except PresageError as error:
        return Finding(f"server {target}", str(error), ok=False)
    return Finding(f"server {target}", f"serves release {info.release_id}", ok=True)


def _registry(uri: str) -> Finding:
    from presage.models.registry import Registry

    try:
        champion = Registry(uri).champion()
    except PresageError as error:
        return Finding(f"registry {uri}", str(error), ok=False)
    found = "no champion yet" if champion is None else f"champion is {champion.release_id}"
    return Finding(f"registry {uri}", found, ok=True)
