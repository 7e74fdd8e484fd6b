"""Predictor as a model of the protocol: name, tensors and the common part of responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.release.release import Release
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


def served_model(name: str, release: Release, onnx: OnnxModel) -> ServedModel:
    """Return a model by the contract in :mod:`presage.models.release.release`."""
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
