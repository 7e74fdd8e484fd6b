"""Address of an outcome log: a file, or a PostgreSQL database."""

from __future__ import annotations

import re
from pathlib import Path

from presage.errors import ConfigError

LogAddress = Path | str  # a file, or the URL of a database
_SCHEMES = ("postgresql://", "postgres://")
_URL = re.compile(r"[A-Za-z][\w+.-]*://")


def log_address(text: str) -> LogAddress:
    """Return a ``postgresql://`` URL as it is, and any other text as a file.

    Raises
    ------
    ConfigError
        The text is a URL of another kind.
    """
    if text.startswith(_SCHEMES):
        return text
    if found := _URL.match(text):
        raise ConfigError(
            f"{found[0]}... is no address of an outcome log; give a file, or a URL that begins "
            "with postgresql://"
        )
    return Path(text)


def log_name(address: LogAddress) -> str:
    """Return the name of a log for messages and tables: host and database, without a password.

    A password may have any character, also in a URL that is not valid.
    """
    if isinstance(address, Path):
        return str(address)
    _, _, rest = address.partition("://")
    return f"postgresql://{re.split('[?#]', rest.rpartition('@')[2])[0]}"
