"""Campaign file: YAML with the keys of ``CampaignSettings``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from presage.errors import ConfigError
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.stages.stage import check_settings


def read_campaign_file(path: Path) -> dict[str, Any]:
    """Read the settings in the file; lists become tuples.

    Raises
    ------
    ConfigError
        The file is missing or not a mapping, or a key or the type of a value is not a setting's.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(
            f"{path}: cannot be read ({reason}); give the path of a campaign file"
        ) from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML: {line}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: no settings in the file; write lines such as `campaign: my-gpus`"
        )
    return parse_settings(content, where=str(path))


def parse_settings(content: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the checked settings of a YAML document, without nulls and with tuples for lists.

    Raises
    ------
    ConfigError
        A key, or the type of a value, is not a setting's.
    """
    settings = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in content.items()
        if value is not None
    }
    check_settings(settings, CampaignSettings, where=where)
    return settings
