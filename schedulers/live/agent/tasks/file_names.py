"""Names that are safe as a file's: of any job, of any folder."""

from __future__ import annotations

import string

_SAFE = frozenset((string.ascii_letters + string.digits + "-_.").encode())
_MOST = 180  # of 255 that file systems take: some is put before and behind


def safe_name(text: str) -> str:
    """Letters, digits, ``-_.`` as they are, all other bytes as %xx; no two texts have the same.

    Of a long one the beginning, and a digest of all of it. A first dot is no letter either: names
    that begin with one are hidden, and kept for what is not finished.
    """
    raw = text.encode(errors="surrogatepass")
    name = "".join(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in raw)
    if name.startswith("."):
        name = f"%{ord('.'):02x}{name[1:]}"
    if len(name) <= _MOST:
        return name
    import hashlib  # 2 MB, which a shim spares where no name is long

    return f"{name[:100]}%{hashlib.sha256(raw).hexdigest()}"


def task_name(job_id: str, attempt: int) -> str:
    """Of an attempt's folder and groups, and what the job finds in ``PRESAGE_TASK``."""
    return f"{safe_name(job_id)}.{attempt}"
