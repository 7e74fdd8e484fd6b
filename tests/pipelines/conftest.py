"""A machine as tests of GPUs want it."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.pipelines.profiling import dcgm, nvml_device


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All GPUs visible, no DCGM but what a test puts into its folder, no warning given yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml_device.warn_of_permission.cache_clear()
    dcgm.warn.cache_clear()
