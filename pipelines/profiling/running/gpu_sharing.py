"""How jobs can share this machine's GPU, and the environment that gives a job its share.

Looks only: MPS's daemon is never started or stopped, MIG slices are never made or changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.errors import ProfilingError
from presage.features.device.device import Device, Share

if TYPE_CHECKING:
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice

MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_ANSWERS_S = 5.0

CPU_MODES = ("exclusive", "time-slice", "cpu-quota")
COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}

REMEDIES = {
    "mps": f"MPS's daemon does not run; start it with `{MPS_CONTROL} -d`, or share by time-slice",
    "mig": "the GPU has no MIG slice; make some with `nvidia-smi mig -cgi`, or share by time-slice",
    "time-slice": "set `nvidia-smi -c DEFAULT` on a GPU without MIG, or share by mps or mig",
    "exclusive": "set `nvidia-smi -c DEFAULT` on a GPU without MIG, or share by mig",
    "cpu-quota": "that is of processors; share by time-slice, mps or mig",
}


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A part of a GPU with compute and memory of its own; ``fraction`` is of the compute."""

    uuid: str
    fraction: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """What there is to share the GPU by, as found.

    ``compute_mode`` is "default", "exclusive-process" (one context at a time, so nothing but MPS
    shares it), "exclusive-thread" or "prohibited".
    """

    mps: bool
    mig: bool = False
    slices: tuple[MigSlice, ...] = ()
    compute_mode: str = "default"

    @property
    def modes(self) -> tuple[str, ...]:
        """Sharing modes that a job can be given; in MIG mode there is no whole device to give."""
        if self.mig:
            return ("mig",) if self.slices else ()
        if self.compute_mode == "prohibited":
            return ()
        free = self.compute_mode == "default"
        return ("exclusive", *(["time-slice"] if free else []), *(["mps"] if self.mps else []))


def detect_sharing(driver: Any = None) -> GpuSharing:
    """Look at the GPU that jobs run on; ``driver`` is pynvml, or what has its functions.

    Raises
    ------
    ProfilingError
        The driver does not answer any more.
    """
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice  # needs nvidia-ml-py

    gpu = NvmlDevice(driver)
    mode = gpu.ask("nvmlDeviceGetMigMode")  # [now, after the next reset]
    mig = mode is not None and bool(mode[0])
    compute_mode = gpu.ask("nvmlDeviceGetComputeMode")
    return GpuSharing(
        mps=mps_daemon_runs(),
        mig=mig,
        slices=tuple(_slices(gpu)) if mig else (),
        compute_mode=COMPUTE_MODES.get(compute_mode or 0, "default"),
    )


def _slices(gpu: NvmlDevice) -> Iterator[MigSlice]:
    # As many as fit, which is how many compute slices the whole has: 7, of an A30 4.
    most = gpu.ask("nvmlDeviceGetMaxMigDeviceCount") or 0
    for index in range(most):
        handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
        if handle is None:
            continue
        part = gpu.part(handle)
        facts, uuid = part.ask("nvmlDeviceGetAttributes"), part.ask("nvmlDeviceGetUUID")
        if facts is not None and uuid is not None:
            fraction = min(1.0, facts.computeInstanceSliceCount / most)
            yield MigSlice(str(uuid), fraction, int(facts.memorySizeMB) << 20)


def whole_share(device: Device) -> Share:
    """All of this machine's ``device`` that one job can be given: of a GPU in MIG mode one slice.

    That is the slice which ``CUDA_VISIBLE_DEVICES`` names, else the largest.
    """
    sharing = detect_sharing() if device.compute_capability > 0 else None
    if sharing is None or not sharing.slices:
        return Share()
    named = [part for part in sharing.slices if part.uuid == _named_slice()]
    largest = max(named or sharing.slices, key=lambda part: (part.fraction, part.memory_bytes))
    return Share(largest.fraction, "mig")


def environment_of(share: Share, device: Device) -> dict[str, str]:
    """Environment variables that hold a job on this machine's ``device`` to its share.

    None on a processor, where the number of threads does.

    Raises
    ------
    ProfilingError
        The device cannot be shared so; says what to start or set. Or its driver is gone.
    """
    if device.compute_capability > 0:
        return environment_on_gpu(share, detect_sharing())
    if share.mode not in CPU_MODES:
        raise ProfilingError(
            f"sharing mode {share.mode!r}: device {device.kind!r} is a processor; "
            f"use one of {', '.join(CPU_MODES)}"
        )
    return {}


def environment_on_gpu(share: Share, sharing: GpuSharing) -> dict[str, str]:
    """As :func:`environment_of`, on a GPU that can be shared as ``sharing`` says."""
    if share.mode not in sharing.modes:
        raise ProfilingError(f"sharing mode {share.mode!r}: {REMEDIES[share.mode]}")
    if share.mode == "mig":
        return {"CUDA_VISIBLE_DEVICES": _slice_of(share.fraction, sharing).uuid}
    if share.mode == "mps":
        percentage = max(1, round(100 * share.fraction))
        return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
    if share.fraction != 1.0:
        raise ProfilingError(
            f"a share of {share.fraction:g} by {share.mode}: nothing would hold a job to it; "
            "give a share of 1, or share by mps or mig"
        )
    # A job takes part in MPS whenever its daemon runs, unless it looks for it elsewhere.
    bypass = sharing.mps and sharing.compute_mode == "default"
    return {"CUDA_MPS_PIPE_DIRECTORY": str(_empty_folder())} if bypass else {}


def _slice_of(fraction: float, sharing: GpuSharing) -> MigSlice:
    """The slice of that fraction of the compute, within rounding; of several the smallest.

    One that ``CUDA_VISIBLE_DEVICES`` names goes before the others.
    """
    fitting = [part for part in sharing.slices if abs(part.fraction - fraction) < 0.01]
    if not fitting:
        known = ", ".join(sorted({f"{part.fraction:.3f}" for part in sharing.slices}))
        raise ProfilingError(
            f"no MIG slice is {fraction:.3f} of the GPU; there are {known}: ask for one of them"
        )
    return min(
        fitting, key=lambda part: (part.uuid != _named_slice(), part.memory_bytes, part.uuid)
    )


def _named_slice() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()


def mps_daemon_runs() -> bool:
    """Whether a CUDA program started now would take part in MPS."""
    if not (mps_pipe_folder() / "control").exists():
        return False
    if shutil.which(MPS_CONTROL) is None:  # in a container that was given the pipe alone
        return _runs(MPS_CONTROL)
    try:
        # Without -d or -f it only speaks to a daemon that is there.
        asked = subprocess.run(
            [MPS_CONTROL],
            input="get_server_list\n",
            capture_output=True,
            text=True,
            timeout=MPS_ANSWERS_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and "cannot find" not in (asked.stdout + asked.stderr).lower()


def mps_pipe_folder() -> Path:
    """Where CUDA programs look for MPS's daemon."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")  # noqa: S108


def _runs(program: str) -> bool:
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = cmdline.read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if Path(command).name == program:
            return True
    return False


def _empty_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"presage-without-mps-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder
