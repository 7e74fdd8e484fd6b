"""One predictor as the protocol sees it: a name, tensors, and what its responses share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.quantities.registry import QUANTITIES
from presage.models.release.release import Release
from presage.serving.oip.messages import InferParameter, ModelInferResponse
from presage.serving.predictor.onnx_model import OUTPUT, OnnxModel

DATATYPE = "FP32"  # of every tensor, in and out
OUTPUT_TENSOR = {"name": OUTPUT, "datatype": DATATYPE}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Tensor of the ONNX contract: axes of any length, then optionally one of named columns."""

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
    """Predictor as a model of the protocol.

    Attributes
    ----------
    inputs : mapping of str to TensorSpec
    output : TensorSpec
        Its columns are the quantile levels.
    answer : bytes
        The part of a serialized ModelInferResponse that all responses share.
    """

    name: str
    onnx: OnnxModel
    inputs: Mapping[str, TensorSpec]
    output: TensorSpec
    unit: str
    answer: bytes

    @property
    def takes(self) -> str:
        """Inputs in words, for errors."""
        specs = (f"{spec.name} {DATATYPE} {spec.layout}" for spec in self.inputs.values())
        return f"{self.name} takes {' and '.join(specs)}"


def served_model(name: str, release: Release, onnx: OnnxModel) -> ServedModel:
    """Describe a predictor, by the contract in :mod:`presage.models.release.release`."""
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
