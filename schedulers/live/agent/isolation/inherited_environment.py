"""The environment that a job has from its node: nothing that the agent does not name."""

from __future__ import annotations

import os
from collections.abc import Collection

from presage.schedulers.live.agent.isolation.account import Account, own_variables

_NAMES = frozenset(("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"))
_PREFIXES = ("LC_", "CUDA", "NVIDIA", "NCCL")


def inherited_environment(account: Account | None, also: Collection[str]) -> dict[str, str]:
    """Variables of the agent that its jobs have too, and those of a job's account.

    All others are the agent's own: a token, a proxy with its password, a key of a cloud.

    Parameters
    ----------
    account : Account or None
        That the job runs as; None for the agent's.
    also : collection of str
        Further names.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _NAMES or name in also or name.startswith(_PREFIXES)
    }
    return {**kept, **(own_variables() if account is None else account.variables())}
