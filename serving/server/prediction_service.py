"""``presage.v1.PredictionService``: translation between bytes and the predictor's arrays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from presage.errors import (
    InvalidJobError,
    InvalidRequestError,
    PresageError,
    RefusedReleaseError,
    ReleaseError,
    ServiceError,
)
from presage.features.quantities.quantity_registry import STEP_TIME
from presage.serving.codec import (
    encode,
    wire_matrix,
    wire_outcomes,
    wire_requests,
    wire_scaling,
    wire_values,
)
from presage.serving.codec.wire_jobs import ReadJobs, read_serialized_jobs
from presage.serving.codec.wire_requests import ParsedRequest
from presage.serving.outcomes.outcome_log import Appended, OutcomeLog
from presage.serving.outcomes.outcome_scores import count_outcomes
from presage.serving.predictor.feature_rows import FeatureRows, compute_features, feature_rows
from presage.serving.predictor.quantiles import JobQuantiles
from presage.serving.predictor.served_release import Served
from presage.serving.server.call import Call, Calls, Method, status_of
from presage.serving.server.log import log
from presage.serving.server.response_cache import CachedResponse, ResponseCache
from presage.serving.server.work_queue import WorkQueue, is_small
from presage.serving.v1 import prediction_pb2 as pb

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["PredictionService"].full_name

Message = TypeVar("Message")
# Valid outcomes, their keys and bytes, and the errors of the others by position.
_Report = tuple[list[pb.Outcome], list[tuple[str, bytes]], dict[int, PresageError]]


class PredictionService:
    """Servicer of predictions and outcome reports; its methods map bytes to bytes.

    Parameters
    ----------
    outcomes : OutcomeLog, optional
        Log of outcomes; without it reports are rejected.
    reload : callable
        Checks for a newer release and serves it; raises an error if that is impossible.
    """

    def __init__(
        self,
        served: Served,
        calls: Calls,
        work: WorkQueue,
        outcomes: OutcomeLog | None,
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        self._served, self._calls, self._work = served, calls, work
        self._outcomes, self._reload = outcomes, reload
        self._predict_cache, self._interference_cache = ResponseCache(), ResponseCache()
        self._closing = asyncio.Event()
        self._scoring: set[asyncio.Task[None]] = set()

    def methods(self) -> Mapping[str, Method]:
        """Return the unary methods by name."""
        return {
            "Predict": Method("predict", self.predict),
            "PredictInterference": Method("predict", self.predict_interference),
            "PredictScaling": Method("predict", self.predict_scaling),
            "PredictMatrix": Method("predict", self.predict_matrix),
            "ReportOutcomes": Method("report", self.report_outcomes),
            "GetRelease": Method("predict", self.get_release),
            "Reload": Method("admin", self.reload),
        }

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handlers."""
        unary, stream = self._calls.unary, self._calls.stream
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {name: unary(name, *method) for name, method in self.methods().items()}
            | {"PredictStream": stream("PredictStream", "predict", self.predict_stream)},
        )

    def close(self) -> None:
        """End streams that wait for their next request."""
        self._closing.set()

    def predict(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        """Return solo forecasts of placements."""
        cached = self._predict_cache.find(request, self._served.predictor)
        if cached is not None:
            return self._repeat(cached, call)
        message, jobs = _parse_with_jobs(pb.PredictRequest, request)
        return self._predict(message, len(request), call, request, jobs)

    def predict_interference(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        """Return slowdowns and memory fit of co-locations."""
        cached = self._interference_cache.find(request, self._served.predictor)
        if cached is not None:
            return self._repeat(cached, call)
        message, jobs = _parse_with_jobs(pb.PredictInterferenceRequest, request)
        return self._predict_interference(message, len(request), call, request, jobs)

    def predict_scaling(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        """Return the forecasts of one job at several numbers of GPUs and nodes."""
        message = _parse(pb.PredictScalingRequest, request)
        predictor, rows = self._served.predictor, wire_scaling.count_scaling(message)
        self._calls.admit_rows(call, rows)

        def compute() -> bytes:
            parsed = wire_scaling.read_scaling(message, predictor)
            coverage = wire_scaling.read_coverage(message)
            answer = predictor.predict_scaling(parsed, coverage=coverage)
            inside = sum(one.step_time_s.in_domain for one in answer.forecasts)
            self._count_domain({STEP_TIME.forecast_field: (inside, rows - inside)})
            return wire_scaling.write_scaling_forecasts(answer).SerializeToString()

        return self._work.run(wire_scaling.scaling_work(message), len(request), call, compute)

    def predict_matrix(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        """Return solo forecasts of feature rows."""
        message = _parse(pb.PredictMatrixRequest, request)
        predictor = self._served.predictor
        rows = wire_matrix.count_rows(message, predictor.schema_hash)
        self._calls.admit_rows(call, rows)

        def compute() -> bytes:
            feature_matrix = wire_matrix.read_matrix(
                message, predictor.schema_hash, predictor.known_device
            )
            quantiles = predictor.solo_quantiles(feature_matrix)
            self._count_domain(_in_domain(quantiles))
            return encode.matrix_response(quantiles, predictor.levels, predictor.release_id)

        return self._work.run(rows, len(request), call, compute)

    async def predict_stream(
        self, requests: AsyncIterator[bytes], call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Yield one response per request, in order."""
        self._calls.metrics.streams.inc()
        try:
            while (request := await self._next(requests)) is not None:
                yield await self._stream_response(request, call)
        finally:
            self._calls.metrics.streams.dec()

    async def report_outcomes(self, request: bytes, call: Call) -> bytes:
        """Write outcomes to the log."""
        message = _parse(pb.ReportOutcomesRequest, request)
        if self._outcomes is None:
            raise ServiceError(
                "this server has no outcome log; start it with --outcomes FILE, or report to "
                "another server"
            )
        wire_outcomes.check_count(message)
        count, counted = len(message.outcomes), self._calls.metrics.outcomes
        self._calls.admit_rows(call, count)
        reading = self._work.run(count, len(request), call, lambda: self._read_report(message))
        good, rows, errors = reading if isinstance(reading, tuple) else await reading
        appended = Appended(0, 0)
        if good:
            call.check_deadline()
            appended = await asyncio.wrap_future(
                self._outcomes.append(rows, reported_by=call.caller.name)
            )
        positions = [i for i in range(count) if i not in errors]
        for i in appended.conflicting:
            errors[positions[i]] = InvalidJobError(
                f"outcomes[{positions[i]}].idempotency_key belongs to another outcome; use a "
                "unique key, for example with the name of the reporter as prefix"
            )
        counted.labels("accepted").inc(appended.accepted)
        counted.labels("duplicate").inc(appended.duplicates)
        counted.labels("rejected").inc(len(errors))
        if len(errors) == count:
            raise errors[min(errors)]
        self._score([good[i] for i in appended.new])
        return pb.ReportOutcomesResponse(
            accepted=appended.accepted,
            duplicates=appended.duplicates,
            rejected=[
                pb.ReportOutcomesResponse.Rejection(index=index, error=_error(error))
                for index, error in sorted(errors.items())
            ],
        ).SerializeToString()

    def _read_report(self, message: pb.ReportOutcomesRequest) -> _Report:
        good, errors = wire_outcomes.read_outcomes(message, self._served.predictor.known_device)
        # Deterministic, so that an outcome that is sent again has the same bytes.
        rows = [(row.idempotency_key, row.SerializeToString(deterministic=True)) for row in good]
        return good, rows, errors

    def get_release(self, request: bytes, _call: Call) -> bytes:
        """Return the served release."""
        message = _parse(pb.GetReleaseRequest, request)
        return self._release(wire_requests.read_device_kinds(message))

    async def reload(self, request: bytes, _call: Call) -> bytes:
        """Check for a newer release, serve it, and return the served release."""
        _parse(pb.ReloadRequest, request)
        try:
            await self._reload()
        except ReleaseError as error:
            raise RefusedReleaseError(str(error)) from error
        return self._release(())

    def _release(self, kinds: Any) -> bytes:
        predictor = self._served.predictor
        info = predictor.release()
        devices = (
            wire_requests.find_kinds(kinds, predictor)
            if kinds
            else [info.devices[kind] for kind in sorted(info.devices)]
        )
        response = wire_values.write_release(info, devices)
        if (refused := self._served.refused) is not None:
            response.rejected_release.reason = refused.reason
            response.rejected_release.rejected_at_unix_s = refused.at_unix_s
        return response.SerializeToString()

    def _predict(
        self, request: pb.PredictRequest, size_bytes: int, call: Call,
        content: bytes | None = None, jobs: ReadJobs | None = None,
    ) -> bytes | Awaitable[bytes]:  # fmt: skip
        """Answer a request; ``content`` is its serialized form if the response may be cached.

        ``jobs`` are its jobs if they were read before the message.
        """
        rows = wire_requests.count_predict(request, jobs)
        predictor = self._served.predictor  # one release for the whole response

        def forecast() -> CachedResponse:
            selected = predictor.select_quantiles(*wire_requests.read_quantile_selection(request))
            parsed, features = _valid_features(wire_requests.read_predict(request, predictor, jobs))
            quantiles = predictor.solo_quantiles(features)
            response = encode.predict_response(
                quantiles, selected, predictor.release_id, errors=_errors(parsed.errors)
            )
            return CachedResponse(response, rows, _in_domain(quantiles))

        store = None if content is None else partial(self._predict_cache.store, content, predictor)
        work = wire_requests.predict_work(request, rows, jobs)
        return self._respond(rows, work, size_bytes, call, forecast, store)

    def _predict_interference(
        self, request: pb.PredictInterferenceRequest, size_bytes: int, call: Call,
        content: bytes | None = None, jobs: ReadJobs | None = None,
    ) -> bytes | Awaitable[bytes]:  # fmt: skip
        rows = wire_requests.count_predict_interference(request, jobs)
        predictor = self._served.predictor

        def forecast() -> CachedResponse:
            selected = predictor.select_quantiles(*wire_requests.read_quantile_selection(request))
            parsed, features = _valid_features(
                wire_requests.read_predict_interference(request, predictor, jobs)
            )
            quantiles = predictor.colocation_quantiles(
                features, parsed.sizes, parsed.capacities_bytes()
            )
            response = encode.interference_response(
                quantiles, selected, predictor.release_id,
                colocations=parsed.rows, errors=_errors(parsed.errors),
            )  # fmt: skip
            return CachedResponse(response, rows, _in_domain({"slowdown": quantiles.slowdowns}))

        cache = self._interference_cache
        store = None if content is None else partial(cache.store, content, predictor)
        work = wire_requests.interference_work(request, rows, jobs)
        return self._respond(rows, work, size_bytes, call, forecast, store)

    def _respond(
        self,
        rows: int,
        work: int,
        size_bytes: int,
        call: Call,
        forecast: Callable[[], CachedResponse],
        store: Callable[[CachedResponse], None] | None,
    ) -> bytes | Awaitable[bytes]:  # fmt: skip
        """Compute a response in the work queue; store it in the cache if the request is small."""
        self._calls.admit_rows(call, rows)
        put = store if is_small(work, size_bytes) else None

        def compute() -> bytes:
            response = forecast()
            self._count_domain(response.in_domain)
            if put is not None:
                put(response)
            return response.content

        return self._work.run(work, size_bytes, call, compute)

    def _repeat(self, cached: CachedResponse, call: Call) -> bytes:
        """Return a cached response and count it like a computed one."""
        self._calls.admit_rows(call, cached.rows)
        self._count_domain(cached.in_domain)
        self._calls.metrics.repeated.inc()
        return cached.content

    async def _next(self, requests: AsyncIterator[bytes]) -> bytes | None:
        """Return the next request of a stream; None at its end.

        Raises
        ------
        ServiceError
            The server is shutting down; requests without a response can be sent to another one.
        """
        receiving = asyncio.ensure_future(anext(requests, None))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((receiving, closing), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result()
        finally:  # asyncio.wait cancels neither, even after the client has disconnected
            receiving.cancel()
            closing.cancel()
        raise ServiceError("this server is shutting down; use another replica, or retry later")

    async def _stream_response(self, request: bytes, call: Call) -> bytes:
        """Return one response of a stream; an error of the request is a response as well."""
        message = _parse(pb.PredictStreamRequest, request)
        body = message.WhichOneof("body")
        try:
            if body == "predict":
                response = self._predict(message.predict, len(request), call)
            elif body == "predict_interference":
                response = self._predict_interference(
                    message.predict_interference, len(request), call
                )
            else:
                raise InvalidRequestError(
                    "the request has no body; send predict or predict_interference"
                )
            content = response if isinstance(response, bytes) else await response
        except PresageError as error:
            body, content = "error", _error(error).SerializeToString()
        field = pb.PredictStreamResponse.DESCRIPTOR.fields_by_name[body].number
        return encode.stream_response(message.request_id, field, content)

    def _count_domain(self, in_domain: Mapping[str, tuple[int, int]]) -> None:
        for name, (inside, outside) in in_domain.items():
            self._calls.metrics.count_domain(name, inside, outside)

    def _score(self, outcomes: Sequence[pb.Outcome]) -> None:
        """Compare outcomes with forecasts in a thread; the call does not wait for it."""
        scoring = asyncio.to_thread(
            count_outcomes, outcomes, self._served.released, self._calls.metrics
        )
        task = asyncio.ensure_future(scoring)
        self._scoring.add(task)
        task.add_done_callback(self._finish_scoring)

    def _finish_scoring(self, task: asyncio.Task[None]) -> None:
        self._scoring.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log(logging.ERROR, "outcomes not compared with forecasts", reason=str(error))


def _parse(kind: type[Message], request: bytes) -> Message:
    message: Any = kind()
    try:
        message.ParseFromString(request)
    except DecodeError as error:
        raise InvalidRequestError(
            f"{len(request)} bytes are not a serialized {message.DESCRIPTOR.full_name}; use stubs "
            "generated from presage/serving/v1/prediction.proto"
        ) from error
    parsed: Message = message
    return parsed


def _parse_with_jobs(kind: type[Message], request: bytes) -> tuple[Message, ReadJobs | None]:
    """Return a message and, if the C extension could read them, its jobs apart from it."""
    found = read_serialized_jobs(request)
    if found is not None:
        rest, jobs = found
        try:
            return _parse(kind, rest), jobs
        except InvalidRequestError:
            pass  # the error names the size of the whole request
    return _parse(kind, request), None


def _valid_features(parsed: ParsedRequest) -> tuple[ParsedRequest, FeatureRows]:
    """Return the valid rows of a request and their features.

    Raises
    ------
    PresageError
        No row is valid; the error of the first row.
    """
    features, invalid = compute_features(parsed.table)
    if invalid:
        errors = {row: InvalidJobError(reason) for row, reason in invalid.items()}
        parsed, is_kept = parsed.without(errors)
        features = features[is_kept]
    if not len(features):
        raise parsed.errors[min(parsed.errors)]
    return parsed, feature_rows(parsed.table, features)


def _in_domain(quantiles: JobQuantiles) -> dict[str, tuple[int, int]]:
    """Return the numbers of forecasts in and out of domain per quantity."""
    return {
        name: (inside := int(np.count_nonzero(q.in_domain)), len(q.in_domain) - inside)
        for name, q in quantiles.items()
    }


def _errors(errors: Mapping[int, PresageError]) -> dict[int, pb.Error]:
    return {row: _error(error) for row, error in errors.items()}


def _error(error: PresageError) -> pb.Error:
    return pb.Error(grpc_status_code=status_of(error).value[0], message=str(error))
