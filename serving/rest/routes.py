"""Paths of the HTTP API, one for each unary method of ``presage.v1.PredictionService``."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from google.protobuf.descriptor import Descriptor, MethodDescriptor

from presage.errors import InvalidRequestError
from presage.serving.v1 import prediction_pb2 as pb

OPENAPI_PATH = "/openapi.json"
HEALTH_PATH = "/v1/health"
_MAX_PARAMETERS = 4096

SERVICE = pb.DESCRIPTOR.services_by_name["PredictionService"]


class Route(NamedTuple):
    """HTTP method and path of a method of the service.

    A GET request has the fields of its message as query parameters, a POST request as JSON.
    """

    verb: str
    path: str
    method: str

    @property
    def descriptor(self) -> MethodDescriptor:
        """Descriptor of the method."""
        return SERVICE.methods_by_name[self.method]


# A new method needs a path here; a stream has none.
ROUTES = (
    Route("POST", "/v1/predict", "Predict"),
    Route("POST", "/v1/predict-interference", "PredictInterference"),
    Route("POST", "/v1/predict-scaling", "PredictScaling"),
    Route("POST", "/v1/predict-matrix", "PredictMatrix"),
    Route("POST", "/v1/outcomes", "ReportOutcomes"),
    Route("GET", "/v1/release", "GetRelease"),
    Route("POST", "/v1/reload", "Reload"),
)


def query_as_json(query: str, message: Descriptor) -> bytes:
    """Return the query parameters of a GET request as JSON of its message.

    Raises
    ------
    InvalidRequestError
        The query is not a list of parameters, or a parameter is repeated that has one value.
    """
    if not query:
        return b"{}"
    try:
        values = parse_qs(
            query, keep_blank_values=True, strict_parsing=True, errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )  # fmt: skip
    except ValueError:  # its text repeats the query
        raise InvalidRequestError(
            f"the query of the URL is not NAME=VALUE&NAME=VALUE in UTF-8, or has more than "
            f"{_MAX_PARAMETERS} parameters"
        ) from None
    return json.dumps(
        {name: _value(name, found, message) for name, found in values.items()}
    ).encode()


def _value(name: str, values: list[str], message: Descriptor) -> Any:
    field = message.fields_by_camelcase_name.get(name) or message.fields_by_name.get(name)
    if field is not None and field.is_repeated:
        return values
    if len(values) > 1:
        raise InvalidRequestError("a parameter of the URL's query has two values; send one")
    return values[0]
