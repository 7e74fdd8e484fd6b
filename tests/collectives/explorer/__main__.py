"""Explore the configurations whose names contain the arguments: python -m tests.collectives.explorer."""

from __future__ import annotations

import sys

from tests.collectives.explorer.catalogue import IN_BAND, SMALL, TWO_PHASE
from tests.collectives.explorer.laws import check

for config in (*SMALL, *IN_BAND, *TWO_PHASE):
    if all(word in config.name for word in sys.argv[1:]):
        print(check(config), flush=True)
