"""Tokens that ``presage cluster up`` makes: of its user, and of each node."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from presage.errors import ConfigError, one_line
from presage.serving.authentication.local_token import LocalToken, account
from presage.serving.authentication.token_file import add_token

USER_ROLES = ("view", "submit", "admin")


@dataclass(frozen=True, slots=True)
class ClusterTokens:
    """Files that only their owner can read.

    Attributes
    ----------
    file : Path
        The controller's token file.
    of_node : dict of str to Path
        By node, the file with its token.
    user : LocalToken
        The user's, which is to be written, and removed at the end.
    """

    file: Path
    of_node: dict[str, Path]
    user: LocalToken


@contextmanager
def own_state(state: Path) -> Iterator[None]:
    """Make the state folder, and keep it for this process.

    Raises
    ------
    ConfigError
        It cannot be made, or another ``presage cluster up`` has it.
    """
    try:
        make_private_folder(state)
        lock = os.open(state / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"--state {state} cannot be written ({one_line(error)}); name another folder"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"--state {state}: another `presage cluster up` runs on it; stop that, or name another"
        ) from error
    finally:
        os.close(lock)


def make_tokens(state: Path, port: int, nodes: Mapping[str, Mapping[str, int]]) -> ClusterTokens:
    """Make new tokens for a cluster on this machine.

    Parameters
    ----------
    nodes : mapping of str to mapping of str to int
        By name, how many devices of each kind a node has.

    Raises
    ------
    ConfigError
        The folder cannot be written.
    """
    file, of_node = state / "tokens", {name: state / f"{name}.token" for name in nodes}
    user = LocalToken(port, USER_ROLES)
    try:
        _write(file, _user_line(user))
        for name, devices in nodes.items():
            # A kind may be a name that a driver gave, with spaces in it.
            counts = ",".join(f"{quote(kind, safe='')}:{n}" for kind, n in devices.items())
            limits = {"node": name, "devices": counts}
            _write(of_node[name], add_token(file, f"node-{name}", ["agent"], limits))
    except OSError as error:
        raise ConfigError(
            f"--state {state}: tokens cannot be written ({one_line(error)}); name another folder"
        ) from error
    return ClusterTokens(file, of_node, user)


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter; one that is there keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file for ``open(..., opener=...)``: only its owner can read it."""
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(opened, 0o600)  # also one that is there already
    return opened


def _user_line(user: LocalToken) -> str:
    digest = hashlib.sha256(user.token.encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]", "-", account()).lstrip("._-")[:64] or "user"
    run_as = "" if name == account() else f" run-as={account()}"
    return f"{name} {','.join(USER_ROLES)} {digest}{run_as}\n"


def _write(path: Path, text: str) -> None:
    """Put a text in a file's place."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "x", opener=open_private) as file:
        file.write(text)
    new.replace(path)
