"""Tokens that ``presage cluster up`` creates: for its user, and for each node."""

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
from presage.system.files.atomic_file import replace_text

USER_ROLES = ("view", "submit", "admin")


@dataclass(frozen=True, slots=True)
class ClusterTokens:
    """Files that only their owner can read.

    Attributes
    ----------
    file : Path
        Token file of the controller.
    of_node : dict of str to Path
        File with the token of each node.
    user : LocalToken
        Token of the user; the caller writes it, and removes it at the end.
    """

    file: Path
    of_node: dict[str, Path]
    user: LocalToken


@contextmanager
def own_state(state: Path) -> Iterator[None]:
    """Create the state folder, and lock it for this process.

    Raises
    ------
    ConfigError
        It cannot be created, or another ``presage cluster up`` has locked it.
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
            f"--state {state}: is used by another `presage cluster up`; stop that one, or name "
            "another folder"
        ) from error
    finally:
        os.close(lock)


def make_tokens(state: Path, port: int, nodes: Mapping[str, Mapping[str, int]]) -> ClusterTokens:
    """Create new tokens for a cluster on this machine.

    Parameters
    ----------
    nodes : mapping of str to mapping of str to int
        Number of devices of each kind, by the name of the node.

    Raises
    ------
    ConfigError
        The folder cannot be written.
    """
    file, of_node = state / "tokens", {name: state / f"{name}.token" for name in nodes}
    user = LocalToken(port, USER_ROLES)
    try:
        replace_text(file, _user_line(user))
        for name, devices in nodes.items():
            # A kind may be a driver's name for a GPU, which contains spaces.
            counts = ",".join(f"{quote(kind, safe='')}:{n}" for kind, n in devices.items())
            limits = {"node": name, "devices": counts}
            replace_text(of_node[name], add_token(file, f"node-{name}", ["agent"], limits))
    except OSError as error:
        raise ConfigError(
            f"--state {state}: tokens cannot be written ({one_line(error)}); name another folder"
        ) from error
    return ClusterTokens(file, of_node, user)


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner can enter; an existing one keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def _user_line(user: LocalToken) -> str:
    digest = hashlib.sha256(user.token.encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]", "-", account()).lstrip("._-")[:64] or "user"
    run_as = "" if name == account() else f" run-as={account()}"
    return f"{name} {','.join(USER_ROLES)} {digest}{run_as}\n"
