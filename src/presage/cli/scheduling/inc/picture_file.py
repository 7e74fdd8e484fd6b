"""File that a command draws a picture to, checked before the work that the picture needs."""

from __future__ import annotations

from pathlib import Path

from presage.errors import ConfigError


def check_picture(out: Path) -> None:
    """Check the file of ``--out``.

    Raises
    ------
    ConfigError
        It is neither .html nor .svg, is a folder, or its folder does not exist.
    """
    if out.suffix not in (".html", ".svg"):
        raise ConfigError(f"--out {out}: the file must end with .html or .svg")
    if out.is_dir():
        raise ConfigError(f"--out {out}: is a folder; give the name of a file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}; create it")


def write_picture(out: Path, text: str) -> None:
    """Replace a file by a picture.

    Raises
    ------
    ConfigError
        It cannot be written. An existing file keeps its content, and a folder its name.
    """
    from presage.system.files.atomic_file import replace_text

    try:
        replace_text(out, text, mode=0o666)
    except OSError as error:
        raise ConfigError(
            f"--out {out}: cannot be written ({error.strerror}); give another file"
        ) from error
