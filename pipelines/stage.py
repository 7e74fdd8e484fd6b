"""What every stage shares at its edge: parameters, whole files, exit codes."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from presage.features.errors import PresageError

INTERRUPTED = 130


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's ``main``: one line for an error a person can mend, 130 for Ctrl-C."""
    try:
        main()
    except PresageError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; files are whole, run it again to go on\n")
        sys.exit(INTERRUPTED)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a partial file, then put it in place: a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_params(section: str, path: Path = Path("params.yaml")) -> dict[str, Any]:
    """One section of params.yaml; the stage's dataclass refuses unknown keys by name."""
    import yaml

    content: dict[str, Any] = yaml.safe_load(path.read_text())[section]
    return content
