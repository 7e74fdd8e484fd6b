"""List of registered policies for help texts."""

from __future__ import annotations

import sys

from presage.schedulers.policies.policy_registry import POLICIES, policy_names


def policy_list() -> str:
    """Return the names of registered policies; plug-ins are looked up only if help is asked for.

    The look-up reads the metadata of all installed packages, which takes 30 ms.
    """
    asks_for_help = not {"-h", "--help"}.isdisjoint(sys.argv)
    return ", ".join(policy_names() if asks_for_help else POLICIES)
