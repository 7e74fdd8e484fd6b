"""A PostgreSQL server of real processes, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.serving.support.processes import free_port


def postgres_programs() -> Path | None:
    """Where PostgreSQL's own programs lie, the newest's, which Debian keeps off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@contextmanager
def postgres(folder: Path, database: str) -> Iterator[str]:
    """URL of an empty database; the server's user must be able to look into the folder."""
    programs, port = postgres_programs(), free_port()
    assert programs is not None
    as_user: list[str] = []
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data, log = folder / "data", folder / "log"
    listen = f"-h 127.0.0.1 -p {port} -k {folder}"
    initdb = [programs / "initdb", "-D", data, "-U", "postgres", "--no-sync"]
    control = [programs / "pg_ctl", "-D", data, "-l", log, "-w"]
    _run([*as_user, *initdb])
    _run([*as_user, *control, "-o", listen, "start"])
    try:
        createdb = [programs / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]
        _run([*createdb, database])
        yield f"postgresql://postgres@127.0.0.1:{port}/{database}"
    finally:
        _run([*as_user, *control, "-m", "immediate", "stop"])


def restart(folder: Path) -> None:
    """Stop the server of a folder at once, as a crash does, and start it again."""
    programs = postgres_programs()
    assert programs is not None
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    _run([*as_user, programs / "pg_ctl", "-D", folder / "data", "-l", folder / "log", "-w",
          "-m", "immediate", "restart"])  # fmt: skip


def create_database(url: str, name: str) -> str:
    """Create another database on a server; return its URL."""
    programs = postgres_programs()
    assert programs is not None
    server, _, _ = url.rpartition("/")
    _run([programs / "createdb", "--maintenance-db", url, name])
    return f"{server}/{name}"


def _run(command: list[Any]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
