"""Failed authentications are logged once a second per host and delayed ever longer."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from presage.serving.authentication import authentication_failures
from presage.serving.authentication.authentication_failures import (
    FAILURE_RESET_S,
    LONGEST_DELAY_S,
    AuthenticationFailures,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def record_failure(clock):
    failures = AuthenticationFailures(clock=clock)
    return lambda host="a": failures.record_failure(host, method="Predict", request_id="r-1")


def test_each_failure_of_a_host_doubles_the_delay_up_to_a_limit(record_failure):
    delays_s = [record_failure() for _ in range(20)]

    assert delays_s[:3] == [0.1, 0.2, 0.4]
    assert delays_s == sorted(delays_s)
    assert delays_s[-1] == LONGEST_DELAY_S


def test_other_hosts_are_not_delayed_and_a_quiet_minute_is_forgiven(record_failure, clock):
    for _ in range(10):
        record_failure("a")
    assert record_failure("b") == 0.1

    clock.now_s += FAILURE_RESET_S + 1
    assert record_failure("a") == 0.1


def test_failures_of_a_host_are_logged_as_one_count_a_second(record_failure, clock, caplog):
    caplog.set_level(logging.WARNING, logger="presage.serving")
    for _ in range(5):
        record_failure()
    clock.now_s += 1
    record_failure()

    lines = [row.fields for row in caplog.records]
    assert [line["failures"] for line in lines] == [1, 5]
    assert lines[0]["client"] == "a"
    assert lines[0]["method"] == "Predict"


def test_calls_that_are_delayed_are_bounded_in_number(monkeypatch):
    monkeypatch.setattr(authentication_failures, "MAX_DELAYED", 3)
    monkeypatch.setattr(authentication_failures, "FIRST_DELAY_S", 60.0)

    async def main() -> float:
        failures = AuthenticationFailures()
        delayed = [asyncio.create_task(failures.delay("a")) for _ in range(3)]
        await asyncio.sleep(0)
        begin_s = time.monotonic()
        await failures.delay("a")
        for task in delayed:
            assert not task.done()
            task.cancel()
        return time.monotonic() - begin_s

    assert asyncio.run(main()) < 1.0
