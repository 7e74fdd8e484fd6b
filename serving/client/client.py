"""Clients of a prediction server, with the methods and types of the in-process predictor.

They require only grpcio, protobuf and numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import grpc

from presage.errors import InvalidJobError, PresageError, ServiceError, UnknownDeviceError
from presage.features.colocation import Colocation
from presage.features.device.device import Device, Share
from presage.features.placement import Placement
from presage.features.scaling.scaling_request import ScalingForecasts, ScalingRequest
from presage.serving.client import requests as service_calls
from presage.serving.client.channel import OPTIONS, raise_status
from presage.serving.client.connection_problem import (
    find_connection_problem,
    find_connection_problem_async,
    is_timeout,
)
from presage.serving.client.credentials import Credentials
from presage.serving.client.job_features import make_job_features
from presage.serving.client.requests import ServiceCall
from presage.serving.outcomes.outcome import Outcome, Reported
from presage.serving.predictor.prediction_backend import (
    DEFAULT_COVERAGE,
    ColocationForecast,
    JobForecast,
    ReleaseInfo,
)
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.v1 import prediction_pb2_grpc as pb_grpc

Answer = TypeVar("Answer")
Row = TypeVar("Row")


class PresageClient:
    """Client of the prediction service at ``target`` ("host:port"); safe to share between threads.

    All calls share one connection, which is opened by the first call. Use the client as a context
    manager, or call ``close()``.

    Parameters
    ----------
    timeout_s : float
        Time limit of each call, including retries. Large inputs are split into several calls. A
        call that did not reach a server takes up to 0.2 s more to find the reason.
    credentials : Credentials, optional
        Token or certificates.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        Raised by the calls: the server rejected the request, with its reason.
    ServiceError, OverloadedError, UnauthenticatedError, ForbiddenError
        Raised by the calls: see :func:`presage.serving.client.channel.raise_status`.
    """

    def __init__(
        self, target: str, *, timeout_s: float = 5.0, credentials: Credentials | None = None
    ) -> None:
        self._target, self._timeout_s = target, timeout_s
        credentials = credentials or Credentials()
        self._metadata = credentials.metadata_for(target)
        channel_credentials = credentials.channel_credentials()
        self._channel = (
            grpc.insecure_channel(target, options=OPTIONS)
            if channel_credentials is None
            else grpc.secure_channel(target, channel_credentials, options=OPTIONS)
        )
        self._stub: Any = pb_grpc.PredictionServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def predict(
        self,
        placements: Sequence[Placement],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[JobForecast]:
        """Return one solo forecast per placement, in order.

        With ``levels`` every forecast also has the quantiles at these levels.
        """
        return _raise_first_error(self.predict_each(placements, coverage=coverage, levels=levels))

    def predict_each(
        self,
        placements: Sequence[Placement],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[JobForecast | PresageError]:
        """Return one solo forecast per placement, or the error of a rejected placement."""
        calls = service_calls.predict(placements, coverage, levels)
        return [row for call in calls for row in self._call(call)]

    def predict_interference(
        self,
        colocations: Sequence[Colocation],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[ColocationForecast]:
        """Return one forecast per co-location, in order; slowdowns in the order of its members."""
        calls = service_calls.predict_interference(colocations, coverage, levels)
        return _raise_first_error(row for call in calls for row in self._call(call))

    def predict_scaling(
        self, request: ScalingRequest, *, coverage: float = DEFAULT_COVERAGE
    ) -> ScalingForecasts:
        """Return the forecasts of one job at several numbers of GPUs and nodes.

        They are fitted to the measured steps of the request.

        Raises
        ------
        MissingMethodError
            The server is of an older version, without this call.
        """
        return self._call(service_calls.predict_scaling(request, coverage))

    def predict_matrix(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """Return the forecasts of :meth:`predict` from features that the client computes.

        This costs the server the least time per placement.
        """
        calls = service_calls.predict_matrix(placements, coverage)
        return [row for call in calls for row in self._call(call)]

    def predict_job(
        self, source: Any, kind: str, *, share: Share | None = None, **options: Any
    ) -> JobForecast:
        """Return the solo forecast of one job on a kind of device.

        ``source`` and the options are those of
        :func:`presage.serving.client.job_features.make_job_features`: a torch module with its
        inputs, a file, or features. For many or frequent predictions, create the placements once
        and call :meth:`predict`.
        """
        job = make_job_features(source, **options)
        return self.predict([Placement(job, self.device(kind), share or Share())])[0]

    def device(self, kind: str) -> Device:
        """Return the server's data of a device kind, by any of its names; cache the result."""
        with _name_unknown_kind(kind):
            (device,) = self._call(service_calls.release([kind])).devices.values()
        return device

    def release(self) -> ReleaseInfo:
        """Return the served release."""
        return self._call(service_calls.release())

    def report(self, outcomes: Sequence[Outcome]) -> Reported:
        """Report measured outcomes; accepted ones are on the server's disk."""
        return self._call(service_calls.report(outcomes))

    def report_rows(self, rows: Sequence[pb.Outcome]) -> Reported:
        """Report outcomes that are protobuf messages already."""
        return self._call(service_calls.report_rows(rows))

    def reload(self) -> ReleaseInfo:
        """Make the server check for a newer release; raise RefusedReleaseError if it rejects it."""
        return self._call(service_calls.reload())

    def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _call(self, call: ServiceCall[Answer]) -> Answer:
        method = getattr(self._stub, call.method)
        try:
            response = method(call.request, timeout=self._timeout_s, metadata=self._metadata())
        except grpc.RpcError as error:
            why = find_connection_problem(self._channel) if is_timeout(error) else ""
            raise_status(error, self._target, self._timeout_s, why)
        return _read(call, response, self._target)


class AsyncPresageClient:
    """Client for asyncio with the methods of :class:`PresageClient` as coroutines."""

    def __init__(
        self, target: str, *, timeout_s: float = 5.0, credentials: Credentials | None = None
    ) -> None:
        self._target, self._timeout_s = target, timeout_s
        credentials = credentials or Credentials()
        self._metadata = credentials.metadata_for(target)
        channel_credentials = credentials.channel_credentials()
        self._channel = (
            grpc.aio.insecure_channel(target, options=OPTIONS)
            if channel_credentials is None
            else grpc.aio.secure_channel(target, channel_credentials, options=OPTIONS)
        )
        self._stub: Any = pb_grpc.PredictionServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def predict(
        self,
        placements: Sequence[Placement],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[JobForecast]:
        """As :meth:`PresageClient.predict`."""
        return _raise_first_error(
            await self.predict_each(placements, coverage=coverage, levels=levels)
        )

    async def predict_each(
        self,
        placements: Sequence[Placement],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[JobForecast | PresageError]:
        """As :meth:`PresageClient.predict_each`."""
        calls = service_calls.predict(placements, coverage, levels)
        return [row for call in calls for row in await self._call(call)]

    async def predict_interference(
        self,
        colocations: Sequence[Colocation],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[ColocationForecast]:
        """As :meth:`PresageClient.predict_interference`."""
        calls = service_calls.predict_interference(colocations, coverage, levels)
        return _raise_first_error([row for call in calls for row in await self._call(call)])

    async def predict_scaling(
        self, request: ScalingRequest, *, coverage: float = DEFAULT_COVERAGE
    ) -> ScalingForecasts:
        """As :meth:`PresageClient.predict_scaling`."""
        return await self._call(service_calls.predict_scaling(request, coverage))

    async def predict_matrix(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """As :meth:`PresageClient.predict_matrix`."""
        calls = service_calls.predict_matrix(placements, coverage)
        return [row for call in calls for row in await self._call(call)]

    async def predict_job(
        self, source: Any, kind: str, *, share: Share | None = None, **options: Any
    ) -> JobForecast:
        """As :meth:`PresageClient.predict_job`."""
        job = make_job_features(source, **options)
        placement = Placement(job, await self.device(kind), share or Share())
        return (await self.predict([placement]))[0]

    async def device(self, kind: str) -> Device:
        """As :meth:`PresageClient.device`."""
        with _name_unknown_kind(kind):
            (device,) = (await self._call(service_calls.release([kind]))).devices.values()
        return device

    async def release(self) -> ReleaseInfo:
        """As :meth:`PresageClient.release`."""
        return await self._call(service_calls.release())

    async def report(self, outcomes: Sequence[Outcome]) -> Reported:
        """As :meth:`PresageClient.report`."""
        return await self._call(service_calls.report(outcomes))

    async def report_rows(self, rows: Sequence[pb.Outcome]) -> Reported:
        """As :meth:`PresageClient.report_rows`."""
        return await self._call(service_calls.report_rows(rows))

    async def reload(self) -> ReleaseInfo:
        """As :meth:`PresageClient.reload`."""
        return await self._call(service_calls.reload())

    async def close(self) -> None:
        """As :meth:`PresageClient.close`."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def _call(self, call: ServiceCall[Answer]) -> Answer:
        method = getattr(self._stub, call.method)
        try:
            response = await method(
                call.request, timeout=self._timeout_s, metadata=self._metadata()
            )
        except grpc.RpcError as error:
            why = await find_connection_problem_async(self._channel) if is_timeout(error) else ""
            raise_status(error, self._target, self._timeout_s, why)
        return _read(call, response, self._target)


@contextmanager
def _name_unknown_kind(kind: str) -> Iterator[None]:
    """Add the kind to the error of an unknown device; the server's text repeats no request text."""
    try:
        yield
    except UnknownDeviceError as error:
        rest = str(error).removeprefix("device_kinds[0].kind is not known")
        raise UnknownDeviceError(f"the server knows no device of kind {kind!r}{rest}") from error


def _read(call: ServiceCall[Answer], response: Any, target: str) -> Answer:
    try:
        return call.read(response)
    except (ValueError, InvalidJobError, UnknownDeviceError) as error:
        raise ServiceError(
            f"{target} sent an invalid response ({error}); is it a Presage server of this version?"
        ) from error


def _raise_first_error(rows: Iterable[Row | PresageError]) -> list[Row]:
    """Return the rows; raise the first row that is an error."""
    out: list[Row] = []
    for row in rows:
        if isinstance(row, PresageError):
            raise row
        out.append(row)
    return out
