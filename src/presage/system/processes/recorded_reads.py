"""Record of what a user's code reads, files and environment variables, to cache its result.

What it gets from the network, a clock or random numbers is not recorded.
"""

from __future__ import annotations

import inspect
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

_PACKAGES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})
_STDLIB = (*{f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")}, "<frozen")
_KERNEL = ("/proc/", "/sys/", "/dev/")


@dataclass
class Reads:
    """What was read.

    Attributes
    ----------
    files : dict of str to str
        :func:`file_state` by path.
    variables : dict of str to str
        :func:`variable_state` by name of an environment variable.
    """

    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def is_current(self) -> bool:
        """Return whether all files and variables are as they were read."""
        return all(
            variable_state(os.environ.get(name)) == state for name, state in self.variables.items()
        ) and all(file_state(path) == state for path, state in self.files.items())


def file_state(path: str) -> str:
    """Return the digest of a file; of an installed one its size and time; "" if it is no file."""
    try:
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):
            return ""
        if path.startswith(_PACKAGES):
            return f"{found.st_size} bytes of {found.st_mtime_ns}"
        return sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""


def variable_state(value: str | None) -> str:
    """Return the digest of a value, which may be a secret; "" if the variable is not set."""
    return "" if value is None else sha256(value.encode(errors="surrogateescape")).hexdigest()


@contextmanager
def recorded_reads() -> Iterator[Reads]:
    """Record what the block reads, and the modules that are loaded; complete when it has ended.

    Files count whose opening Python sees: its own, not those that a library of compiled code opens.
    Variables count that code outside of installed libraries reads.
    """
    reads = Reads()
    opened: set[str] = set()
    read_variable = os.environ.__class__.__getitem__

    def get(environment: Any, name: str) -> str:
        if _is_read_by_user(inspect.currentframe()):
            try:
                state = variable_state(read_variable(environment, name))
            except KeyError:
                state = ""
            reads.variables[name] = state
        value: str = read_variable(environment, name)
        return value

    _install_hook()
    _recording.append(opened)
    try:
        with patch.object(os.environ.__class__, "__getitem__", get):
            yield reads
    finally:
        _recording.remove(opened)
    reads.files |= {path: file_state(path) for path in sorted(opened | _files_of_modules())}


def _is_read_by_user(frame: FrameType | None) -> bool:
    """Return whether the first caller outside of this file and Python is no installed library."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and (path.startswith(_PACKAGES) or not path.startswith(_STDLIB)):
            return not path.startswith(_PACKAGES)
        frame = frame.f_back
    return False


def _files_of_modules() -> set[str]:
    """Return the files of loaded modules; of an installed package only its first one."""
    files = set()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not Path(path).is_absolute():
            continue
        is_user = not path.startswith((*_PACKAGES, *_STDLIB))
        if is_user or (path.startswith(_PACKAGES) and "." not in name):
            files.add(path)
    return files


# An audit hook cannot be removed, so that there is one for all blocks of the process.
_recording: list[set[str]] = []
_hooked: list[bool] = []


def _install_hook() -> None:
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Add a file that is opened for reading to the records of all open blocks."""
    if event != "open" or not _recording:
        return
    path, _, flags = arguments
    if not isinstance(path, str | bytes | os.PathLike) or flags & os.O_ACCMODE != os.O_RDONLY:
        return
    full = str(Path(os.fsdecode(path)).absolute())
    if not full.startswith((*_PACKAGES, *_STDLIB, *_KERNEL)) and not full.endswith(".pyc"):
        for opened in _recording:
            opened.add(full)


def to_json(reads: Reads) -> dict[str, Any]:
    """Return a JSON object."""
    return {"files": reads.files, "variables": reads.variables}


def from_json(content: Mapping[str, Any]) -> Reads:
    """Return what :func:`to_json` wrote.

    Raises
    ------
    KeyError, TypeError, ValueError
        The content is something else.
    """
    return Reads(dict(content["files"]), dict(content["variables"]))
