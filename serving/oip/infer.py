"""ModelInfer: validation of a request, then execution of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from presage.errors import InvalidTensorError
from presage.serving.oip.messages import ModelInferResponse, parse_request
from presage.serving.oip.served import ServedModels
from presage.serving.oip.served_model import OUTPUT_TENSOR, ServedModel
from presage.serving.oip.tensors import FLOAT32, check_parameters, raw_tensor, read_inputs
from presage.serving.oip.values import check_values
from presage.serving.predictor.onnx_model import OUTPUT
from presage.system.arrays import Float32s, Mask


@dataclass(frozen=True, slots=True)
class Inference:
    """Validated request.

    Attributes
    ----------
    present : ndarray of shape (co-locations, members), or None
        Mask of members; None for a model of rows.
    raw : bool
        Whether inputs are raw contents; the output then is raw, too.
    """

    model: ServedModel
    inputs: dict[str, Float32s]
    present: Mask | None
    request_id: str = ""
    raw: bool = True

    @property
    def rows(self) -> int:
        """Number of rows, or of co-locations x members including padding."""
        first = next(iter(self.inputs.values()))
        return math.prod(first.shape[: len(self.model.output.axes)])


def check(request: Any, served: ServedModels) -> Inference:
    """Validate a ModelInferRequest.

    Raises
    ------
    UnknownModelError
        The model or version does not exist.
    InvalidTensorError
        Any other error. The text repeats nothing of the request except shapes.
    """
    model = served.find(request.model_name, request.model_version)
    _check_outputs(request.outputs, model)
    inputs = read_inputs(request, model)
    present = check_values(inputs)
    return Inference(model, inputs, present, request.id, bool(request.raw_input_contents))


def check_serialized(request: bytes, served: ServedModels) -> Inference:
    """Validate a serialized ModelInferRequest; a request with a cached header is not parsed.

    Raises
    ------
    InvalidRequestError
        The bytes are not a ModelInferRequest.
    UnknownModelError, InvalidTensorError
        As raised by :func:`check`.
    """
    header = served.headers.find(request)
    if header is not None:
        inputs = {header.tensor: raw_tensor(request[len(header.content) :], header.shape)}
        return Inference(header.model, inputs, check_values(inputs))
    message = parse_request("ModelInfer", request)
    inference = check(message, served)
    if len(message.raw_input_contents) == 1 and not message.id:
        [(tensor, values)] = inference.inputs.items()
        [raw] = message.raw_input_contents
        served.headers.store(request, raw, inference.model, tensor, values.shape)
    return inference


def run(inference: Inference) -> bytes:
    """Run the model and return the serialized ModelInferResponse.

    Raises
    ------
    ReleaseError
        The model fails, or its output violates the contract.
    """
    quantiles = _quantiles(inference)
    # Concatenated serialized messages are one message with the fields of all.
    id_field = _id_field(inference.request_id) if inference.request_id else b""
    common = inference.model.response_header
    if inference.raw:
        before_contents = _raw_output(quantiles.shape)
        return b"".join((common, id_field, before_contents, quantiles.tobytes()))
    contents = {"fp32_contents": quantiles.ravel().tolist()}
    return b"".join((common, id_field, _output(quantiles.shape, contents=contents)))


def _id_field(request_id: str) -> bytes:
    content: bytes = ModelInferResponse(id=request_id).SerializeToString()
    return content


def _output(shape: tuple[int, ...], **more: Any) -> bytes:
    output = {**OUTPUT_TENSOR, "shape": shape, **more}
    content: bytes = ModelInferResponse(outputs=[output]).SerializeToString()
    return content


@lru_cache
def _raw_output(shape: tuple[int, ...]) -> bytes:
    """Return the output tensor of a response up to its raw contents, which come last."""
    blank = bytes(math.prod(shape) * FLOAT32.itemsize)
    contents: bytes = ModelInferResponse(raw_output_contents=[blank]).SerializeToString()
    return _output(shape) + contents[: -len(blank)]


def _quantiles(inference: Inference) -> Float32s:
    """Return quantiles (rows, levels) or (co-locations, members, levels), little-endian."""
    present = inference.present
    quantiles: Float32s = inference.model.onnx.run(inference.inputs, present)
    quantiles = quantiles.astype("<f4", copy=False)
    if present is None:
        return quantiles
    # Padding has slowdown 1.
    padded = np.ones((*present.shape, quantiles.shape[1]), dtype="<f4")
    padded[present] = quantiles
    return padded


def _check_outputs(outputs: Sequence[Any], model: ServedModel) -> None:
    if len(outputs) > 1:
        raise InvalidTensorError(
            f"outputs: {len(outputs)} are requested, but {model.name} has only one: {OUTPUT}"
        )
    for output in outputs:
        if output.name != OUTPUT:
            raise InvalidTensorError(f"outputs[0]: unknown name; {model.name} has one: {OUTPUT}")
        check_parameters(output, OUTPUT)
