"""C sources of this package, compiled on first use into a cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from presage.system.files.atomic_file import write_atomically

_COMPILE_S = 120


class BuildError(Exception):
    """C sources cannot be compiled on this machine; the message says why."""


def compiled(name: str, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Return a compiled program or library; compile it unless the cache has it.

    The cache is ``$XDG_CACHE_HOME/presage/switch``, by default ``~/.cache/presage/switch``. Its
    entries are named by a digest of the sources, the flags and the version of the compiler, which
    ``$CC`` names, by default ``cc``. Processes that compile at the same time do not disturb each
    other.

    Parameters
    ----------
    name : str
        File name of the result.
    sources : sequence of Path
        Files to compile, and headers that they include.

    Raises
    ------
    BuildError
        There is no compiler, it fails, or the cache cannot be written.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise BuildError(f"no C compiler {os.environ.get('CC') or 'cc'} is on the PATH")
    version = _run([compiler, "--version"])
    contents = [path.read_bytes() for path in sources]
    parts = (*contents, " ".join(flags).encode(), compiler.encode(), version)
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    files = [str(path) for path in sources if path.suffix == ".c"]
    try:
        target = _cache_folder() / digest / name
        if not target.is_file():
            command = [compiler, *flags]
            write_atomically(target, lambda partial: _compile([*command, *files], partial))
    except (OSError, RuntimeError) as error:
        raise BuildError(f"the cache of compiled programs cannot be written: {error}") from error
    return target


def _compile(command: list[str], target: Path) -> None:
    _run([*command, "-o", str(target)])
    target.chmod(0o755)


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_S)
    except subprocess.CalledProcessError as error:
        tail = error.stderr.decode(errors="replace").strip()[-500:]
        raise BuildError(f"{command[0]} failed with status {error.returncode}: {tail}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} failed: {error}") from None
    return done.stdout


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "presage/switch"
