"""One profiler a device: two would measure each other."""

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

# Folders of the whole machine, in which every user may make a file. Each container has its own.
FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108
FOLDER_VARIABLE = "PRESAGE_LOCK_FOLDER"


@contextmanager
def device_locked(device: Device, folder: Path) -> Iterator[None]:
    """Keep other profilers off the device while this one measures into ``folder``.

    The lock ends with its process, however that dies. Where no folder can be written to there is
    a warning, and no lock.

    Raises
    ------
    ProfilingError
        Another process profiles it; says which, and into which folder.
    """
    descriptor = _open(f"presage-profile-{_key(device)}.lock")
    if descriptor is None:
        log.warning(
            "device %r is not locked: neither %s can be written to; set %s to a folder that can",
            device.kind, " nor ".join(map(str, _folders())), FOLDER_VARIABLE,
        )  # fmt: skip
        yield
        return
    try:
        _lock(descriptor, device)
        _write(descriptor, _holder(folder))
        yield
        _write(descriptor, b"")
    finally:
        os.close(descriptor)


def _key(device: Device) -> str:
    """The GPU by its UUID, since kinds may be there twice; the processor is one device."""
    if device.compute_capability == 0:
        return "cpu"
    from presage.pipelines.profiling.sampling.nvml_device import NvmlDevice

    return str(NvmlDevice().ask("nvmlDeviceGetUUID") or device.kind)


def _folders() -> list[Path]:
    named = os.environ.get(FOLDER_VARIABLE)
    return [Path(named)] if named else list(FOLDERS)


def _open(name: str) -> int | None:
    """The lock file in the first folder where it is, or can be made; any user can lock it."""
    for folder in _folders():
        with suppress(OSError):
            return _open_or_make(folder / name)
    return None


def _open_or_make(path: Path) -> int:
    # First without O_CREAT: kernels refuse it on another user's file in a sticky folder.
    for flags in (os.O_RDWR, os.O_RDONLY):
        with suppress(FileNotFoundError, PermissionError):
            return _regular(os.open(path, flags | os.O_NOFOLLOW))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with suppress(OSError):
        os.fchmod(descriptor, 0o666)  # whatever the umask: the next user writes who it is
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
            f"device {device.kind!r} is being profiled by {_told(descriptor)}; wait for it to "
            "end, or stop it: two profilers on one device would measure each other"
        ) from error


def _holder(folder: Path) -> bytes:
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
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())


def _write(descriptor: int, text: bytes) -> None:
    with suppress(OSError):  # another user's file that only they may write
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)


def _told(descriptor: int) -> str:
    """The holder, as it wrote itself down; between locking and writing there is nothing yet."""
    try:
        holder: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return "process {pid} (user {user}, into {folder}, since {since})".format(**holder)
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
