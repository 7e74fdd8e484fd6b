"""Lock that allows one profiler per device: two would disturb each other's measurements."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from presage.errors import ProfilingError
from presage.features.device.device import Device

log = logging.getLogger(__name__)

# World-writable folders of the machine. Each container has its own.
FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108
FOLDER_VARIABLE = "PRESAGE_LOCK_FOLDER"


@contextmanager
def lock_device(device: Device, folder: Path) -> Iterator[None]:
    """Lock the device against other profilers while this one measures into ``folder``.

    The lock ends with its process. If no folder is writable, a warning is logged and there is no
    lock.

    Raises
    ------
    ProfilingError
        Another process profiles the device; names the process and its folder.
    """
    descriptor = _open(f"presage-profile-{_key(device)}.lock")
    if descriptor is None:
        log.warning(
            "device %r is not locked: %s are not writable; set %s to a writable folder",
            device.kind, " and ".join(map(str, _folders())), FOLDER_VARIABLE,
        )  # fmt: skip
        yield
        return
    try:
        _lock(descriptor, device)
        _write(descriptor, _describe_holder(folder))
        yield
        _write(descriptor, b"")
    finally:
        os.close(descriptor)


def _key(device: Device) -> str:
    """Return the GPU's UUID, since kinds may occur twice, or the processor's kind."""
    if device.compute_capability == 0:
        return "cpu"
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice

    return str(NvmlDevice().query("nvmlDeviceGetUUID") or device.kind)


def _folders() -> list[Path]:
    named = os.environ.get(FOLDER_VARIABLE)
    return [Path(named)] if named else list(FOLDERS)


def _open(name: str) -> int | None:
    """Open the lock file in the first folder that has it, or create it; any user can lock it."""
    for folder in _folders():
        with suppress(OSError):
            return _open_or_make(folder / name)
    return None


def _open_or_make(path: Path) -> int:
    # Try without O_CREAT: kernels reject it on another user's file in a sticky folder.
    for flags in (os.O_RDWR, os.O_RDONLY):
        with suppress(FileNotFoundError, PermissionError):
            return _regular(os.open(path, flags | os.O_NOFOLLOW))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with suppress(OSError):
        os.fchmod(descriptor, 0o666)  # independent of the umask: the next holder writes to it
    return _regular(descriptor)


def _regular(descriptor: int) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a file")
    return descriptor


def _lock(descriptor: int, device: Device) -> None:
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ProfilingError(
            f"device {device.kind!r} is being profiled by {_read_holder(descriptor)}; wait for it "
            "to end, or stop it: two profilers on one device disturb each other"
        ) from error


def _describe_holder(folder: Path) -> bytes:
    holder = {
        "pid": os.getpid(),
        "user": _user(),
        "folder": str(folder.resolve()),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    }
    return json.dumps(holder).encode()


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _write(descriptor: int, text: bytes) -> None:
    with suppress(OSError):  # another user's file without write permission
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)


def _read_holder(descriptor: int) -> str:
    """Describe the holder of the lock; the file is empty between locking and writing."""
    try:
        holder: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return "process {pid} (user {user}, into {folder}, since {since})".format(**holder)
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
