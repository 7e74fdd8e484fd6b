"""``inference.GRPCInferenceService``, the Open Inference Protocol: each predictor as a model.

Clients of Triton and KServe speak it. What is asked and answered is in :mod:`presage.serving.oip`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from presage.serving.oip.infer import Inference, check_serialized, run
from presage.serving.oip.messages import SERVICE_NAME, message, parsed
from presage.serving.oip.metadata import model_metadata, model_ready, server_metadata
from presage.serving.oip.served import ServedModels
from presage.serving.predictor.served_release import Served
from presage.serving.server.call import Call, Calls
from presage.serving.server.work_queue import Work

__all__ = ["SERVICE_NAME", "InferenceService"]

_ModelReadyResponse = message("ModelReadyResponse")


class InferenceService:
    """The methods, each of bytes to bytes."""

    def __init__(self, served: Served, calls: Calls, work: Work) -> None:
        self._served, self._calls, self._work = served, calls, work

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to answer."""
        # Probes of a balancer have no token.
        open_to_all: dict[str, Callable[[bytes, Call], bytes | Awaitable[bytes]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
        }
        for_callers = {
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        unary = self._calls.unary
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {name: unary(name, None, method) for name, method in open_to_all.items()}
            | {name: unary(name, "predict", method) for name, method in for_callers.items()},
        )

    def _server_live(self, request: bytes, _call: Call) -> bytes:
        parsed("ServerLive", request)
        return _written(message("ServerLiveResponse")(live=True))

    def _server_ready(self, request: bytes, _call: Call) -> bytes:
        parsed("ServerReady", request)
        return _written(message("ServerReadyResponse")(ready=self._served.is_ready))

    def _server_metadata(self, request: bytes, _call: Call) -> bytes:
        parsed("ServerMetadata", request)
        return _written(server_metadata())

    def _model_ready(self, request: bytes, _call: Call) -> bytes:
        asked = parsed("ModelReady", request)
        if not self._served.is_ready:
            return _written(_ModelReadyResponse(ready=False))
        return _written(model_ready(asked, self._current()))

    def _model_metadata(self, request: bytes, _call: Call) -> bytes:
        return _written(model_metadata(parsed("ModelMetadata", request), self._current()))

    def _model_infer(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        inference = check_serialized(request, self._current())
        self._calls.admit_rows(call, inference.rows)
        return self._work.run(_weight(inference), len(request), call, lambda: run(inference))

    def _current(self) -> ServedModels:
        """The models of the release that is served now; all of an answer is that one's."""
        return self._served.predictor.served_models


def _weight(inference: Inference) -> int:
    """Rows, or what members that meet each other cost as rows."""
    if inference.present is None:
        return inference.rows
    colocations, members = inference.present.shape
    return int(colocations * members**2)


def _written(response: Any) -> bytes:
    content: bytes = response.SerializeToString()
    return content
