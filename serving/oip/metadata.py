"""What is served: of the server, of a model, and whether a model is ready."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from presage import __version__
from presage.errors import UnknownModelError
from presage.serving.oip.messages import (
    InferParameter,
    ModelMetadataResponse,
    ModelReadyResponse,
    ServerMetadataResponse,
)
from presage.serving.oip.served import ServedModels
from presage.serving.oip.served_model import DATATYPE, TensorSpec

PLATFORM = "onnxruntime_onnx"


def server_metadata() -> Any:
    """ServerMetadataResponse; none of the protocol's extensions is served."""
    return ServerMetadataResponse(name="presage", version=__version__)


def model_ready(request: Any, served: ServedModels) -> Any:
    """ModelReadyResponse: a model that does not exist is not ready, which is no error."""
    try:
        served.find(request.name, request.version)
    except UnknownModelError:
        return ModelReadyResponse(ready=False)
    return ModelReadyResponse(ready=True)


def model_metadata(request: Any, served: ServedModels) -> Any:
    """ModelMetadataResponse: tensors, and in parameters what their columns are.

    Raises
    ------
    UnknownModelError
        There is no such model, or no such version.
    """
    model = served.find(request.name, request.version)
    # Of the inputs, the first has columns.
    columns = next(iter(model.inputs.values())).columns
    parameters = {
        "unit": model.unit,
        "levels": ",".join(model.output.columns),
        "columns": ",".join(columns),
        "schema_hash": served.schema_hash,
    }
    return ModelMetadataResponse(
        name=model.name,
        versions=[served.release_id],
        platform=PLATFORM,
        inputs=_tensors(model.inputs.values()),
        outputs=_tensors([model.output]),
        parameters={key: InferParameter(string_param=text) for key, text in parameters.items()},
    )


def _tensors(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "datatype": DATATYPE, "shape": spec.shape} for spec in specs]
