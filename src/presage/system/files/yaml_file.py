"""Content of a YAML file that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from presage.errors import ConfigError


def read_yaml(path: Path, what: str) -> Any:
    """Return the content of a YAML file.

    Parameters
    ----------
    what : str
        Kind of file to name in an error, such as "a cluster file".

    Raises
    ------
    ConfigError
        The file cannot be read, or is not YAML.
    """
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name {what}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not YAML ({' '.join(str(error).split())})") from None
