"""Safe file names for any job and any folder."""

from __future__ import annotations

import string

_SAFE = frozenset((string.ascii_letters + string.digits + "-_.").encode())
_MAX_LENGTH = 180  # of the 255 of file systems: prefixes and suffixes are added


def safe_name(text: str) -> str:
    """Return a unique file name: letters, digits and ``-_.`` as they are, other bytes as %xx.

    A long name is cut and a digest of the text appended. A leading dot is escaped as well: hidden
    names are reserved for unfinished folders.
    """
    raw = text.encode(errors="surrogatepass")
    name = "".join(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in raw)
    if name.startswith("."):
        name = f"%{ord('.'):02x}{name[1:]}"
    if len(name) <= _MAX_LENGTH:
        return name
    import hashlib  # 2 MB, which a shim avoids unless a name is long

    return f"{name[:100]}%{hashlib.sha256(raw).hexdigest()}"


def task_name(job_id: str, attempt: int) -> str:
    """Return the name of a task's folder and control groups, also its ``PRESAGE_TASK``."""
    return f"{safe_name(job_id)}.{attempt}"
