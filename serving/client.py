"""The client: predictions from a server, with the methods and types of the in-process predictor.

Needs only grpcio, protobuf and numpy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self, TypeVar

import grpc

from presage.features.colocation import Colocation
from presage.features.device import Device
from presage.features.errors import InvalidJobError, ServiceError, UnknownDeviceError
from presage.features.placement import Placement
from presage.serving import wire, wire_requests
from presage.serving.forecasts import (
    DEFAULT_COVERAGE,
    ColocationForecast,
    JobForecast,
    ReleaseInfo,
)
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc
from presage.serving.wire_requests import MAX_MESSAGE_BYTES

# gRPC waits a random part of each backoff, so that clients of a server that was restarted do not
# come back all at once. Every method is a question: asking twice does no harm.
_RETRY = {
    "methodConfig": [
        {
            "name": [{"service": "presage.v1.PredictionService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
_OPTIONS = (
    ("grpc.service_config", json.dumps(_RETRY)),
    ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),  # a larger request is not retried
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Connect again as fast as calls are retried; gRPC's own default waits a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A scheduler and its prediction server share a network; http_proxy is for going out of it.
    ("grpc.enable_http_proxy", 0),
)

Reply = TypeVar("Reply")


class PresageClient:
    """A prediction service at ``target`` ("host:port"); safe to share between threads.

    Nothing is sent before the first call. Use it as a context manager, or ``close()`` it.

    Parameters
    ----------
    timeout_s : float
        What every call may take, retries included.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        By the calls: the server refused the question, with the reason it gave.
    ServiceError
        By the calls: no server there, no answer in time, or none that makes sense.
    """

    def __init__(self, target: str, *, timeout_s: float = 5.0) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._stub: Any = pb_grpc.PredictionServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """One forecast per placement, in order; each job as if alone on its share."""
        if not placements:
            return []
        request = wire_requests.write_predict(placements, coverage)
        return self._call(self._stub.Predict, request, wire.read_job_forecasts)

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """One forecast per co-location, in order; slowdowns in the order of its members."""
        if not colocations:
            return []
        request = wire_requests.write_predict_interference(colocations, coverage)
        return self._call(self._stub.PredictInterference, request, wire.read_colocation_forecasts)

    def device(self, kind: str) -> Device:
        """Device of that kind as the server knows it; ask once and keep it."""
        request = pb.GetReleaseRequest(device_kinds=[kind])
        return self._call(self._stub.GetRelease, request, wire.read_release).devices[kind]

    def release(self) -> ReleaseInfo:
        """What the server serves."""
        return self._call(self._stub.GetRelease, pb.GetReleaseRequest(), wire.read_release)

    def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _call(self, method: Any, request: Any, read: Callable[[Any], Reply]) -> Reply:
        try:
            response = method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            self._raise(error)
        try:
            return read(response)
        except (ValueError, InvalidJobError, UnknownDeviceError) as error:
            raise ServiceError(
                f"{self._target} answered what cannot be ({error}); is it a Presage server of "
                "this version?"
            ) from error

    def _raise(self, error: Any) -> NoReturn:
        """The error of ours that a gRPC status stands for."""
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            raise InvalidJobError(details) from error
        if code is grpc.StatusCode.NOT_FOUND:
            raise UnknownDeviceError(details) from error
        if code is grpc.StatusCode.UNAVAILABLE:
            raise ServiceError(
                f"no prediction service at {self._target} ({details}); start one with "
                "`presage serve`, or give the address of one that runs"
            ) from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ServiceError(
                f"{self._target} did not answer within {self._timeout_s:g} s; ask for less at "
                "once, or raise timeout_s"
            ) from error
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise ServiceError(
                f"{self._target}: request or answer is too large ({details}); ask for less at once"
            ) from error
        raise ServiceError(
            f"{self._target} failed with {code.name}: {details}; see the server's log"
        ) from error
