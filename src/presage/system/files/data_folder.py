"""Default folder for data of commands: outcome logs, registry, state of a live cluster."""

from __future__ import annotations

import os
from pathlib import Path

from presage.errors import ConfigError

_PIPELINE = Path("dvc.yaml")
_OWN_STAGE = b"presage.pipelines"


def data_folder() -> Path:
    """Return the folder under which commands keep their data unless an option names another.

    In the root of a checkout, which is a folder whose ``dvc.yaml`` runs Presage's stages, it is
    ``data``. Elsewhere it is ``$XDG_STATE_HOME/presage``, by default ``~/.local/state/presage``:
    a log must be found again from another current folder.
    The folder need not exist; this function creates nothing.

    Raises
    ------
    ConfigError
        The user has no home folder, and XDG_STATE_HOME is not set.

    References
    ----------
    XDG Base Directory Specification 0.8: a value that is not an absolute path is ignored.
    """
    if is_checkout(Path()):
        return Path("data")
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "presage"
    try:
        return Path.home() / ".local/state/presage"
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home folder to keep data in; set XDG_STATE_HOME to a folder that "
            "may be written"
        ) from error


def default_log() -> Path:
    """Return the file that a server logs reported outcomes to by default."""
    return data_folder() / "outcomes" / "log.db"


def is_checkout(folder: Path) -> bool:
    """Return whether a folder is the root of a checkout: its ``dvc.yaml`` runs Presage's stages."""
    try:
        return _OWN_STAGE in (folder / _PIPELINE).read_bytes()
    except OSError:
        return False
