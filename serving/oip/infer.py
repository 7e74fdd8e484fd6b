"""ModelInfer: a request is checked completely, and only then does a model run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from presage.errors import InvalidTensorError
from presage.features.arrays import Floats
from presage.serving.oip.messages import ModelInferResponse, parse_request
from presage.serving.oip.served import OUTPUT_TENSOR, ServedModel, ServedModels
from presage.serving.oip.tensors import FLOAT32, check_parameters, raw_tensor, read_inputs
from presage.serving.oip.values import Mask, check_values
from presage.serving.predictor.onnx_model import OUTPUT


@dataclass(frozen=True, slots=True)
class Inference:
    """A checked request: nothing that a caller can mend is wrong with it.

    Attributes
    ----------
    present : ndarray of shape (co-locations, members), or None
        Where there are members; None for a model of rows.
    raw : bool
        Whether contents came as bytes, as they then go back.
    """

    model: ServedModel
    inputs: dict[str, Floats]
    present: Mask | None
    request_id: str = ""
    raw: bool = True

    @property
    def rows(self) -> int:
        """Rows, or co-locations x members, padding included: what the model has to work on."""
        first = next(iter(self.inputs.values()))
        return math.prod(first.shape[: len(self.model.output.axes)])


def check(request: Any, served: ServedModels) -> Inference:
    """A ModelInferRequest, ready to run.

    Raises
    ------
    UnknownModelError
        There is no such model, or no such version.
    InvalidTensorError
        Anything else is wrong. The text repeats nothing that the caller wrote but shapes.
    """
    model = served.find(request.model_name, request.model_version)
    _check_outputs(request.outputs, model)
    inputs = read_inputs(request, model)
    present = check_values(inputs)
    return Inference(model, inputs, present, request.id, bool(request.raw_input_contents))


def check_serialized(request: bytes, served: ServedModels) -> Inference:
    """The same of a ModelInferRequest in bytes; one that begins as another did is not parsed.

    Raises
    ------
    InvalidRequestError
        The bytes are no such request.
    UnknownModelError, InvalidTensorError
        As above.
    """
    header = served.headers.find(request)
    if header is not None:
        inputs = {header.tensor: raw_tensor(request[len(header.content) :], header.shape)}
        return Inference(header.model, inputs, check_values(inputs))
    asked = parse_request("ModelInfer", request)
    inference = check(asked, served)
    if len(asked.raw_input_contents) == 1 and not asked.id:
        [(tensor, values)] = inference.inputs.items()
        [raw] = asked.raw_input_contents
        served.headers.keep(request, raw, inference.model, tensor, values.shape)
    return inference


def run(inference: Inference) -> bytes:
    """The ModelInferResponse, serialized.

    Raises
    ------
    ReleaseError
        The model fails, or its answer breaks the contract.
    """
    quantiles = _quantiles(inference)
    # Serialized messages that follow one another are one message with the fields of all.
    of_id = _of_id(inference.request_id) if inference.request_id else b""
    if inference.raw:
        before_contents = _raw_output(quantiles.shape)
        return b"".join((inference.model.answer, of_id, before_contents, quantiles.tobytes()))
    contents = {"fp32_contents": quantiles.ravel().tolist()}
    return b"".join((inference.model.answer, of_id, _output(quantiles.shape, contents=contents)))


def _of_id(request_id: str) -> bytes:
    content: bytes = ModelInferResponse(id=request_id).SerializeToString()
    return content


def _output(shape: tuple[int, ...], **more: Any) -> bytes:
    output = {**OUTPUT_TENSOR, "shape": shape, **more}
    content: bytes = ModelInferResponse(outputs=[output]).SerializeToString()
    return content


@lru_cache
def _raw_output(shape: tuple[int, ...]) -> bytes:
    """A response's output tensor, up to its raw contents, which are the last of the response."""
    blank = bytes(math.prod(shape) * FLOAT32.itemsize)
    contents: bytes = ModelInferResponse(raw_output_contents=[blank]).SerializeToString()
    return _output(shape) + contents[: -len(blank)]


def _quantiles(inference: Inference) -> Floats:
    """Answer of shape (rows, levels) or (co-locations, members, levels), little-endian."""
    present = inference.present
    quantiles: Floats = inference.model.onnx.run(inference.inputs, present)
    quantiles = quantiles.astype("<f4", copy=False)
    if present is None:
        return quantiles
    # Padding is slowed down by nobody.
    padded = np.ones((*present.shape, quantiles.shape[1]), dtype="<f4")
    padded[present] = quantiles
    return padded


def _check_outputs(outputs: Sequence[Any], model: ServedModel) -> None:
    if len(outputs) > 1:
        raise InvalidTensorError(
            f"outputs: {len(outputs)} are asked for, {model.name} has one: {OUTPUT}"
        )
    for output in outputs:
        if output.name != OUTPUT:
            raise InvalidTensorError(f"outputs[0]: unknown name; {model.name} has one: {OUTPUT}")
        check_parameters(output, OUTPUT)
