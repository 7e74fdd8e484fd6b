"""Fixtures: a machine for GPU tests, and stages without ONNX export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import solo_quantities
from presage.pipelines.profiling.sampling import dcgm, nvml_device
from presage.pipelines.stages import train, train_interference


def required_solo_quantities() -> dict[str, Quantity]:
    """Return the solo quantities that every campaign measures, also one on a processor."""
    return {name: one for name, one in solo_quantities().items() if not one.is_optional}


@contextmanager
def without_onnx() -> Iterator[None]:
    """Skip the ONNX export of networks, which takes longer than training."""
    with pytest.MonkeyPatch.context() as patch:
        for stage in (train, train_interference):
            patch.setattr(stage, "export", lambda *_: b"")
        yield


@pytest.fixture
def no_onnx() -> Iterator[None]:
    """Skip the ONNX export, for tests that read no exported network."""
    with without_onnx():
        yield


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make all GPUs visible, hide DCGM except in the test's folder, and reset warnings."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml_device.warn_of_permission.cache_clear()
    dcgm.warn.cache_clear()
