"""Marks and reports of tests that run the explorer."""

from __future__ import annotations

import os

import pytest

slow_tier = pytest.mark.skipif(
    os.environ.get("PRESAGE_TEST_FAULTS") != "all", reason="takes long; PRESAGE_TEST_FAULTS=all"
)
