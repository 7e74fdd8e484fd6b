"""The C aggregator, compiled on first use into a cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from presage.system.files.atomic_file import write_atomically

SOURCES = Path(__file__).with_name("aggregator")
FLAGS = ("-std=c11", "-O2", "-ftree-vectorize", "-Wall", "-Wextra", "-Werror=format-security")
_COMPILE_S = 120


class BuildError(Exception):
    """The C aggregator cannot be built on this machine; the message says why."""


def aggregator_program() -> Path:
    """Return the compiled aggregator; compile it unless the cache has it.

    The cache is ``$XDG_CACHE_HOME/presage/switch``, by default ``~/.cache/presage/switch``. Its
    entries are named by a digest of the sources, the flags and the version of the compiler, which
    ``$CC`` names, by default ``cc``. Processes that compile at the same time do not disturb each
    other.

    Raises
    ------
    BuildError
        There is no compiler, it fails, or the cache cannot be written.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise BuildError(f"no C compiler {os.environ.get('CC') or 'cc'} is on the PATH")
    version = _run([compiler, "--version"])
    sources = [path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]"))]
    parts = (*sources, " ".join(FLAGS).encode(), compiler.encode(), version)
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    try:
        program = _cache_folder() / digest / "aggregator"
        if not program.is_file():
            write_atomically(program, lambda partial: _compile(compiler, partial))
    except (OSError, RuntimeError) as error:
        raise BuildError(f"the cache of compiled programs cannot be written: {error}") from error
    return program


def _compile(compiler: str, target: Path) -> None:
    _run([compiler, *FLAGS, "-o", str(target), *map(str, sorted(SOURCES.glob("*.c")))])
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
