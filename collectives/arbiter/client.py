"""Client of an arbiter for users: status, explanations and time line."""

from __future__ import annotations

from typing import Any, Self

import grpc

from presage.collectives.switch.protocol import is_name
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.collectives.v1 import arbiter_pb2_grpc as pb_grpc
from presage.errors import (
    ForbiddenError,
    InvalidRequestError,
    OverloadedError,
    ServiceError,
    UnauthenticatedError,
    UnknownJobError,
)
from presage.serving.client.connection_problem import describe_problem
from presage.serving.client.credentials import Credentials

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0))
_ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: UnknownJobError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: ForbiddenError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
}


class ArbiterClient:
    """Client of the arbiter at ``target`` ("host:port"); a context manager.

    Raises
    ------
    InvalidRequestError, UnknownJobError, UnauthenticatedError, ForbiddenError, OverloadedError
        From all methods: the arbiter rejected the request, for the reason in the message.
    ServiceError
        From all methods: the arbiter is not reachable, or did not respond in time.
    """

    def __init__(
        self, target: str, *, credentials: Credentials | None = None, timeout_s: float = 10.0
    ) -> None:
        self._target, self._timeout_s = target, timeout_s
        used = credentials or Credentials()
        self._metadata = used.metadata_for(target)
        found = used.channel_credentials()
        self._channel = (
            grpc.insecure_channel(target, options=_OPTIONS)
            if found is None
            else grpc.secure_channel(target, found, options=_OPTIONS)
        )
        self._stub: Any = pb_grpc.ArbiterServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def status(self) -> pb.StatusResponse:
        """Return switches and jobs."""
        found: pb.StatusResponse = self._call("Status", pb.StatusRequest())
        return found

    def explain(self, job: str, number: int | None = None) -> pb.ExplainResponse:
        """Explain the decision of an AllReduce; the last started one by default."""
        if not is_name(job.encode(errors="replace")):  # no message can have such a name
            raise UnknownJobError(f"no job {job!r} is registered; see `presage inc status`")
        found: pb.ExplainResponse = self._call("Explain", pb.ExplainRequest(job=job, number=number))
        return found

    def timeline(self, last_s: float = 0.0) -> pb.TimelineResponse:
        """Return the AllReduces of the last seconds; 0 for all that the arbiter has."""
        found: pb.TimelineResponse = self._call("Timeline", pb.TimelineRequest(last_s=last_s))
        return found

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(
                request, timeout=self._timeout_s, metadata=self._metadata()
            )
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _error(self, error: Any) -> Exception:
        code, details = error.code(), error.details()
        if code in _ERRORS:
            raised: Exception = _ERRORS[code](details)
            return raised
        if code is grpc.StatusCode.UNAVAILABLE:
            return ServiceError(
                f"no arbiter at {self._target}: {describe_problem(details)}; start one with "
                "`presage inc arbiter`, or give the address of a running one by --arbiter"
            )
        return ServiceError(f"{self._target} failed with {code.name}: {details}")
