"""Parameter ``fair_share_s`` of all policies: users with less past use go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from presage.errors import ConfigError
from presage.schedulers.policies.parameters import read_parameters

if TYPE_CHECKING:
    from presage.schedulers.core.policy import Policy

PARAMETER = "fair_share_s"
MAX_HALF_LIFE_S = 1e9


def split_fair_share(name: str, settings: Sequence[str]) -> tuple[list[str], float]:
    """Return the other parameters of a policy, and the half-life of use; 0 without fair share.

    Raises
    ------
    ConfigError
        The half-life is given twice, or is not a number of seconds.
    """
    own = [one for one in settings if one.partition("=")[0] == PARAMETER]
    others = [one for one in settings if one not in own]
    half_life_s = read_parameters(name, _half_life, own)[PARAMETER] if own else 0.0
    assert isinstance(half_life_s, float)
    if own and not 1.0 <= half_life_s <= MAX_HALF_LIFE_S:
        raise ConfigError(
            f"policy {name!r}: {PARAMETER}={half_life_s:g}, must be a half-life within 1 and "
            f"{MAX_HALF_LIFE_S:g} seconds; leave it out for no fair share"
        )
    return others, half_life_s


def with_fair_share(name: str, policy: Policy, half_life_s: float) -> Policy:
    """Return a policy whose queue is ordered by fair share, within a priority.

    Raises
    ------
    ConfigError
        The policy orders jobs itself.
    """
    if policy.needs.orders_jobs:
        raise ConfigError(
            f"policy {name!r} orders jobs itself, so that {PARAMETER} has no effect; leave it out, "
            "or use a policy such as backfill, sjf or best-fit"
        )
    policy.needs = replace(policy.needs, fair_share_s=half_life_s)
    return policy


def _half_life(fair_share_s: float) -> None:
    """Declare the parameter."""
