"""Predictors of a release as models of the protocol: names, versions and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.errors import UnknownModelError
from presage.features.colocation_member import MEMBER_COLUMNS
from presage.models.release.release import PREDICTORS, Release
from presage.serving.oip.headers import Headers
from presage.serving.oip.messages import InferParameter, ModelInferResponse
from presage.serving.predictor.onnx_model import OUTPUT, OnnxModel

DATATYPE = "FP32"  # of all tensors
OUTPUT_TENSOR = {"name": OUTPUT, "datatype": DATATYPE}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Tensor of the ONNX contract: variable axes and optionally a last axis of named columns."""

    name: str
    axes: tuple[str, ...]
    columns: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with -1 for variable axes."""
        return (-1,) * len(self.axes) + ((len(self.columns),) if self.columns else ())

    @property
    def layout(self) -> str:
        """Shape with names of variable axes, such as ``[rows, 177]``."""
        return f"[{', '.join((*self.axes, *(str(size) for size in self.shape if size > 0)))}]"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Predictor as a model of the protocol.

    Attributes
    ----------
    inputs : mapping of str to TensorSpec
        Input tensors by name.
    output : TensorSpec
        Output tensor, whose columns are the quantile levels.
    response_header : bytes
        Common part of all responses, serialized.
    """

    name: str
    onnx: OnnxModel
    inputs: Mapping[str, TensorSpec]
    output: TensorSpec
    unit: str
    response_header: bytes

    @property
    def takes(self) -> str:
        """Description of the inputs, for errors."""
        specs = (f"{spec.name} {DATATYPE} {spec.layout}" for spec in self.inputs.values())
        return f"{self.name} takes {' and '.join(specs)}"


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models of a release by name; the release id is the version of each."""

    release_id: str
    schema_hash: str
    models: Mapping[str, ServedModel]
    headers: Headers = field(default_factory=Headers)

    @classmethod
    def of(cls, release: Release, models: Mapping[str, OnnxModel]) -> ServedModels:
        """Return the models of a release from its loaded ONNX models by predictor."""
        return cls(
            release.release_id,
            release.manifest["schema_hash"],
            {name: _served_model(name, release, models[name]) for name in PREDICTORS},
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


def _served_model(name: str, release: Release, onnx: OnnxModel) -> ServedModel:
    """Return a model by the contract in :mod:`presage.models.release.release`."""
    if name == "interference":
        axes: tuple[str, ...] = ("co-locations", "members")
        inputs = [TensorSpec("members", axes, MEMBER_COLUMNS), TensorSpec("mask", axes)]
    else:
        axes = ("rows",)
        inputs = [TensorSpec("features", axes, release.columns)]
    unit = PREDICTORS[name]
    levels = tuple(f"{level:g}" for level in release.levels)
    return ServedModel(
        name,
        onnx,
        {spec.name: spec for spec in inputs},
        TensorSpec(OUTPUT, axes, levels),
        unit,
        ModelInferResponse(
            model_name=name,
            model_version=release.release_id,
            parameters={
                "unit": InferParameter(string_param=unit),
                "levels": InferParameter(string_param=",".join(levels)),
            },
        ).SerializeToString(),
    )
