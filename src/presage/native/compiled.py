"""The compiled functions, or None where the extension is not installed.

Modules look up ``compiled.hot_path`` at every call and compute the same numbers in Python if it is
None. ``PRESAGE_COMPILED=0`` disables the extension.
"""

from __future__ import annotations

import os
from types import ModuleType


def _load() -> ModuleType | None:
    if os.environ.get("PRESAGE_COMPILED") == "0":
        return None
    try:
        from presage.native import hot_path
    except ImportError:  # built without a compiler
        return None
    return hot_path


hot_path = _load()
