"""Framework version as one number."""

from __future__ import annotations

import math
import re
from functools import lru_cache

FRAMEWORK_RELEASE = "framework_release"  # name of its column in the full feature set
RELEASES_OF_TORCH_1 = 14  # 1.13 was followed by 2.0
NEWEST_RELEASE = 23.0  # 2.9, used if the version is missing


@lru_cache(maxsize=256)  # thousands of jobs share a handful of versions
def framework_release(version: str) -> float:
    """Return the releases of torch since 1.0: "1.12" is 12, "2.1" is 15; 2.0 follows 1.13."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return NEWEST_RELEASE
    try:
        return float(int(match[2]) + RELEASES_OF_TORCH_1 * (int(match[1]) - 1))
    except (OverflowError, ValueError):
        return math.inf  # hundreds of digits
