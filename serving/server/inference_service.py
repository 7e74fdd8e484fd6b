"""``inference.GRPCInferenceService``, the Open Inference Protocol: each predictor as a model.

Clients of Triton and KServe use it. :mod:`presage.serving.oip` contains the messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from presage.serving.oip.infer import Inference, check_serialized, run
from presage.serving.oip.messages import SERVICE_NAME, message, parse_request
from presage.serving.oip.metadata import model_metadata, model_ready, server_metadata
from presage.serving.oip.served import ServedModels
from presage.serving.predictor.served_release import Served
from presage.serving.server.call import Call, Calls
from presage.serving.server.work_queue import WorkQueue

__all__ = ["SERVICE_NAME", "InferenceService"]

_ModelReadyResponse = message("ModelReadyResponse")


class InferenceService:
    """Servicer of the Open Inference Protocol; its methods map bytes to bytes."""

    def __init__(self, served: Served, calls: Calls, work: WorkQueue) -> None:
        self._served, self._calls, self._work = served, calls, work

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handlers."""
        # Probes of a load balancer have no token.
        public: dict[str, Callable[[bytes, Call], bytes | Awaitable[bytes]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
        }
        restricted = {
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        unary = self._calls.unary
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {name: unary(name, None, method) for name, method in public.items()}
            | {name: unary(name, "predict", method) for name, method in restricted.items()},
        )

    def _server_live(self, request: bytes, _call: Call) -> bytes:
        parse_request("ServerLive", request)
        return _serialize(message("ServerLiveResponse")(live=True))

    def _server_ready(self, request: bytes, _call: Call) -> bytes:
        parse_request("ServerReady", request)
        return _serialize(message("ServerReadyResponse")(ready=self._served.is_ready))

    def _server_metadata(self, request: bytes, _call: Call) -> bytes:
        parse_request("ServerMetadata", request)
        return _serialize(server_metadata())

    def _model_ready(self, request: bytes, _call: Call) -> bytes:
        message = parse_request("ModelReady", request)
        if not self._served.is_ready:
            return _serialize(_ModelReadyResponse(ready=False))
        return _serialize(model_ready(message, self._current()))

    def _model_metadata(self, request: bytes, _call: Call) -> bytes:
        return _serialize(model_metadata(parse_request("ModelMetadata", request), self._current()))

    def _model_infer(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        inference = check_serialized(request, self._current())
        self._calls.admit_rows(call, inference.rows)
        return self._work.run(_weight(inference), len(request), call, lambda: run(inference))

    def _current(self) -> ServedModels:
        """Return the models of the served release; a response uses only one release."""
        return self._served.predictor.served_models


def _weight(inference: Inference) -> int:
    """Return the cost of an inference in rows; co-located members cost their square."""
    if inference.present is None:
        return inference.rows
    colocations, members = inference.present.shape
    return int(colocations * members**2)


def _serialize(response: Any) -> bytes:
    content: bytes = response.SerializeToString()
    return content
