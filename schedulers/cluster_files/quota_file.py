"""Reader of quotas from YAML files.

.. code-block:: yaml

    default: {devices: 8}
    users:
      ana: {devices: 4, weight: 2}
      bob: {weight: 0.5}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from presage.errors import ConfigError
from presage.schedulers.core.users.quota import DEFAULT, Quota, Quotas, check_user_name
from presage.system.files.yaml_file import read_yaml
from presage.system.text.known_names import check_known

_KEYS, _FIELDS = ("default", "users"), ("devices", "weight")


def read_quotas(path: Path) -> Quotas:
    """Read the quotas of users.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, or has an unknown key or a wrong number; the message names
        it.
    """
    content = read_yaml(path, "a YAML file")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must have the keys default and users, such as users: {{...}}")
    check_known([*map(str, content)], _KEYS, f"{path}: ")
    return Quotas(dict(_quotas(path, content)))


def _quotas(path: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, Quota]]:
    if "default" in content:
        yield DEFAULT, _quota(f"{path}: default", content["default"])
    users = content.get("users") or {}
    if not isinstance(users, dict):
        raise ConfigError(f"{path}: users: must be a mapping from names to quotas")
    for user, row in users.items():
        if not isinstance(user, str):
            raise ConfigError(f"{path}: users: {user!r} is no text; quote it")
        try:
            check_user_name(user)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        yield user, _quota(f"{path}: user {user!r}", row)


def _quota(where: str, row: object) -> Quota:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: must be a quota such as {{devices: 4, weight: 2}}")
    check_known([*map(str, row)], _FIELDS, f"{where}: ")
    for field, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{where}: {field}: {value!r} is no number (to YAML, 1e3 is text)")
    try:
        return Quota(**{field: float(value) for field, value in row.items()})
    except (ConfigError, OverflowError) as error:
        raise ConfigError(f"{where}: {error}") from None
