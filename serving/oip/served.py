"""Predictors of a release as models of the protocol, with a common version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.errors import UnknownModelError
from presage.models.release.release import Release
from presage.serving.oip.headers import Headers
from presage.serving.oip.served_model import ServedModel, served_model
from presage.serving.predictor.onnx_model import OnnxModel


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models of a release by name; the release id is the version of each."""

    release_id: str
    schema_hash: str
    models: Mapping[str, ServedModel]
    headers: Headers = field(default_factory=Headers)

    @classmethod
    def from_release(cls, release: Release, models: Mapping[str, OnnxModel]) -> ServedModels:
        """Return the models of a release from its loaded ONNX models by predictor."""
        return cls(
            release.release_id,
            release.manifest["schema_hash"],
            {name: served_model(name, release, models[name]) for name in release.predictors},
        )

    def find(self, name: str, version: str) -> ServedModel:
        """Return the model of that name; ``version`` is a release id, or "" for the served one.

        Raises
        ------
        UnknownModelError
            The model or version does not exist. The text names the existing ones and does not
            repeat the request.
        """
        model = self.models.get(name)
        if model is None:
            raise UnknownModelError(f"unknown model; the models are {', '.join(self.models)}")
        if version not in ("", self.release_id):
            raise UnknownModelError(
                f"unknown version of {model.name}; request {self.release_id}, or leave the "
                "version empty"
            )
        return model
