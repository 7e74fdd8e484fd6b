"""Sharing modes of this machine's GPU, and the environment that enforces a job's share.

Read-only: MPS's daemon is never started or stopped, MIG slices are never created or changed.
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
    "mps": f"the MPS daemon is not running; start it with `{MPS_CONTROL} -d`, or use time-slice",
    "mig": "the GPU has no MIG slice; create some with `nvidia-smi mig -cgi`, or use time-slice",
    "time-slice": "set `nvidia-smi -c DEFAULT` on a GPU without MIG, or use mps or mig",
    "exclusive": "set `nvidia-smi -c DEFAULT` on a GPU without MIG, or use mig",
    "cpu-quota": "this mode is for processors; use time-slice, mps or mig",
}


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A part of a GPU with its own memory; ``fraction`` is its part of the compute."""

    uuid: str
    fraction: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """Sharing capabilities of the GPU, as detected.

    ``compute_mode`` is "default", "exclusive-process" (one context at a time, so only MPS can
    share it), "exclusive-thread" or "prohibited".
    """

    mps: bool
    mig: bool = False
    slices: tuple[MigSlice, ...] = ()
    compute_mode: str = "default"

    @property
    def modes(self) -> tuple[str, ...]:
        """Sharing modes available to jobs; in MIG mode the full device is not available."""
        if self.mig:
            return ("mig",) if self.slices else ()
        if self.compute_mode == "prohibited":
            return ()
        free = self.compute_mode == "default"
        return ("exclusive", *(["time-slice"] if free else []), *(["mps"] if self.mps else []))


def detect_sharing(driver: Any = None) -> GpuSharing:
    """Detect the sharing capabilities of the jobs' GPU; ``driver`` has pynvml's functions.

    Raises
    ------
    ProfilingError
        The driver does not respond any more.
    """
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice  # needs nvidia-ml-py

    gpu = NvmlDevice(driver)
    mode = gpu.query("nvmlDeviceGetMigMode")  # [now, after the next reset]
    mig = mode is not None and bool(mode[0])
    compute_mode = gpu.query("nvmlDeviceGetComputeMode")
    return GpuSharing(
        mps=is_mps_daemon_running(),
        mig=mig,
        slices=tuple(_slices(gpu)) if mig else (),
        compute_mode=COMPUTE_MODES.get(compute_mode or 0, "default"),
    )


def _slices(gpu: NvmlDevice) -> Iterator[MigSlice]:
    # As many slices as fit, which is the number of compute slices: 7, or 4 on an A30.
    most = gpu.query("nvmlDeviceGetMaxMigDeviceCount") or 0
    for index in range(most):
        handle = gpu.query("nvmlDeviceGetMigDeviceHandleByIndex", index)
        if handle is None:
            continue
        mig_slice = gpu.mig_slice(handle)
        facts, uuid = (
            mig_slice.query("nvmlDeviceGetAttributes"),
            mig_slice.query("nvmlDeviceGetUUID"),
        )
        if facts is not None and uuid is not None:
            fraction = min(1.0, facts.computeInstanceSliceCount / most)
            yield MigSlice(str(uuid), fraction, int(facts.memorySizeMB) << 20)


def full_share(device: Device) -> Share:
    """Return the largest share of this machine's ``device`` for one job: in MIG mode one slice.

    The slice is the one in ``CUDA_VISIBLE_DEVICES``, else the largest.
    """
    sharing = detect_sharing() if device.compute_capability > 0 else None
    if sharing is None or not sharing.slices:
        return Share()
    named = [s for s in sharing.slices if s.uuid == _named_slice()]
    largest = max(
        named or sharing.slices, key=lambda mig_slice: (mig_slice.fraction, mig_slice.memory_bytes)
    )
    return Share(largest.fraction, "mig")


def environment_of(share: Share, device: Device) -> dict[str, str]:
    """Return the environment variables that limit a job on this machine's ``device`` to its share.

    The result is empty on a processor, where the number of threads limits the job.

    Raises
    ------
    ProfilingError
        The device does not support the share, with the remedy; or its driver is gone.
    """
    if device.compute_capability > 0:
        return gpu_environment(share, detect_sharing())
    if share.mode not in CPU_MODES:
        raise ProfilingError(
            f"sharing mode {share.mode!r}: device {device.kind!r} is a processor; "
            f"use one of {', '.join(CPU_MODES)}"
        )
    return {}


def gpu_environment(share: Share, sharing: GpuSharing) -> dict[str, str]:
    """Return the same as :func:`environment_of`, on a GPU with these sharing capabilities."""
    if share.mode not in sharing.modes:
        raise ProfilingError(f"sharing mode {share.mode!r}: {REMEDIES[share.mode]}")
    if share.mode == "mig":
        return {"CUDA_VISIBLE_DEVICES": _slice_of(share.fraction, sharing).uuid}
    if share.mode == "mps":
        percentage = max(1, round(100 * share.fraction))
        return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
    if share.fraction != 1.0:
        raise ProfilingError(
            f"a share of {share.fraction:g} by {share.mode} cannot be enforced; "
            "use a share of 1, or share by mps or mig"
        )
    # A job uses MPS whenever the daemon runs, unless its pipe folder is elsewhere.
    bypass = sharing.mps and sharing.compute_mode == "default"
    return {"CUDA_MPS_PIPE_DIRECTORY": str(_empty_folder())} if bypass else {}


def _slice_of(fraction: float, sharing: GpuSharing) -> MigSlice:
    """Return the smallest slice with that fraction of the compute, within rounding.

    The slice in ``CUDA_VISIBLE_DEVICES`` takes precedence.
    """
    fitting = [
        mig_slice for mig_slice in sharing.slices if abs(mig_slice.fraction - fraction) < 0.01
    ]
    if not fitting:
        available = ", ".join(sorted({f"{s.fraction:.3f}" for s in sharing.slices}))
        raise ProfilingError(f"no MIG slice is {fraction:.3f} of the GPU; use one of {available}")
    return min(
        fitting,
        key=lambda mig_slice: (
            mig_slice.uuid != _named_slice(),
            mig_slice.memory_bytes,
            mig_slice.uuid,
        ),
    )


def _named_slice() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()


def is_mps_daemon_running() -> bool:
    """Return whether a CUDA program started now would use MPS."""
    if not (mps_pipe_folder() / "control").exists():
        return False
    if shutil.which(MPS_CONTROL) is None:  # in a container with only the pipe
        return _runs(MPS_CONTROL)
    try:
        # Without -d or -f the program only contacts a running daemon.
        result = subprocess.run(
            [MPS_CONTROL],
            input="get_server_list\n",
            capture_output=True,
            text=True,
            timeout=MPS_ANSWERS_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0 and "cannot find" not in (result.stdout + result.stderr).lower()


def mps_pipe_folder() -> Path:
    """Return the folder where CUDA programs look for MPS's daemon."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")  # noqa: S108


def _runs(program: str) -> bool:
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = cmdline.read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:  # the process ended meanwhile
            continue
        if Path(command).name == program:
            return True
    return False


def _empty_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"presage-without-mps-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder
