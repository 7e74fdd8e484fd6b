"""Calls that arrive by HTTP: their steps between the event loop and a thread."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import pytest

from presage.errors import ExpiredError, InvalidRequestError
from presage.serving.rest.http_call import HttpCall, Outcome
from tests.serving.support.running_server import server_loop

Code = grpc.StatusCode


def make_call(answer: Any, **options: Any) -> HttpCall:
    call = HttpCall(server_loop(), "ipv4:127.0.0.1:1", (), **options)
    call.begin(answer)
    return call


async def echo(_requests: object, call: Any) -> bytes:
    body: bytes = await call.read()
    return body


def test_the_body_is_read_when_the_call_reads_it():
    call = make_call(echo)

    assert call.next_step() is None
    call.supply(b"body")
    assert call.next_step() == Outcome(Code.OK, b"body")


def test_a_call_may_end_without_its_body():
    async def reject(_requests: object, call: Any) -> None:
        await call.abort(Code.NOT_FOUND, "nothing", (("key", "1"),))

    assert make_call(reject).next_step() == Outcome(
        Code.NOT_FOUND, details="nothing", trailing=(("key", "1"),)
    )


def test_an_error_of_the_body_is_raised_in_the_call():
    async def answer(_requests: object, call: Any) -> bytes:
        with pytest.raises(InvalidRequestError):
            await call.read()
        return b"seen"

    call = make_call(answer)
    assert call.next_step() is None
    call.reject(InvalidRequestError("no JSON"))
    assert call.next_step() == Outcome(Code.OK, b"seen")


def test_a_deadline_ends_the_call_and_the_reading():
    stopped = []
    call = make_call(echo, timeout_s=0.05, on_unread=lambda: stopped.append(True))

    assert call.next_step() is None
    outcome = call.next_step()
    assert outcome is not None
    assert outcome.code is Code.DEADLINE_EXCEEDED
    assert stopped == [True]
    call.reject(ExpiredError("too late to be seen"))
    call.supply(b"too late")


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_cancelled_call_ends_even_before_its_first_step(has_begun):
    call = HttpCall(server_loop(), "ipv4:127.0.0.1:1", ())

    async def cancel_at_once() -> None:
        call.begin(echo)
        if has_begun:
            await asyncio.sleep(0.05)
        call.cancel()

    asyncio.run_coroutine_threadsafe(cancel_at_once(), server_loop()).result(10)

    if has_begun:
        assert call.next_step() is None
    outcome = call.next_step()
    assert outcome is not None
    assert outcome.code is Code.CANCELLED


def test_a_call_is_a_context_of_grpc():
    call = HttpCall(server_loop(), "ipv4:1.2.3.4:5", (("a", "b"),), names=[b"scheduler"])

    assert (call.peer(), call.invocation_metadata()) == ("ipv4:1.2.3.4:5", (("a", "b"),))
    assert call.auth_context() == {"x509_common_name": [b"scheduler"]}
    assert call.time_remaining() is None
    late = HttpCall(server_loop(), "", (), timeout_s=10.0)
    left_s = late.time_remaining()
    assert left_s is not None
    assert 0 < left_s <= 10 < math.inf
    assert late.auth_context() == {}
