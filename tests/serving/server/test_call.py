"""Calls over a real gRPC server: authentication, statuses, metrics and logs."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import inspect
import io
import json
import logging
import re
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from presage import errors
from presage.errors import (
    ExpiredError,
    InvalidJobError,
    OverloadedError,
    PresageError,
    ReleaseError,
)
from presage.serving.admission.limits import RateLimit
from presage.serving.authentication.callers import ROLES, Caller, Tokens
from presage.serving.authentication.token_file import new_token, read_tokens
from presage.serving.server.access_log import AccessLog, EndedCall
from presage.serving.server.call import RETRY_AFTER, STATUS, Call, Calls, status_of
from presage.serving.server.log import LOGGER, log_as_json
from presage.serving.server.prometheus_metrics import Metrics
from tests.serving.support.aio_server import answering, ended
from tests.support.waiting import async_wait_until, wait_until

Code = grpc.StatusCode
OURS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PresageError) and kind is not PresageError
]


class Service:
    """Methods of a server, with their received requests."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.asked: list[Call] = []

    def echo(self, request: bytes, call: Call) -> bytes:
        self.asked.append(call)
        self.calls.admit_rows(call, 3)
        return request

    async def later(self, request: bytes, call: Call) -> bytes:
        await asyncio.sleep(0)
        return self.echo(request, call)

    async def each(self, requests: AsyncIterator[bytes], call: Call):
        async for request in requests:
            yield self.echo(request, call)


@asynccontextmanager
async def serving(calls: Calls, role: str | None = "predict", **more):
    """Yield the service, and a function that calls one of its methods."""
    service = Service(calls)
    handlers = {
        "Echo": calls.unary("Echo", role, service.echo),
        "Later": calls.unary("Later", role, service.later),
        "Each": calls.stream("Each", role or "predict", service.each),
    } | {
        name: calls.stream(name, role or "predict", method)
        if inspect.isasyncgenfunction(method)
        else calls.unary(name, role, method)
        for name, method in more.items()
    }
    handler = grpc.method_handlers_generic_handler("test.Service", handlers)
    async with answering(handler) as channel:

        def ask(method: str, *arguments, **options):
            is_stream = handlers[method].response_streaming
            kind = channel.stream_stream if is_stream else channel.unary_unary
            return kind(f"/test.Service/{method}")(*arguments, **options)

        yield service, ask


def count(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"presage_{name}", labels) or 0.0


def calls_with(**options) -> Calls:
    """Return calls; without tokens, every client may make them."""
    if "tokens" not in options:
        options.setdefault("anonymous_roles", frozenset(ROLES))
    return Calls(Metrics(), **options)


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


class CountingLog(AccessLog):
    """Access log that counts the calls that it has to write."""

    recorded = 0

    def record(self, call: EndedCall) -> None:
        self.recorded += 1
        super().record(call)


class Logged:
    """Log lines as they are written, with those of ``access_log`` if it is given."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.access_log = CountingLog(self.stream.write)

    def __call__(self) -> list[dict[str, Any]]:
        """Return the lines so far."""
        self.access_log.flush()
        wait_until(
            lambda: self.stream.getvalue().count('"event": "call"') == self.access_log.recorded
        )
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def calls_of(logged) -> list[dict[str, Any]]:
    """Return the lines of the access log."""
    return [line for line in logged() if line["event"] == "call"]


@pytest.fixture
def logged():
    logger = logging.getLogger(LOGGER)
    before = logger.handlers, logger.propagate, logger.level
    found = Logged()
    log_as_json(found.stream)
    yield found
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.fixture
def tokens(tmp_path):
    """Tokens by name; each name has the role of the same name."""
    made = {name: new_token(name, [name]) for name in ("predict", "report", "admin")}
    (tmp_path / "tokens").write_text("\n".join(line for _, line in made.values()))
    return read_tokens(tmp_path / "tokens"), {name: token for name, (token, _) in made.items()}


# Statuses --------------------------------------------------------------------------------------


def test_every_error_of_ours_has_a_status():
    assert set(STATUS) == set(OURS)
    assert not {Code.OK, Code.UNKNOWN, Code.CANCELLED} & set(STATUS.values())


def test_an_unexpected_error_is_internal():
    class NewError(InvalidJobError):
        pass

    assert status_of(NewError("")) is Code.INTERNAL
    assert status_of(PresageError("")) is Code.INTERNAL


@pytest.mark.parametrize("kind", OURS)
def test_an_error_of_ours_ends_a_call_with_its_status_and_message(kind):
    async def later(_request, _call):
        await asyncio.sleep(0)
        raise kind("jobs[3].name='\u00e4', must be\nshorter; 100% sure")

    def at_once(_request, _call):
        raise kind("")

    async def main():
        calls = calls_with()
        async with serving(calls, Raises=later, RaisesAtOnce=at_once) as (_, ask):
            assert await ended(ask("Raises", b"")) == (
                STATUS[kind],
                "jobs[3].name='\u00e4', must be\nshorter; 100% sure",
            )
            assert await ended(ask("RaisesAtOnce", b"")) == (STATUS[kind], "")
        labels = {"method": "Raises", "code": STATUS[kind].name}
        assert count(calls.metrics, "requests_total", **labels) == 1

    asyncio.run(main())


@pytest.mark.parametrize("letter", ["x", "\u00e4", "\U0001f680", "\ud800", "%"])
@pytest.mark.parametrize("length", [2000, 100_000])
def test_the_length_of_a_message_does_not_change_the_status(letter, length):
    def refused(_request, _call):
        raise InvalidJobError(letter * length)

    async def main():
        async with serving(calls_with(), Ask=refused) as (_, ask):
            code, said = await ended(ask("Ask", b""))
        assert code is Code.INVALID_ARGUMENT
        assert len(said) >= 512
        assert set(said) == {letter if letter != "\ud800" else "?"}

    asyncio.run(main())


def test_responses_are_counted_with_their_rows():
    async def main():
        calls = calls_with()
        async with serving(calls) as (_, ask):
            assert await ask("Echo", b"\0question") == b"\0question"
            assert await ask("Later", b"") == b""
            assert await ask("Later", b"x" * 100_000) == b"x" * 100_000
        metrics = calls.metrics
        assert count(metrics, "requests_total", method="Echo", code="OK") == 1
        assert count(metrics, "requests_total", method="Later", code="OK") == 2
        assert count(metrics, "request_rows_sum", method="Later") == 6
        assert 0 < count(metrics, "request_seconds_sum", method="Later") < 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("retry_after_s", "hint"),
    [(None, None), (0.0, "1"), (1e-9, "1"), (0.0201, "21"), (2.0, "2000"), (86_400.0, "86400000")],
)
def test_an_overloaded_server_sends_a_retry_delay(retry_after_s, hint):
    def overloaded(_request, _call):
        raise OverloadedError("too much", retry_after_s=retry_after_s)

    async def main():
        calls = calls_with()
        async with serving(calls, Ask=overloaded) as (_, ask):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask("Ask", b"")
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED
        assert dict(caught.value.trailing_metadata()).get(RETRY_AFTER) == hint
        assert count(calls.metrics, "rejections_total", reason="overloaded") == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", [InvalidJobError, ReleaseError])
def test_the_request_of_a_rejected_call_is_freed(kind):
    def read(copy: bytearray) -> None:
        try:
            raise DecodeError(len(copy))
        except DecodeError as error:
            raise kind("no message") from error

    async def refused(request, _call):
        await asyncio.sleep(0)
        read(bytearray(request))

    async def main():
        async with serving(calls_with(), Ask=refused) as (_, ask):
            await ended(ask("Ask", b""))
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(20):
                await ended(ask("Ask", bytes(2**20)))
            return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    gc.disable()  # which may come by much later
    try:
        assert asyncio.run(main()) < 5 * 2**20
    finally:
        gc.enable()
        tracemalloc.stop()


# Defects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["AtOnce", "Later", "Stream"])
def test_details_of_a_defect_are_only_in_the_log(logged, method):
    def at_once(_request, _call):
        raise ZeroDivisionError("s3cret of the server")

    async def later(request, call):
        await asyncio.sleep(0)
        at_once(request, call)

    async def stream(requests, call):
        async for request in requests:
            yield request
            at_once(request, call)

    async def main():
        calls = calls_with()
        async with serving(calls, AtOnce=at_once, Later=later, Stream=stream) as (_, ask):
            options = {"metadata": [("x-request-id", "r-1")]}
            if method == "Stream":
                call = ask("Stream", iter([b"a", b"b"]), **options)
                assert await call.read() == b"a"
                code, details = await ended(call.read())
            else:
                code, details = await ended(ask(method, b"", **options))
        assert code is Code.INTERNAL
        assert details == "internal error of the server; see request r-1 in its log"
        # A client may know of the end before the server has counted it.
        ended_so = partial(count, calls.metrics, "requests_total", method=method, code="INTERNAL")
        await async_wait_until(ended_so)

    asyncio.run(main())
    (line,) = logged()
    assert (line["level"], line["event"], line["method"]) == ("error", "defect", method)
    assert line["request_id"] == "r-1"
    assert "ZeroDivisionError: s3cret of the server" in line["traceback"]


def test_a_server_error_with_a_message_is_logged(logged):
    def damaged(_request, _call):
        raise ReleaseError("memory.onnx: sha256 is another")

    async def main():
        async with serving(calls_with(), Ask=damaged) as (_, ask):
            await ended(ask("Ask", b"", metadata=[("x-request-id", "r-1")]))

    asyncio.run(main())
    (line,) = logged()
    assert line["event"] == "failed"
    assert line["error"] == "memory.onnx: sha256 is another"
    assert line["request_id"] == "r-1"


def test_client_errors_are_not_logged(logged):
    def refused(_request, _call):
        raise InvalidJobError("jobs[0].batch_size=0")

    async def main():
        async with serving(calls_with(), Ask=refused) as (_, ask):
            await ended(ask("Ask", b""))

    asyncio.run(main())
    assert logged() == []


# Access log, request ids -----------------------------------------------------------------------


def test_the_access_log_has_a_line_for_every_call(logged, tokens):
    known, token = tokens

    async def main():
        calls = calls_with(tokens=lambda: known, access_log=logged.access_log)
        async with serving(calls) as (_, ask):
            mine = [*bearer(token["predict"]), ("x-request-id", "r-1")]
            await ask("Echo", b"12345", metadata=mine)
            await ended(ask("Echo", b"", metadata=bearer(token["report"])))
            await ended(ask("Later", b"", metadata=[("x-request-id", "r-3")]))

    asyncio.run(main())
    first, second, third = calls_of(logged)
    assert first.pop("time")
    assert 0 < first.pop("ms") < 5000
    assert first == {
        "level": "info", "event": "call", "method": "Echo", "code": "OK", "rows": 3,
        "request_bytes": 5, "client": "predict", "request_id": "r-1",
    }  # fmt: skip
    # A rejected client is named too, if it is known.
    assert (second["code"], second["client"], second["rows"]) == ("PERMISSION_DENIED", "report", 0)
    assert (third["code"], third["client"]) == ("UNAUTHENTICATED", "127.0.0.1")
    assert third["request_id"] == "r-3"


@pytest.mark.parametrize(
    "sent", ["", "a b", 'x"}', "a" * 65, "\u00e4".encode().hex() + "/", "../etc"]
)
def test_an_invalid_request_id_is_replaced(logged, sent):
    async def main():
        async with serving(calls_with(access_log=logged.access_log)) as (service, ask):
            await ask("Echo", b"", metadata=[("x-request-id", sent)])
            return service.asked[0].request_id

    made = asyncio.run(main())
    assert re.fullmatch("[0-9a-f]{16}", made)
    assert logged()[0]["request_id"] == made


def test_calls_without_an_id_get_different_ones():
    async def main():
        async with serving(calls_with()) as (service, ask):
            for _ in range(20):
                await ask("Echo", b"")
            assert len({call.request_id for call in service.asked}) == 20
            await ask("Echo", b"", metadata=[("x-request-id", "A.b_c-9" + "9" * 57)])
            assert service.asked[-1].request_id == "A.b_c-9" + "9" * 57

    asyncio.run(main())


# Clients ---------------------------------------------------------------------------------------


def test_a_client_needs_a_token_with_the_role_of_the_method(tokens):
    known, token = tokens

    async def main():
        calls = calls_with(tokens=lambda: known)
        async with serving(calls, role="report") as (service, ask):
            for method in ("Echo", "Later"):
                code, said = await ended(ask(method, b""))
                assert (code, "authorization: Bearer" in said) == (Code.UNAUTHENTICATED, True)
                code, said = await ended(ask(method, b"", metadata=bearer("wr0ng")))
                assert (code, "wr0ng" in said) == (Code.UNAUTHENTICATED, False)
                code, said = await ended(ask(method, b"", metadata=bearer(token["predict"])))
                assert code is Code.PERMISSION_DENIED
                assert said.startswith("'predict' lacks the role 'report' that this call requires")
            assert not service.asked
            assert await ask("Echo", b"x", metadata=bearer(token["report"])) == b"x"
            assert service.asked[0].caller == Caller("report", frozenset({"report"}))
        assert count(calls.metrics, "rejections_total", reason="unauthenticated") == 4
        assert count(calls.metrics, "rejections_total", reason="forbidden") == 2

    asyncio.run(main())


def test_a_stream_needs_a_token_too(tokens):
    known, token = tokens

    async def main():
        async with serving(calls_with(tokens=lambda: known)) as (service, ask):
            for metadata, expected in [
                ([], Code.UNAUTHENTICATED),
                (bearer(token["admin"]), Code.PERMISSION_DENIED),
            ]:
                code, _ = await ended(ask("Each", iter([b"a"]), metadata=metadata).read())
                assert code is expected
            assert not service.asked
            call = ask("Each", iter([b"a"]), metadata=bearer(token["predict"]))
            assert [answer async for answer in call] == [b"a"]

    asyncio.run(main())


def test_a_revoked_token_is_rejected(tokens):
    known, token = tokens
    current = [known]

    async def main():
        async with serving(calls_with(tokens=lambda: current[0])) as (_, ask):
            await ask("Echo", b"", metadata=bearer(token["predict"]))
            current[0] = Tokens({})
            code, _ = await ended(ask("Echo", b"", metadata=bearer(token["predict"])))
            assert code is Code.UNAUTHENTICATED

    asyncio.run(main())


def test_methods_without_a_role_are_open_to_all(tokens):
    known, _ = tokens

    async def main():
        async with serving(calls_with(tokens=lambda: known), role=None) as (service, ask):
            assert await ask("Echo", b"x") == b"x"
            assert await ask("Echo", b"x", metadata=bearer("wr0ng")) == b"x"
            assert service.asked[0].caller.name == "127.0.0.1"

    asyncio.run(main())


def test_no_log_contains_a_token(logged, tokens, caplog):
    known, token = tokens
    caplog.set_level(logging.DEBUG)
    logging.getLogger(LOGGER).propagate = True

    def defect(_request, _call):
        raise ValueError("anything")

    async def main():
        calls = calls_with(tokens=lambda: known, access_log=logged.access_log)
        async with serving(calls, Defect=defect) as (_, ask):
            await ask("Echo", b"", metadata=bearer(token["predict"]))
            for sent in (token["predict"], token["report"], "wr0ng-wr0ng"):
                await ended(ask("Defect", b"", metadata=bearer(sent)))

    asyncio.run(main())
    written = json.dumps(logged()) + caplog.text
    assert len(logged()) == 6  # four calls, one defect, one failed authentication
    assert not [sent for sent in (*token.values(), "wr0ng-wr0ng") if sent in written]


@pytest.mark.parametrize(
    ("listened", "dialled", "name"),
    [
        ("127.0.0.1:0", "127.0.0.1:{port}", "127.0.0.1"),
        ("[::1]:0", "[::1]:{port}", "[::1]"),
        ("unix:{folder}/socket", "unix:{folder}/socket", "unix:"),
    ],
)
def test_a_client_without_a_token_is_named_by_its_host(tmp_path, listened, dialled, name):
    async def main():
        calls = calls_with()
        service = Service(calls)
        server = grpc.aio.server()
        handlers = {"Echo": calls.unary("Echo", "admin", service.echo)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Service", handlers),)
        )
        port = server.add_insecure_port(listened.format(folder=tmp_path))
        await server.start()
        async with grpc.aio.insecure_channel(dialled.format(folder=tmp_path, port=port)) as channel:
            echo: Any = channel.unary_unary("/test.Service/Echo")
            await echo(b"", timeout=5)
        await server.stop(0)
        return service.asked[0].caller

    caller = asyncio.run(main())
    assert caller.name == name
    caller.require_role("admin")


def test_rows_are_counted_by_client(tokens):
    known, token = tokens
    named = bearer(token["predict"])

    async def main():
        calls = calls_with(tokens=lambda: known, rate=RateLimit(3, clock=lambda: 0.0))
        async with serving(calls) as (_, ask):
            await ask("Echo", b"", metadata=named)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask("Echo", b"", metadata=named)
            assert caught.value.code() is Code.RESOURCE_EXHAUSTED
            assert dict(caught.value.trailing_metadata())[RETRY_AFTER] == "334"

        async with serving(calls, role="report") as (_, ask):
            await ask("Echo", b"", metadata=bearer(token["report"]))

    asyncio.run(main())


# Deadlines, cancellations ----------------------------------------------------------------------


def test_a_call_has_its_deadline():
    async def main():
        async with serving(calls_with()) as (service, ask):
            await ask("Echo", b"")
            await ask("Echo", b"", timeout=20)
        forever, soon = service.asked
        assert forever.deadline_s == float("inf")
        forever.check_deadline()
        assert 0 < soon.deadline_s - time.monotonic() < 25  # gRPC rounds it up
        soon.deadline_s = time.monotonic()
        with pytest.raises(ExpiredError, match="the deadline passed"):
            soon.check_deadline()

    asyncio.run(main())


def test_a_call_whose_deadline_has_passed_is_not_run(logged):
    def block(request, _call):
        time.sleep(0.4)  # as a server does that has too much to do
        return request

    async def main():
        calls = calls_with(access_log=logged.access_log)
        async with serving(calls, Block=block) as (service, ask):
            await ask("Echo", b"")  # connected
            blocking = ask("Block", b"")
            late = [ask("Echo", b"", timeout=0.1) for _ in range(5)]
            assert [(await ended(call))[0] for call in late] == [Code.DEADLINE_EXCEEDED] * 5
            await blocking
            assert len(service.asked) == 1

    asyncio.run(main())
    assert {line["code"] for line in logged()} <= {"OK", "DEADLINE_EXCEEDED"}


@pytest.mark.parametrize("how", ["deadline", "cancel"])
@pytest.mark.parametrize("method", ["Unary", "Stream"])
def test_a_call_without_a_waiting_client_is_ended(logged, how, method):
    begins, ends = [], []

    async def unary(_request, _call):
        begins.append("unary")
        try:
            await asyncio.sleep(60)
        finally:
            ends.append("unary")

    async def stream(_requests, _call):
        try:
            yield b"first"
            begins.append("stream")
            await asyncio.sleep(60)
        finally:
            ends.append("stream")

    async def main():
        calls = calls_with(access_log=logged.access_log)
        async with serving(calls, Unary=unary, Stream=stream) as (_, ask):
            argument = b"" if method == "Unary" else iter([b""])
            call = ask(method, argument, timeout=0.3 if how == "deadline" else None)
            if method == "Stream":
                assert await call.read() == b"first"
            if how == "cancel":
                await async_wait_until(lambda: begins)
                call.cancel()
            await async_wait_until(logged)
            assert ends == [method.lower()]
            # Client and server race to detect the deadline: the client cancels then.
            codes = ["CANCELLED"] + (["DEADLINE_EXCEEDED"] if how == "deadline" else [])
            counts = [
                count(calls.metrics, "requests_total", method=method, code=code) for code in codes
            ]
            assert sum(counts) == 1

    asyncio.run(main())
    assert [line["event"] for line in logged()] == ["call"]


# Streams ---------------------------------------------------------------------------------------


def test_responses_of_a_stream_keep_the_order_of_its_requests():
    async def main():
        calls = calls_with()
        async with serving(calls) as (_, ask):
            asked = [str(i).encode() for i in range(200)]
            assert [answer async for answer in ask("Each", iter(asked))] == asked
            assert [answer async for answer in ask("Each", iter([]))] == []
        assert count(calls.metrics, "requests_total", method="Each", code="OK") == 2
        assert count(calls.metrics, "request_rows_sum", method="Each") == 600

    asyncio.run(main())


def test_a_stream_that_fails_midway_has_sent_the_earlier_responses():
    async def refused(requests, _call):
        async for request in requests:
            if request == b"bad":
                raise OverloadedError("too much", retry_after_s=1)
            yield request

    async def main():
        async with serving(calls_with(), Refused=refused) as (_, ask):
            call = ask("Refused", iter([b"a", b"b", b"bad", b"c"]))
            assert [await call.read(), await call.read()] == [b"a", b"b"]
            assert (await ended(call.read())) == (Code.RESOURCE_EXHAUSTED, "too much")
            assert dict(await call.trailing_metadata())[RETRY_AFTER] == "1000"

    asyncio.run(main())


@pytest.mark.parametrize("answers", ["read", "not read"])
def test_a_client_that_disconnects_during_a_response_is_no_defect(logged, answers):
    sent, ends, reads = [], [], 20 if answers == "read" else 1

    async def endless(_requests, _call):
        try:
            while True:
                sent.append(1)
                yield b"x" * 10_000
        finally:
            ends.append(1)

    async def main():
        calls = calls_with(access_log=logged.access_log)
        async with serving(calls, Endless=endless) as (_, ask):
            call = ask("Endless", iter([b""]))
            for _ in range(reads):
                await call.read()
            await async_wait_until(lambda: len(sent) > reads)
            call.cancel()
            await async_wait_until(lambda: ends and logged())

    asyncio.run(main())
    assert [(line["event"], line["code"]) for line in logged()] == [("call", "CANCELLED")]


def test_a_stream_ends_when_its_token_is_revoked(tokens):
    known, token = tokens
    let_in = [known]

    async def main():
        calls = calls_with(tokens=lambda: let_in[-1])
        async with serving(calls) as (_, ask):
            call = ask("Each", metadata=bearer(token["predict"]))
            await call.write(b"a")
            assert await call.read() == b"a"
            let_in.append(Tokens({}))
            await call.write(b"b")
            code, _details = await ended(call.read())
            assert code is Code.UNAUTHENTICATED

    asyncio.run(main())


def test_a_stream_ends_when_its_token_expires_although_the_tokens_are_the_same(tokens):
    _known, token = tokens
    digest, now_s = hashlib.sha256(token["predict"].encode()).hexdigest(), [5.0]
    caller = Caller("a", frozenset({"predict"}), expires_unix_s=10.0)
    known = Tokens({digest: caller}, clock=lambda: now_s[0])

    async def main():
        async with serving(calls_with(tokens=lambda: known)) as (_, ask):
            call = ask("Each", metadata=bearer(token["predict"]))
            for _ in range(3):
                await call.write(b"a")
                assert await call.read() == b"a"
            now_s[0] = 10.0
            await call.write(b"b")
            code, details = await ended(call.read())
            assert code is Code.UNAUTHENTICATED
            assert "has expired" in details

    asyncio.run(main())


def test_messages_of_an_open_stream_are_not_compared_with_all_tokens_again(tokens, monkeypatch):
    known, token = tokens
    compared = []
    authenticate = Tokens.authenticate_token

    def noted(self, text):
        compared.append(text)
        return authenticate(self, text)

    monkeypatch.setattr(Tokens, "authenticate_token", noted)

    async def main():
        async with serving(calls_with(tokens=lambda: known)) as (_, ask):
            call = ask("Each", metadata=bearer(token["predict"]))
            for _ in range(5):
                await call.write(b"a")
                assert await call.read() == b"a"

    asyncio.run(main())
    assert len(compared) == 1


def test_a_stream_accepts_no_request_after_its_token_is_revoked(tokens):
    known, token = tokens
    let_in, taken = [known], []

    async def taking(requests, _call):  # as of an agent that reads none of its orders
        yield b"begun"
        async for request in requests:
            taken.append(request)

    async def main():
        calls = calls_with(tokens=lambda: let_in[-1])
        async with serving(calls, Taking=taking) as (_, ask):
            call = ask("Taking", metadata=bearer(token["predict"]))
            assert await call.read() == b"begun"
            await call.write(b"a")
            await async_wait_until(lambda: taken)
            let_in.append(Tokens({}))
            await call.write(b"b")
            code, _details = await asyncio.wait_for(ended(call.read()), 20)
            assert (code, taken) == (Code.UNAUTHENTICATED, [b"a"])

    asyncio.run(main())


def test_a_stream_ends_if_its_token_is_revoked_just_after_it_was_admitted(tokens, monkeypatch):
    known, token = tokens
    let_in = [known]
    calls = calls_with(tokens=lambda: let_in[-1])
    admit = calls._admit

    async def admit_and_revoke(*arguments):
        await admit(*arguments)
        let_in.append(Tokens({}))

    monkeypatch.setattr(calls, "_admit", admit_and_revoke)

    async def main():
        async with serving(calls) as (service, ask):
            call = ask("Each", metadata=bearer(token["predict"]))
            await call.write(b"a")
            code, _details = await asyncio.wait_for(ended(call.read()), 20)
            assert (code, service.asked) == (Code.UNAUTHENTICATED, [])

    asyncio.run(main())


def test_a_stream_ends_when_its_token_loses_the_role(tokens):
    """Otherwise events would be streamed on to a former administrator."""
    _known, token = tokens
    digest = hashlib.sha256(token["predict"].encode()).hexdigest()
    let_in = [
        Tokens({digest: Caller("a", frozenset(roles))})
        for roles in (("predict", "admin"), ("predict",))
    ]

    async def main():
        calls = calls_with(tokens=lambda: let_in[0])
        async with serving(calls) as (_, ask):
            call = ask("Each", metadata=bearer(token["predict"]))
            await call.write(b"a")
            assert await call.read() == b"a"
            del let_in[0]
            await call.write(b"b")
            code, details = await ended(call.read())
            assert code is Code.UNAUTHENTICATED
            assert "have changed" in details

    asyncio.run(main())


def test_streams_that_are_open_when_the_server_stops_are_no_defects(logged):
    ends = []

    async def waiting(requests, _call):
        try:
            async for request in requests:
                yield request
        finally:
            ends.append(1)

    async def main():
        async with serving(calls_with(), Waiting=waiting) as (_, ask):
            call = ask("Waiting")
            await call.write(b"a")
            assert await call.read() == b"a"
        await async_wait_until(lambda: ends)  # the server has stopped

    asyncio.run(main())
    assert logged() == []
