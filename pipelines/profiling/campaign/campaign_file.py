"""A campaign file: YAML with the keys of ``CampaignSettings``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from presage.errors import ConfigError
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.stages.stage import check_settings


def read_campaign_file(path: Path) -> dict[str, Any]:
    """Settings that the file gives; lists come as tuples.

    Raises
    ------
    ConfigError
        The file is missing or no mapping, or a key or the type of a value is not a setting's.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"{path}: cannot be read ({why}); name a campaign file") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML: {line}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds no settings; write lines like `campaign: my-gpus`")
    return settings_of(content, where=str(path))


def settings_of(content: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """What YAML says, checked: nulls left out, lists as tuples.

    Raises
    ------
    ConfigError
        A key, or the type of a value, is not a setting's.
    """
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in content.items()
        if value is not None
    }
    check_settings(given, CampaignSettings, where=where)
    return given
