"""Address of an outcome log: a file, or a PostgreSQL database."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

LogAddress = Path | str  # a file, or the URL of a database
_SCHEMES = ("postgresql://", "postgres://")


def log_address(text: str) -> LogAddress:
    """Return a ``postgresql://`` URL as it is, and any other text as a file."""
    return text if text.startswith(_SCHEMES) else Path(text)


def log_name(address: LogAddress) -> str:
    """Return the name of a log for messages and tables, without a password."""
    if isinstance(address, Path):
        return str(address)
    url = urlsplit(address)
    return f"postgresql://{url.netloc.rpartition('@')[2]}{url.path}"
