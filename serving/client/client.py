"""The clients: predictions from a server, with the methods and types of the in-process predictor.

They need only grpcio, protobuf and numpy.
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
from presage.serving.client import requests as questions
from presage.serving.client.channel import OPTIONS, raise_status
from presage.serving.client.connection_problem import (
    is_late,
    why_unconnected,
    why_unconnected_async,
)
from presage.serving.client.credentials import Credentials
from presage.serving.client.job_features import job_of
from presage.serving.client.requests import Question
from presage.serving.outcomes.outcome import Outcome, Reported
from presage.serving.predictor.forecasts import (
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
    """A prediction service at ``target`` ("host:port"); safe to share between threads.

    One connection, used again by every call. Nothing is sent before the first one. Use it as a
    context manager, or ``close()`` it.

    Parameters
    ----------
    timeout_s : float
        What every call may take, retries included; a question for more than one request takes
        makes several. A call that has not reached a server takes up to 0.2 s more to find out why.
    credentials : Credentials, optional
        Of an encrypted connection, or a token.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        By the calls: the server refused the question, with the reason it gave.
    ServiceError, OverloadedError, UnauthenticatedError, ForbiddenError
        By the calls: see :func:`presage.serving.client.channel.raise_status`.
    """

    def __init__(
        self, target: str, *, timeout_s: float = 5.0, credentials: Credentials | None = None
    ) -> None:
        self._target, self._timeout_s = target, timeout_s
        shown = credentials or Credentials()
        self._metadata = shown.metadata_for(target)
        of_channel = shown.of_channel()
        self._channel = (
            grpc.insecure_channel(target, options=OPTIONS)
            if of_channel is None
            else grpc.secure_channel(target, of_channel, options=OPTIONS)
        )
        self._stub: Any = pb_grpc.PredictionServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def predict(
        self,
        placements: Sequence[Placement],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[JobForecast]:
        """One forecast per placement, in order; each job as if alone on its share.

        With ``levels`` every forecast has those quantiles besides.
        """
        return _all_of(self.predict_each(placements, coverage=coverage, levels=levels))

    def predict_each(
        self,
        placements: Sequence[Placement],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[JobForecast | PresageError]:
        """The same, with an error in the place of each placement that was refused."""
        asked = questions.predict(placements, coverage, levels)
        return [row for question in asked for row in self._ask(question)]

    def predict_interference(
        self,
        colocations: Sequence[Colocation],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[ColocationForecast]:
        """One forecast per co-location, in order; slowdowns in the order of its members."""
        asked = questions.predict_interference(colocations, coverage, levels)
        return _all_of(row for question in asked for row in self._ask(question))

    def predict_matrix(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """The same forecasts, of features computed here: the server then does least for each."""
        asked = questions.predict_matrix(placements, coverage)
        return [row for question in asked for row in self._ask(question)]

    def foretell(
        self, what: Any, kind: str, *, share: Share | None = None, **options: Any
    ) -> JobForecast:
        """One forecast of a job on a kind of device.

        ``what`` and the options are :func:`presage.serving.client.job_features.job_of`'s: a torch
        module with its inputs, a file, or features. For many at once, or often, make the placements
        once and ask :meth:`predict`.
        """
        placement = Placement(job_of(what, **options), self.device(kind), share or Share())
        return (self.predict([placement]))[0]

    def device(self, kind: str) -> Device:
        """Device of that kind, by any of its names, as the server knows it; ask once."""
        with _naming_kind(kind):
            (device,) = self._ask(questions.release([kind])).devices.values()
        return device

    def release(self) -> ReleaseInfo:
        """What the server serves."""
        return self._ask(questions.release())

    def report(self, outcomes: Sequence[Outcome]) -> Reported:
        """Tell what really happened; what was accepted is on the server's disk."""
        return self._ask(questions.report(outcomes))

    def report_rows(self, rows: Sequence[pb.Outcome]) -> Reported:
        """As :meth:`report`, of outcomes that were written before, as messages."""
        return self._ask(questions.report_rows(rows))

    def reload(self) -> ReleaseInfo:
        """Let the server look for a newer release now; raises RefusedReleaseError."""
        return self._ask(questions.reload())

    def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _ask(self, question: Question[Answer]) -> Answer:
        method = getattr(self._stub, question.method)
        try:
            response = method(question.request, timeout=self._timeout_s, metadata=self._metadata())
        except grpc.RpcError as error:
            why = why_unconnected(self._channel) if is_late(error) else ""
            raise_status(error, self._target, self._timeout_s, why)
        return _read(question, response, self._target)


class AsyncPresageClient:
    """The same for asyncio: each method of :class:`PresageClient`, to be awaited."""

    def __init__(
        self, target: str, *, timeout_s: float = 5.0, credentials: Credentials | None = None
    ) -> None:
        self._target, self._timeout_s = target, timeout_s
        shown = credentials or Credentials()
        self._metadata = shown.metadata_for(target)
        of_channel = shown.of_channel()
        self._channel = (
            grpc.aio.insecure_channel(target, options=OPTIONS)
            if of_channel is None
            else grpc.aio.secure_channel(target, of_channel, options=OPTIONS)
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
        return _all_of(await self.predict_each(placements, coverage=coverage, levels=levels))

    async def predict_each(
        self,
        placements: Sequence[Placement],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[JobForecast | PresageError]:
        """As :meth:`PresageClient.predict_each`."""
        asked = questions.predict(placements, coverage, levels)
        return [row for question in asked for row in await self._ask(question)]

    async def predict_interference(
        self,
        colocations: Sequence[Colocation],
        *,
        coverage: float = DEFAULT_COVERAGE,
        levels: Sequence[float] = (),
    ) -> list[ColocationForecast]:
        """As :meth:`PresageClient.predict_interference`."""
        asked = questions.predict_interference(colocations, coverage, levels)
        return _all_of([row for question in asked for row in await self._ask(question)])

    async def predict_matrix(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """As :meth:`PresageClient.predict_matrix`."""
        asked = questions.predict_matrix(placements, coverage)
        return [row for question in asked for row in await self._ask(question)]

    async def foretell(
        self, what: Any, kind: str, *, share: Share | None = None, **options: Any
    ) -> JobForecast:
        """As :meth:`PresageClient.foretell`."""
        placement = Placement(job_of(what, **options), await self.device(kind), share or Share())
        return (await self.predict([placement]))[0]

    async def device(self, kind: str) -> Device:
        """As :meth:`PresageClient.device`."""
        with _naming_kind(kind):
            (device,) = (await self._ask(questions.release([kind]))).devices.values()
        return device

    async def release(self) -> ReleaseInfo:
        """As :meth:`PresageClient.release`."""
        return await self._ask(questions.release())

    async def report(self, outcomes: Sequence[Outcome]) -> Reported:
        """As :meth:`PresageClient.report`."""
        return await self._ask(questions.report(outcomes))

    async def report_rows(self, rows: Sequence[pb.Outcome]) -> Reported:
        """As :meth:`PresageClient.report_rows`."""
        return await self._ask(questions.report_rows(rows))

    async def reload(self) -> ReleaseInfo:
        """As :meth:`PresageClient.reload`."""
        return await self._ask(questions.reload())

    async def close(self) -> None:
        """As :meth:`PresageClient.close`."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def _ask(self, question: Question[Answer]) -> Answer:
        method = getattr(self._stub, question.method)
        try:
            response = await method(
                question.request, timeout=self._timeout_s, metadata=self._metadata()
            )
        except grpc.RpcError as error:
            why = await why_unconnected_async(self._channel) if is_late(error) else ""
            raise_status(error, self._target, self._timeout_s, why)
        return _read(question, response, self._target)


@contextmanager
def _naming_kind(kind: str) -> Iterator[None]:
    """Name the kind that a server does not know; its own words repeat no text of a request."""
    try:
        yield
    except UnknownDeviceError as error:
        said = str(error).removeprefix("device_kinds[0].kind is not known")
        raise UnknownDeviceError(f"the server knows no device of kind {kind!r}{said}") from error


def _read(question: Question[Answer], response: Any, target: str) -> Answer:
    try:
        return question.read(response)
    except (ValueError, InvalidJobError, UnknownDeviceError) as error:
        raise ServiceError(
            f"{target} answered what cannot be ({error}); is it a Presage server of this version?"
        ) from error


def _all_of(rows: Iterable[Row | PresageError]) -> list[Row]:
    """The rows, unless one is an error: then the first one is raised."""
    good: list[Row] = []
    for row in rows:
        if isinstance(row, PresageError):
            raise row
        good.append(row)
    return good
