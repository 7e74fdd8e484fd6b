"""Requests as clients build them, and responses as clients read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import columns
from presage.serving.oip.infer import check, run
from presage.serving.oip.messages import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    message,
)
from presage.serving.oip.served import ServedModels

COLUMNS = columns("full")
WIDTH = len(COLUMNS)
MEMBER_WIDTH = len(MEMBER_COLUMNS)


def infer(request: Any, served: ServedModels) -> Any:
    """Return the ModelInferResponse to a ModelInferRequest."""
    return ModelInferResponse.FromString(run(check(request, served)))


def features(rows: int = 1) -> np.ndarray[Any, Any]:
    """Return features, no two of which are equal."""
    return np.arange(1, rows * WIDTH + 1, dtype=np.float32).reshape(rows, WIDTH)


def colocations(*sizes: int) -> dict[str, Any]:
    """Return members and mask of co-locations of these sizes, padded to the largest."""
    mask = np.arange(max(sizes)) < np.array(sizes)[:, np.newaxis]
    count = mask.size * MEMBER_WIDTH
    members = np.arange(count, dtype=np.float32).reshape(*mask.shape, MEMBER_WIDTH) / count
    return {"members": members, "mask": mask.astype(np.float32)}


def tensor(name: str, shape: Any, datatype: str = "FP32", **contents: Any) -> Any:
    made = message("ModelInferRequest.InferInputTensor")(name=name, datatype=datatype, shape=shape)
    if contents:
        made.contents.CopyFrom(InferTensorContents(**contents))
    return made


def request(model: str, inputs: Any, raw: Any = (), **fields: Any) -> Any:
    made = ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw, **fields)
    return ModelInferRequest.FromString(made.SerializeToString())  # as it comes to a server


def raw_request(model: str, arrays: dict[str, Any], **fields: Any) -> Any:
    inputs = [tensor(name, array.shape) for name, array in arrays.items()]
    return request(model, inputs, [array.tobytes() for array in arrays.values()], **fields)


def typed_request(model: str, arrays: dict[str, Any], **fields: Any) -> Any:
    inputs = [
        tensor(name, array.shape, fp32_contents=array.ravel().tolist())
        for name, array in arrays.items()
    ]
    return request(model, inputs, **fields)


def answered(response: Any) -> np.ndarray[Any, Any]:
    """Return the quantiles of a response with raw or typed contents."""
    (output,) = response.outputs
    assert (output.name, output.datatype) == ("quantiles", "FP32")
    if response.raw_output_contents:
        (raw,) = response.raw_output_contents
        assert not output.HasField("contents")
        return np.frombuffer(raw, "<f4").reshape(output.shape)
    return np.array(output.contents.fp32_contents, np.float32).reshape(output.shape)
