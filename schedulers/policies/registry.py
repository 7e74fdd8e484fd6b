"""Policies by name: what the command line offers, as "packing" or "packing:most_members=3"."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping

from presage.errors import ConfigError
from presage.schedulers.core.policy import Policy
from presage.schedulers.policies.backfill import Backfill
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.policies.bin_packing import BinPacking
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.gang.policy import Gang
from presage.schedulers.policies.least_attained_service import LeastAttainedService
from presage.schedulers.policies.packing.policy import Packing
from presage.schedulers.policies.sharing.policy import Sharing
from presage.schedulers.policies.shortest_first import ShortestFirst
from presage.schedulers.policies.shortest_remaining_first import ShortestRemainingFirst
from presage.system.known_names import check_known

POLICIES: Mapping[str, Callable[..., Policy]] = {
    "fifo": Fifo,
    "backfill": Backfill,
    "sjf": ShortestFirst,
    "srtf": ShortestRemainingFirst,
    "las": LeastAttainedService,
    "best-fit": BestFit,
    "bin-packing": BinPacking,
    "packing": Packing,
    "gang": Gang,
    "sharing": Sharing,
}


def policy_of(text: str) -> Policy:
    """The policy of a name, with its parameters where some are given: numbers, or words.

    Raises
    ------
    ConfigError
        The name or a parameter is not known, or a value is of no use.
    """
    name, *settings = text.split(":")
    check_known([name], POLICIES, "policy ")
    known = inspect.signature(POLICIES[name]).parameters
    values: dict[str, float | str] = {}
    for setting in settings:
        parameter, _, value = setting.partition("=")
        if not known:
            raise ConfigError(f"policy {name!r} has no parameters, not {setting!r}")
        check_known([parameter], known, f"policy {name!r}: ")
        if isinstance(known[parameter].default, str):
            values[parameter] = value
            continue
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"policy {name!r}: {parameter}={value!r} is no number") from None
        if not math.isfinite(number):  # also of a whole number that no float can hold
            raise ConfigError(f"policy {name!r}: {parameter}={value}, must be a finite number")
        values[parameter] = int(number) if value.isdecimal() else number
    return POLICIES[name](**values)
