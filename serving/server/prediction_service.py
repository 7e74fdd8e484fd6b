"""``presage.v1.PredictionService``: it translates between bytes and the predictor's arrays."""

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
from presage.serving.codec import encode, wire, wire_matrix, wire_outcomes, wire_requests
from presage.serving.codec.wire_requests import Asking
from presage.serving.outcomes.outcome_log import Appended, OutcomeLog
from presage.serving.outcomes.outcome_scores import count_outcomes
from presage.serving.predictor.feature_rows import FeatureRows, feature_rows, features_of
from presage.serving.predictor.quantiles import JobQuantiles
from presage.serving.predictor.served_release import Served
from presage.serving.server.call import Call, Calls, status_of
from presage.serving.server.log import log
from presage.serving.server.response_cache import Answer, Answers
from presage.serving.server.work_queue import Work, is_small
from presage.serving.v1 import prediction_pb2 as pb

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["PredictionService"].full_name

Message = TypeVar("Message")
# Outcomes that can be, their keys and bytes, and why others cannot be, by position.
_Report = tuple[list[pb.Outcome], list[tuple[str, bytes]], dict[int, PresageError]]


class PredictionService:
    """The methods, each of bytes to bytes.

    Parameters
    ----------
    outcomes : OutcomeLog, optional
        Without it reports are refused.
    reload : callable
        Looks for a newer release now; raises what keeps it from being served.
    """

    def __init__(
        self,
        served: Served,
        calls: Calls,
        work: Work,
        outcomes: OutcomeLog | None,
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        self._served, self._calls, self._work = served, calls, work
        self._outcomes, self._reload = outcomes, reload
        self._answers, self._answers_together = Answers(), Answers()
        self._closing = asyncio.Event()
        self._scoring: set[asyncio.Task[None]] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to answer."""
        unary, stream = self._calls.unary, self._calls.stream
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Predict": unary("Predict", "predict", self.predict),
                "PredictInterference": unary(
                    "PredictInterference", "predict", self.predict_interference
                ),
                "PredictMatrix": unary("PredictMatrix", "predict", self.predict_matrix),
                "PredictStream": stream("PredictStream", "predict", self.predict_stream),
                "ReportOutcomes": unary("ReportOutcomes", "report", self.report_outcomes),
                "GetRelease": unary("GetRelease", "predict", self.get_release),
                "Reload": unary("Reload", "admin", self.reload),
            },
        )

    def close(self) -> None:
        """End streams that wait for their next question."""
        self._closing.set()

    def predict(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        """Solo forecasts of placements."""
        known = self._answers.find(request, self._served.predictor)
        if known is not None:
            return self._again(known, call)
        message = _parsed(pb.PredictRequest, request)
        return self._predict(message, len(request), call, request)

    def predict_interference(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        """Slowdowns and fit of co-locations."""
        known = self._answers_together.find(request, self._served.predictor)
        if known is not None:
            return self._again(known, call)
        message = _parsed(pb.PredictInterferenceRequest, request)
        return self._predict_interference(message, len(request), call, request)

    def predict_matrix(self, request: bytes, call: Call) -> bytes | Awaitable[bytes]:
        """Solo forecasts of rows of features."""
        message = _parsed(pb.PredictMatrixRequest, request)
        predictor = self._served.predictor
        rows = wire_matrix.count_rows(message, predictor.schema_hash)
        self._calls.admit_rows(call, rows)

        def answer() -> bytes:
            rows_read = wire_matrix.read_matrix(
                message, predictor.schema_hash, predictor.known_device
            )
            answered = predictor.solo(rows_read)
            self._count_domain(_in_domain(answered))
            return encode.matrix_response(answered, predictor.levels, predictor.release_id)

        return self._work.run(rows, len(request), call, answer)

    async def predict_stream(
        self, requests: AsyncIterator[bytes], call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Answers to questions, one by one in their order."""
        self._calls.metrics.streams.inc()
        try:
            while (request := await self._next(requests)) is not None:
                yield await self._answer(request, call)
        finally:
            self._calls.metrics.streams.dec()

    async def report_outcomes(self, request: bytes, call: Call) -> bytes:
        """Put outcomes on disk."""
        message = _parsed(pb.ReportOutcomesRequest, request)
        if self._outcomes is None:
            raise ServiceError(
                "this server keeps no outcomes; start it with --outcomes FILE, or report to one "
                "that does"
            )
        wire_outcomes.check_count(message)
        count, counted = len(message.outcomes), self._calls.metrics.outcomes
        self._calls.admit_rows(call, count)
        reading = self._work.run(count, len(request), call, lambda: self._read_report(message))
        good, rows, errors = reading if isinstance(reading, tuple) else await reading
        appended = Appended(0, 0)
        if good:
            call.check_time()
            appended = await asyncio.wrap_future(
                self._outcomes.append(rows, reported_by=call.caller.name)
            )
        positions = [i for i in range(count) if i not in errors]
        for i in appended.conflicting:
            errors[positions[i]] = InvalidJobError(
                f"outcomes[{positions[i]}].idempotency_key stands for another outcome; give each "
                "report a name that no other reporter uses, such as one that begins with yours"
            )
        counted.labels("accepted").inc(appended.accepted)
        counted.labels("duplicate").inc(appended.duplicates)
        counted.labels("refused").inc(len(errors))
        if len(errors) == count:
            raise errors[min(errors)]
        self._score([good[i] for i in appended.new])
        return pb.ReportOutcomesResponse(
            accepted=appended.accepted,
            duplicates=appended.duplicates,
            refused=[
                pb.ReportOutcomesResponse.Refusal(index=index, error=_error(error))
                for index, error in sorted(errors.items())
            ],
        ).SerializeToString()

    def _read_report(self, message: pb.ReportOutcomesRequest) -> _Report:
        good, errors = wire_outcomes.read_outcomes(message, self._served.predictor.known_device)
        # In one order, so that what is sent again is the same bytes.
        rows = [(row.idempotency_key, row.SerializeToString(deterministic=True)) for row in good]
        return good, rows, errors

    def get_release(self, request: bytes, _call: Call) -> bytes:
        """What is being served."""
        message = _parsed(pb.GetReleaseRequest, request)
        return self._release(wire_requests.read_device_kinds(message))

    async def reload(self, request: bytes, _call: Call) -> bytes:
        """Serve what is to be served now."""
        _parsed(pb.ReloadRequest, request)
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
        response = wire.write_release(info, devices)
        if (refused := self._served.refused) is not None:
            response.refused.reason = refused.reason
            response.refused.refused_at_unix_s = refused.at_unix_s
        return response.SerializeToString()

    def _predict(
        self, request: pb.PredictRequest, size_bytes: int, call: Call, content: bytes | None = None
    ) -> bytes | Awaitable[bytes]:
        """``content`` is what the request was read from, if from nothing else's."""
        rows = wire_requests.count_predict(request)
        predictor = self._served.predictor  # all of the answer is this one's

        def forecast() -> Answer:
            asked = predictor.asked(*wire_requests.read_asked(request))
            asking, features = _features(wire_requests.read_predict(request, predictor))
            answered = predictor.solo(features)
            response = encode.predict_response(
                answered, asked, predictor.release_id, errors=_errors(asking.errors)
            )
            return Answer(response, rows, _in_domain(answered))

        keep = None if content is None else partial(self._answers.keep, content, predictor)
        work = wire_requests.predict_work(request, rows)
        return self._answered(rows, work, size_bytes, call, forecast, keep)

    def _predict_interference(
        self, request: pb.PredictInterferenceRequest, size_bytes: int, call: Call,
        content: bytes | None = None,
    ) -> bytes | Awaitable[bytes]:  # fmt: skip
        rows = wire_requests.count_predict_interference(request)
        predictor = self._served.predictor

        def forecast() -> Answer:
            asked = predictor.asked(*wire_requests.read_asked(request))
            asking, features = _features(
                wire_requests.read_predict_interference(request, predictor)
            )
            answered = predictor.together(features, asking.sizes, asking.capacities_bytes())
            response = encode.interference_response(
                answered, asked, predictor.release_id,
                colocations=asking.rows, errors=_errors(asking.errors),
            )  # fmt: skip
            return Answer(response, rows, _in_domain({"slowdown": answered.slowdowns}))

        known = self._answers_together
        keep = None if content is None else partial(known.keep, content, predictor)
        work = wire_requests.interference_work(request, rows)
        return self._answered(rows, work, size_bytes, call, forecast, keep)

    def _answered(
        self, rows: int, work: int, size_bytes: int, call: Call, forecast: Callable[[], Answer],
        keep: Callable[[Answer], None] | None,
    ) -> bytes | Awaitable[bytes]:  # fmt: skip
        """The answer, when its turn comes; a small one may be kept."""
        self._calls.admit_rows(call, rows)
        kept = keep if is_small(work, size_bytes) else None

        def answer() -> bytes:
            found = forecast()
            self._count_domain(found.in_domain)
            if kept is not None:
                kept(found)
            return found.content

        return self._work.run(work, size_bytes, call, answer)

    def _again(self, known: Answer, call: Call) -> bytes:
        """What was answered before; it is counted as if for the first time."""
        self._calls.admit_rows(call, known.rows)
        self._count_domain(known.in_domain)
        self._calls.metrics.repeated.inc()
        return known.content

    async def _next(self, requests: AsyncIterator[bytes]) -> bytes | None:
        """The stream's next question; None at its end.

        Raises
        ------
        ServiceError
            The server stops: what was not answered may be asked of another.
        """
        asking = asyncio.ensure_future(anext(requests, None))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((asking, closing), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:  # waiting cancels neither, not even when the client has left
            asking.cancel()
            closing.cancel()
        raise ServiceError("this server is being stopped; go on with another, or in a moment")

    async def _answer(self, request: bytes, call: Call) -> bytes:
        """One answer on a stream; what a unary call would have ended with is an answer, too."""
        message = _parsed(pb.PredictStreamRequest, request)
        body = message.WhichOneof("body")
        try:
            if body == "predict":
                answer = self._predict(message.predict, len(request), call)
            elif body == "predict_interference":
                answer = self._predict_interference(
                    message.predict_interference, len(request), call
                )
            else:
                raise InvalidRequestError(
                    "the question has no body; send predict or predict_interference"
                )
            content = answer if isinstance(answer, bytes) else await answer
        except PresageError as error:
            body, content = "error", _error(error).SerializeToString()
        field = pb.PredictStreamResponse.DESCRIPTOR.fields_by_name[body].number
        return encode.stream_response(message.request_id, field, content)

    def _count_domain(self, in_domain: Mapping[str, tuple[int, int]]) -> None:
        for name, (inside, outside) in in_domain.items():
            self._calls.metrics.count_domain(name, inside, outside)

    def _score(self, outcomes: Sequence[pb.Outcome]) -> None:
        """Compare with forecasts, beside the calls: nobody waits for it."""
        doing = asyncio.to_thread(
            count_outcomes, outcomes, self._served.predictor, self._calls.metrics
        )
        task = asyncio.ensure_future(doing)
        self._scoring.add(task)
        task.add_done_callback(self._scored)

    def _scored(self, task: asyncio.Task[None]) -> None:
        self._scoring.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log(logging.ERROR, "outcomes not compared with forecasts", reason=str(error))


def _parsed(kind: type[Message], request: bytes) -> Message:
    message: Any = kind()
    try:
        message.ParseFromString(request)
    except DecodeError as error:
        raise InvalidRequestError(
            f"{len(request)} bytes are no {message.DESCRIPTOR.full_name}; send what stubs of "
            "presage/serving/v1/prediction.proto write"
        ) from error
    parsed: Message = message
    return parsed


def _features(asking: Asking) -> tuple[Asking, FeatureRows]:
    """What can be answered of a request, and its features.

    Raises
    ------
    PresageError
        Nothing can: the first row's error.
    """
    features, beyond = features_of(asking.table)
    if beyond:
        asking, kept = asking.without({row: InvalidJobError(what) for row, what in beyond.items()})
        features = features[kept]
    if not len(features):
        raise asking.errors[min(asking.errors)]
    return asking, feature_rows(asking.table, features)


def _in_domain(answered: JobQuantiles) -> dict[str, tuple[int, int]]:
    """Of each quantity, forecasts that the release vouches for, and others."""
    return {
        name: (inside := int(np.count_nonzero(q.in_domain)), len(q.in_domain) - inside)
        for name, q in answered.items()
    }


def _errors(errors: Mapping[int, PresageError]) -> dict[int, pb.Error]:
    return {row: _error(error) for row, error in errors.items()}


def _error(error: PresageError) -> pb.Error:
    return pb.Error(grpc_status_code=status_of(error).value[0], message=str(error))
