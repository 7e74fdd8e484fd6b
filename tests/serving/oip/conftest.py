from __future__ import annotations

from typing import Any

import pytest

from presage.serving.oip.served import ServedModels
from presage.serving.predictor.onnx_model import OnnxModel


class NeverRun:
    """Model that must not run."""

    def run(self, inputs, present=None):
        raise AssertionError("a model ran although the request is wrong")


@pytest.fixture(scope="session")
def served(release) -> ServedModels:
    """Served models of the hand-made release."""
    models = {
        name: OnnxModel(
            release.model_path(name),
            inputs={"members", "mask"} if name == "interference" else {"features"},
            levels=len(release.levels),
            least=1.0 if name == "interference" else 0.0,
        )
        for name in release.predictors
    }
    return ServedModels.from_release(release, models)


@pytest.fixture(scope="session")
def never_run(release) -> ServedModels:
    """Served models that fail the test when one of them runs."""
    models: dict[str, Any] = {name: NeverRun() for name in release.predictors}
    return ServedModels.from_release(release, models)
