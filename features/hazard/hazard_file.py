"""Files of hazard models, and the one that is installed with Presage."""

from __future__ import annotations

from pathlib import Path

import presage
from presage.errors import ConfigError
from presage.features.hazard.hazard_model import HazardModel, parse_hazard_model


def pretrained_hazard_file() -> Path:
    """Return the file of the model that is part of the installed package.

    It was fitted to the first 200 days of InfiniteHBD's trace.
    """
    return Path(presage.__file__).parent / "pretrained" / "hazard" / "hazard.json"


def read_hazard_model(path: Path) -> HazardModel:
    """Read the file of a hazard model.

    Raises
    ------
    ConfigError
        The file is missing or invalid.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(
            f"{path}: cannot be read as a hazard model ({why}); fit one with `dvc repro hazard`"
        ) from None
    return parse_hazard_model(text, source=str(path))
