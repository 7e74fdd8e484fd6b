"""Stages on a Ray cluster of two real nodes on this host."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.ray_driver import run_ray_driver

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install presage[ray]"
)
SCRIPT = Path(__file__).with_name("ray_stages.py")


def test_stages_on_two_nodes_write_the_same_bytes_as_in_one_process(tmp_path):
    result = json.loads(run_ray_driver(SCRIPT, tmp_path, timeout_s=580).stdout.splitlines()[-1])

    assert result["nodes"] == 2
    assert len(result["here"]) > 15
    assert result["there"] == result["here"]
