"""The page of the history checker, from its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def page(results: Sequence[dict[str, Any]]) -> str:
    return f"{len(results)} results\n"
