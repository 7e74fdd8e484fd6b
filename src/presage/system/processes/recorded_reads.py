"""Record of the files, folders and environment variables that a user's code reads.

A cached result is current while they are unchanged. Not recorded are the network, clocks, random
numbers, and files that compiled code opens.
"""

from __future__ import annotations

import inspect
import os
import stat
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})
_STDLIB = (*{f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")}, "<frozen")
_KERNEL = ("/proc/", "/sys/", "/dev/")
_MOST_DIGEST_BYTES = 64 * 2**20  # a larger file is compared by size and time
_ALL_NAMES = ""  # stands for the names of all variables; no variable has an empty name
_PROGRAMS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.exec")
_FOLDERS = ("os.listdir", "os.scandir")


@dataclass
class Reads:
    """What was read.

    Attributes
    ----------
    files : dict of str to str
        :func:`file_state` by path.
    variables : dict of str to str
        :func:`variable_state` by name of an environment variable.
    is_complete : bool
        Whether that is all. False if a program was started, which may read anything, or if a file
        changed while it was read.
    """

    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True

    def is_current(self) -> bool:
        """Return whether all files and variables are as they were read."""
        return all(_variable(name) == state for name, state in self.variables.items()) and all(
            file_state(path) == state for path, state in self.files.items()
        )


def file_state(path: str) -> str:
    """Return the digest of a file, or of the names in a folder; "" if it is neither.

    Of an installed or large file, return its size and time.
    """
    try:
        found = Path(path).stat()
        if stat.S_ISDIR(found.st_mode):
            names = sorted(child.name for child in Path(path).iterdir())
            return f"folder {variable_state('/'.join(names))}"
        if not stat.S_ISREG(found.st_mode):
            return ""
        if path.startswith(_PACKAGES) or found.st_size > _MOST_DIGEST_BYTES:
            return f"{found.st_size} bytes of {found.st_mtime_ns}"
        with Path(path).open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


def variable_state(value: str | None) -> str:
    """Return the digest of a value, which may be a secret; "" if the variable is not set."""
    return "" if value is None else sha256(os.fsencode(value)).hexdigest()


def _variable(name: str) -> str:
    value = "\0".join(sorted(os.environ)) if name == _ALL_NAMES else os.environ.get(name)
    return variable_state(value)


@contextmanager
def recorded_reads() -> Iterator[Reads]:
    """Record what the block reads, and the modules that are loaded; complete when it has ended.

    Variables, folders, checks whether a file exists, and imports that fail count if code outside of
    installed libraries is their origin.
    """
    from unittest.mock import patch  # imports asyncio, which a command that traces nothing spares

    record, start_ns = _Record(), time.time_ns()
    _install_hook()
    _recording.append(record)
    try:
        with ExitStack() as patches:
            for owner, name, recorded in _patches(record):
                patches.enter_context(patch.object(owner, name, recorded(getattr(owner, name))))
            yield record.reads
    finally:
        _recording.remove(record)
    paths = sorted(record.paths | _files_of_modules() | _files_of_missing(record.imports))
    record.reads.files |= {path: file_state(path) for path in paths}
    record.reads.is_complete &= not any(_has_changed(path, start_ns) for path in paths)


class _Record:
    """What a block has read so far."""

    def __init__(self) -> None:
        self.reads = Reads()
        self.paths: set[str] = set()
        self.imports: dict[str, tuple[str, ...]] = {}  # sys.path by name of a module

    def add_path(self, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        with suppress(OSError):  # the working folder was deleted
            full = str(Path(os.fsdecode(path)).absolute())
            if not full.startswith((*_PACKAGES, *_STDLIB, *_KERNEL)) and not full.endswith(".pyc"):
                self.paths.add(full)

    def add_variable(self, name: Any) -> None:
        if isinstance(name, str | bytes):
            self.reads.variables.setdefault(os.fsdecode(name), _variable(os.fsdecode(name)))


Function = Callable[..., Any]


def _patches(record: _Record) -> Iterator[tuple[Any, str, Callable[[Function], Function]]]:
    """Yield the functions, by owner and name, that no audit event reports, and their recorders."""

    def recorder(add: Function) -> Callable[[Function], Function]:
        def wrap(function: Function) -> Function:
            def recorded(*arguments: Any, **options: Any) -> Any:
                if not _is_busy() and _is_read_by_user(inspect.currentframe()):
                    _own.is_busy = True
                    try:
                        for value in (*arguments, *options.values()):
                            add(value)
                    finally:
                        _own.is_busy = False
                return function(*arguments, **options)

            return recorded

        return wrap

    environment = os.environ.__class__  # also that of os.environb
    yield environment, "__getitem__", recorder(record.add_variable)
    yield environment, "__iter__", recorder(lambda _: record.add_variable(_ALL_NAMES))
    yield Path, "stat", recorder(record.add_path)
    for name in ("exists", "isfile", "isdir"):
        yield os.path, name, recorder(record.add_path)


def _has_changed(path: str, start_ns: int) -> bool:
    """Return whether a file or folder has changed since a time: what was read may be older."""
    try:
        return Path(path).stat().st_mtime_ns >= start_ns
    except (OSError, ValueError):
        return False


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


def _files_of_missing(imports: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the files that would be modules whose import failed, in the folders of modules."""
    return {
        str(Path(folder).absolute() / file)
        for name, folders in imports.items()
        if name.isidentifier() and name not in sys.modules
        for folder in folders
        for file in (f"{name}.py", f"{name}/__init__.py")
    }


# An audit hook cannot be removed, so that there is one for all blocks of the process.
_recording: list[_Record] = []
_own = threading.local()  # "is_busy" while this thread reads for the record, which does not count
_hooked: list[bool] = []


def _is_busy() -> bool:
    return getattr(_own, "is_busy", False)


def _install_hook() -> None:
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Add what an event reads to the records of all open blocks."""
    if not _recording or _is_busy():
        return
    if event == "open":
        path, _, flags = arguments
        is_new = flags & (os.O_TRUNC | os.O_EXCL)
        if flags & os.O_ACCMODE != os.O_WRONLY and not is_new:
            for record in _recording:
                record.add_path(path)
    elif event in _PROGRAMS:
        if _is_read_by_user(inspect.currentframe()):
            for record in _recording:
                record.reads.is_complete = False
    elif event in _FOLDERS:
        caller = sys._getframe(1).f_code.co_filename  # importlib lists folders of modules
        if not caller.startswith("<frozen importlib") and _is_read_by_user(inspect.currentframe()):
            for record in _recording:
                record.add_path(arguments[0] or ".")
    elif event == "import" and _is_read_by_user(inspect.currentframe()):
        for record in _recording:
            record.imports[arguments[0]] = tuple(sys.path)


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
