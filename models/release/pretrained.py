"""Pretrained release that is installed with Presage."""

from __future__ import annotations

from pathlib import Path

import presage


def pretrained_release() -> Path:
    """Return the folder of the release that is part of the installed package.

    The release is package data, so it is found from any current folder: a wheel contains the
    files, a checkout links ``src/presage/pretrained`` to ``data/pretrained``.
    """
    return Path(presage.__file__).parent / "pretrained" / "release"
