"""A campaign that was measured by hand, entered into DVC's lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from presage.system.printable import error_line

LOCAL, STAGE = Path("data/profiles/local"), "profile"


@contextmanager
def entered_into_lock(campaign: Path) -> Iterator[None]:
    """Around what measures: whatever it left of a campaign, also where it failed, is entered."""
    before = _files(campaign)
    try:
        yield
    finally:
        if _files(campaign) != before:
            enter_into_lock(campaign)


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def enter_into_lock(campaign: Path) -> None:
    """Let `dvc commit` know a campaign, if a stage of this checkout makes it.

    `dvc exp run` checks out what the lock says of every output before it runs anything, and what
    the cache does not hold is gone then.
    """
    is_ours = campaign.resolve() == LOCAL.resolve() and campaign.is_dir()
    if not (is_ours and Path("dvc.yaml").is_file() and Path(".dvc").is_dir() and find_spec("dvc")):
        return
    command = [sys.executable, "-m", "dvc", "commit", "--quiet", "--force", STAGE]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        print(  # noqa: T201
            f"{campaign} is not in dvc.lock ({error_line(done.stderr)}): before `dvc exp "
            f"run`, which would put back what was there, `dvc commit -f {STAGE}`",
            file=sys.stderr,
        )
