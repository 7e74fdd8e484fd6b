"""Accounts that exist on every machine, and a state folder they can reach, for tests as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from presage.schedulers.live.agent.isolation.account import Account, find_account
from presage.schedulers.live.agent.isolation.safe_folders import remove_tree
from tests.schedulers.live.agent.node import Node

ALICE, BOB = "bin", "daemon"


def uid_of(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def account(name: str = ALICE) -> Account:
    found = find_account(name, "here", allow_root=False)
    assert found is not None
    return found


@cache
def _missing() -> str:
    if os.geteuid() != 0:
        return "only root can run jobs as other accounts"
    try:
        uid_of(ALICE), uid_of(BOB)
    except KeyError as error:
        return str(error)
    return "" if _python() else f"account {ALICE} can run no Python here"


@cache
def _python() -> str:
    """Return a Python that other accounts can run; a virtual environment may be in root's home."""
    checks = "import sys; assert sys.version_info >= (3, 9)"
    for path in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        with suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([path or "", "-c", checks], user=ALICE, cwd="/", check=True)
            return path or ""
    return ""


needs_accounts = pytest.mark.skipif(bool(_missing()), reason=_missing() or "-")
PYTHON = _python() if os.geteuid() == 0 else sys.executable


@contextmanager
def reachable_node() -> Iterator[Node]:
    """Yield a node in a folder that other accounts can traverse, unlike the folders of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="presage-test-"))
    folder.chmod(0o711)
    (folder / "state").mkdir(mode=0o711)
    node = Node(folder / "state")
    try:
        yield node
    finally:
        node.close()
        assert remove_tree(folder, 120.0)  # jobs create trees that are too deep for shutil
