"""Environment that a job inherits from its agent: an allow-list of variables."""

from __future__ import annotations

import os
from collections.abc import Collection

from presage.schedulers.live.agent.isolation.account import Account, own_variables

_NAMES = frozenset(("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"))
_PREFIXES = ("LC_", "CUDA", "NVIDIA", "NCCL")


def inherited_environment(account: Account | None, also: Collection[str]) -> dict[str, str]:
    """Return the variables that a job inherits from the agent, and those of its account.

    No others are inherited: they may hold a token, a proxy's password or a cloud key.

    Parameters
    ----------
    account : Account or None
        Account of the job; None for the agent's own.
    also : collection of str
        Names of further variables to inherit.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _NAMES or name in also or name.startswith(_PREFIXES)
    }
    return {**inherited, **(own_variables() if account is None else account.variables())}
