"""Policies by name: what the command line offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from presage.schedulers.backfill import Backfill
from presage.schedulers.best_fit import BestFit
from presage.schedulers.bin_packing import BinPacking
from presage.schedulers.fifo import Fifo
from presage.schedulers.least_attained_service import LeastAttainedService
from presage.schedulers.packing import Packing
from presage.schedulers.policy import Policy
from presage.schedulers.shortest_first import ShortestFirst
from presage.schedulers.shortest_remaining_first import ShortestRemainingFirst

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "backfill": Backfill,
    "sjf": ShortestFirst,
    "srtf": ShortestRemainingFirst,
    "las": LeastAttainedService,
    "best-fit": BestFit,
    "bin-packing": BinPacking,
    "packing": Packing,
}
