"""A machine as tests of GPUs want it, and stages without what takes longest of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from presage.pipelines.profiling.sampling import dcgm, nvml_device
from presage.pipelines.stages import train, train_interference


@contextmanager
def without_onnx() -> Iterator[None]:
    """Networks are learnt and judged, and not exported, which takes longer than learning."""
    with pytest.MonkeyPatch.context() as patch:
        for stage in (train, train_interference):
            patch.setattr(stage, "export", lambda *_: b"")
        yield


@pytest.fixture
def no_onnx() -> Iterator[None]:
    """For a test that looks at no exported network."""
    with without_onnx():
        yield


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All GPUs visible, no DCGM but what a test puts into its folder, no warning given yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml_device.warn_of_permission.cache_clear()
    dcgm.warn.cache_clear()
