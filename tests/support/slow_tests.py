"""Mark of tests that run only with ``PRESAGE_TEST_FAULTS=all``, as in CI."""

from __future__ import annotations

import os

import pytest

# What takes long and adds little to the rest.
all_faults = pytest.mark.skipif(
    os.environ.get("PRESAGE_TEST_FAULTS") != "all", reason="takes long; PRESAGE_TEST_FAULTS=all"
)
