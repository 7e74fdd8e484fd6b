"""One release's predictors as the protocol sees them: names, a version, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.errors import UnknownModelError
from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.quantities.registry import QUANTITIES
from presage.models.release.release import Release
from presage.serving.oip.headers import Headers
from presage.serving.oip.messages import InferParameter, ModelInferResponse
from presage.serving.predictor.onnx_model import OUTPUT, OnnxModel

DATATYPE = "FP32"  # of every tensor, in and out
OUTPUT_TENSOR = {"name": OUTPUT, "datatype": DATATYPE}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the ONNX contract: axes of any length, then perhaps one of named columns."""

    name: str
    axes: tuple[str, ...]
    columns: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, -1 for an axis of any length."""
        return (-1,) * len(self.axes) + ((len(self.columns),) if self.columns else ())

    @property
    def layout(self) -> str:
        """Shape in words, such as ``[rows, 177]``."""
        return f"[{', '.join((*self.axes, *(str(size) for size in self.shape if size > 0)))}]"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A predictor.

    Attributes
    ----------
    inputs : mapping of str to TensorSpec
    output : TensorSpec
        Its columns are the quantile levels.
    answer : bytes
        What all answers have in common, of a serialized ModelInferResponse.
    """

    name: str
    onnx: OnnxModel
    inputs: Mapping[str, TensorSpec]
    output: TensorSpec
    unit: str
    answer: bytes

    @property
    def takes(self) -> str:
        """Its inputs in words, for errors."""
        specs = (f"{spec.name} {DATATYPE} {spec.layout}" for spec in self.inputs.values())
        return f"{self.name} takes {' and '.join(specs)}"


@dataclass(frozen=True, slots=True)
class ServedModels:
    """A release's predictors, by name; the release's id is the version of each."""

    release_id: str
    schema_hash: str
    models: Mapping[str, ServedModel]
    headers: Headers = field(default_factory=Headers)

    @classmethod
    def of(cls, release: Release, models: Mapping[str, OnnxModel]) -> ServedModels:
        """A release whose ONNX models, by predictor, are loaded."""
        return cls(
            release.release_id,
            release.manifest["schema_hash"],
            {name: _served_model(name, release, models[name]) for name in release.predictors},
        )

    def find(self, name: str, version: str) -> ServedModel:
        """Model of that name; ``version`` is the release's id, or "" for whichever is served.

        Raises
        ------
        UnknownModelError
            The text names what there is, and never what was asked for: that is the caller's.
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


def _served_model(name: str, release: Release, onnx: OnnxModel) -> ServedModel:
    """By the contract in :mod:`presage.models.release.release`."""
    quantity = QUANTITIES[name]
    if quantity.scope == "co-location":
        axes: tuple[str, ...] = ("co-locations", "members")
        inputs = [TensorSpec("members", axes, MEMBER_COLUMNS), TensorSpec("mask", axes)]
    else:
        axes = ("rows",)
        inputs = [TensorSpec("features", axes, release.columns)]
    levels = tuple(f"{level:g}" for level in release.levels)
    return ServedModel(
        name,
        onnx,
        {spec.name: spec for spec in inputs},
        TensorSpec(OUTPUT, axes, levels),
        quantity.unit,
        ModelInferResponse(
            model_name=name,
            model_version=release.release_id,
            parameters={
                "unit": InferParameter(string_param=quantity.unit),
                "levels": InferParameter(string_param=",".join(levels)),
            },
        ).SerializeToString(),
    )
