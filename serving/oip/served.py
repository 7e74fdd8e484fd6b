"""The predictors of one release as the protocol sees them: models with a common version."""

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
    """Predictors of a release, by name; the release id is the version of each."""

    release_id: str
    schema_hash: str
    models: Mapping[str, ServedModel]
    headers: Headers = field(default_factory=Headers)

    @classmethod
    def of(cls, release: Release, models: Mapping[str, OnnxModel]) -> ServedModels:
        """Return the predictors of a release from its loaded ONNX models."""
        return cls(
            release.release_id,
            release.manifest["schema_hash"],
            {name: served_model(name, release, models[name]) for name in release.predictors},
        )

    def find(self, name: str, version: str) -> ServedModel:
        """Return a model by name; ``version`` is the release id, or "" for the one served.

        Raises
        ------
        UnknownModelError
            Names what is served. It does not repeat text of the request.
        """
        model = self.models.get(name)
        if model is None:
            raise UnknownModelError(f"no model of that name; there are {', '.join(self.models)}")
        if version not in ("", self.release_id):
            raise UnknownModelError(
                f"no such version of {model.name}; {self.release_id} is served: ask for it, or "
                "leave the version empty"
            )
        return model
