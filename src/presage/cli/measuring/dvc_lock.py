"""Entry of a manually measured campaign in DVC's lock file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from presage.system.text.printable import error_line

LOCAL, STAGE = Path("data/profiles/local"), "profile"


@contextmanager
def entered_into_lock(campaign: Path) -> Iterator[None]:
    """Update the lock after the block has measured, also where it failed."""
    before = _files(campaign)
    try:
        yield
    finally:
        if _files(campaign) != before:
            enter_into_lock(campaign)


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def enter_into_lock(campaign: Path) -> None:
    """Run `dvc commit` for a campaign, if it is the output of a stage of this checkout.

    `dvc exp run` first restores every output from the lock file. Tables that are not in DVC's
    cache would be lost.
    """
    is_ours = campaign.resolve() == LOCAL.resolve() and campaign.is_dir()
    if not (is_ours and Path("dvc.yaml").is_file() and Path(".dvc").is_dir() and find_spec("dvc")):
        return
    command = [sys.executable, "-m", "dvc", "commit", "--quiet", "--force", STAGE]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        print(  # noqa: T201
            f"{campaign} is not in dvc.lock ({error_line(done.stderr)}): run `dvc commit -f "
            f"{STAGE}` before `dvc exp run`, which would restore the earlier tables",
            file=sys.stderr,
        )
