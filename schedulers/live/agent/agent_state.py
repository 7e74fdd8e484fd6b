"""The state folder of an agent: its lock, and the id that is created with it."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path

from presage.errors import ConfigError
from presage.schedulers.live.agent.tasks.task_folder import TASKS
from presage.system.files.atomic_file import replace_text
from presage.system.files.regular_file import open_regular, read_small

_AGENT_ID = re.compile(rb"[0-9a-f]{32}")
_MAX_ID_BYTES = 4096


def lock_state(state: Path) -> int:
    """Lock a state folder for the life of this process, and restrict access to it.

    Jobs of other accounts can reach their own folders in it, and list or read nothing else.

    Raises
    ------
    ConfigError
        Another agent has locked it, or it cannot be written.
    """
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        for folder in (state, state / TASKS):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)
        lock = open_regular(state / "agent.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"state folder {state}: another agent uses it; give each agent its own folder"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"state folder {state}: cannot be used ({error.strerror}); choose another folder"
        ) from None
    return lock


def load_agent_id(state: Path) -> str:
    """Return the id of a state folder; create it at first use.

    Raises
    ------
    ConfigError
        The file of the id is damaged.
    """
    path = state / "agent.id"
    try:
        found = read_small(path, _MAX_ID_BYTES).strip()
    except FileNotFoundError:
        found = b""
    except (OSError, ValueError):  # not a regular file, or too large
        found = b"?"
    if not found:
        found = secrets.token_hex(16).encode()
        replace_text(path, found.decode(), durable=True)
    if _AGENT_ID.fullmatch(found) is None:
        raise ConfigError(
            f"{path}: damaged, must contain 32 hexadecimal digits; restore it, or remove it: the "
            "controller then accepts the node again after one lease"
        )
    return found.decode()
