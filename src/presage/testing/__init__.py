"""Checks for code that extends Presage, to be called from its tests."""

from presage.testing.check_policy import check_policy
from presage.testing.checked_policy import BrokenPolicyError

__all__ = ["BrokenPolicyError", "check_policy"]
