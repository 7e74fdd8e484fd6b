"""Explore configurations: all, or those whose names contain each argument."""

from __future__ import annotations

import sys

from tests.collectives.explorer.catalogue import IN_BAND, SMALL, TWO_PHASE
from tests.collectives.explorer.laws import check

for config in (*SMALL, *IN_BAND, *TWO_PHASE):
    if all(word in config.name for word in sys.argv[1:]):
        print(check(config), flush=True)
