"""The gRPC face of a predictor: it translates, and one table maps errors to the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NoReturn, TypeVar

import grpc

from presage.features.errors import (
    ConfigError,
    GraphError,
    InvalidJobError,
    PresageError,
    ProfilingError,
    RegistryError,
    ReleaseError,
    ServiceError,
    TableError,
    TrainingError,
    UnknownDeviceError,
)
from presage.serving import wire, wire_requests
from presage.serving.predictor import Predictor
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["PredictionService"].full_name

# INVALID_ARGUMENT and NOT_FOUND: the caller can mend it. UNAVAILABLE: ask again, or elsewhere.
# INTERNAL: whoever runs this server has to act.
STATUS: dict[type[PresageError], grpc.StatusCode] = {
    InvalidJobError: grpc.StatusCode.INVALID_ARGUMENT,
    GraphError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownDeviceError: grpc.StatusCode.NOT_FOUND,
    ConfigError: grpc.StatusCode.INTERNAL,
    ReleaseError: grpc.StatusCode.INTERNAL,
    TableError: grpc.StatusCode.INTERNAL,
    ProfilingError: grpc.StatusCode.INTERNAL,
    TrainingError: grpc.StatusCode.INTERNAL,
    RegistryError: grpc.StatusCode.UNAVAILABLE,
    ServiceError: grpc.StatusCode.UNAVAILABLE,
}

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Method = Callable[[Any, Any, grpc.ServicerContext], Answer]


def _with_status(method: Method[Answer]) -> Method[Answer]:
    """End the call with the status of whatever PresageError the method raises."""

    @wraps(method)
    def answer(self: Any, request: Any, context: grpc.ServicerContext) -> Answer:
        try:
            return method(self, request, context)
        except PresageError as error:
            status = STATUS[type(error)]
            if status is grpc.StatusCode.INTERNAL:
                _log.error("%s: %s", method.__name__, error)
            context.abort(status, str(error))

    return answer


class PredictionServicer(pb_grpc.PredictionServiceServicer):
    """Answers for one predictor."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    @_with_status
    def Predict(  # noqa: N802
        self, request: pb.PredictRequest, context: grpc.ServicerContext
    ) -> pb.PredictResponse:
        """Solo forecasts of placements."""
        placements, coverage = wire_requests.read_predict(request, self._predictor.device)
        return wire.write_job_forecasts(
            self._predictor.predict(placements, coverage=coverage),
            release_id=self._predictor.release_id,
            coverage=coverage,
        )

    @_with_status
    def PredictInterference(  # noqa: N802
        self, request: pb.PredictInterferenceRequest, context: grpc.ServicerContext
    ) -> pb.PredictInterferenceResponse:
        """Slowdowns and fit of co-locations."""
        colocations, coverage = wire_requests.read_predict_interference(
            request, self._predictor.device
        )
        return wire.write_colocation_forecasts(
            self._predictor.predict_interference(colocations, coverage=coverage),
            release_id=self._predictor.release_id,
            coverage=coverage,
        )

    @_with_status
    def GetRelease(  # noqa: N802
        self, request: pb.GetReleaseRequest, context: grpc.ServicerContext
    ) -> pb.GetReleaseResponse:
        """What is being served."""
        info = self._predictor.release()
        kinds = wire_requests.read_device_kinds(request) or sorted(info.devices)
        return wire.write_release(info, [self._predictor.device(kind) for kind in kinds])

    def PredictStream(  # noqa: N802
        self, request_iterator: Iterator[pb.PredictStreamRequest], context: grpc.ServicerContext
    ) -> NoReturn:
        """Not served yet."""
        context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "PredictStream is not served yet; call Predict and PredictInterference, which take "
            "many placements in one request",
        )

    def ReportOutcomes(  # noqa: N802
        self, request: pb.ReportOutcomesRequest, context: grpc.ServicerContext
    ) -> NoReturn:
        """Not served yet."""
        context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "ReportOutcomes is not served yet; keep the outcomes for a later version",
        )
