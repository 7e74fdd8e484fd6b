"""Rate and queue limits: accepted and rejected requests, and retry delays."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import OverloadedError
from presage.serving.admission.limits import BatchQueue, RateLimit


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e6

    def __call__(self) -> float:
        return self.now_s


def passes(limit: RateLimit, client: str, rows: int) -> bool:
    try:
        limit.consume(client, rows)
    except OverloadedError:
        return False
    return True


def refusal(limit: RateLimit, client: str, rows: int) -> OverloadedError:
    with pytest.raises(OverloadedError) as caught:
        limit.consume(client, rows)
    return caught.value


# Rows a second ---------------------------------------------------------------------------------

RATES = st.floats(0.5, 1e5)
REQUESTS = st.lists(
    st.tuples(st.floats(0, 3), st.integers(0, 5000), st.booleans()), min_size=1, max_size=60
)


@settings(deadline=None)
@given(rate=RATES, requests=REQUESTS)
def test_no_window_exceeds_the_rate_plus_a_burst_plus_one_request(rate, requests):
    clock = Clock()
    limit = RateLimit(rate, clock=clock)
    passed = []
    for wait_s, rows, often in requests:
        clock.now_s += 0.0 if often else wait_s
        if passes(limit, "a", rows):
            passed.append((clock.now_s, rows))

    for begin, (begin_s, _) in enumerate(passed):
        before_the_last = 0
        for end_s, rows in passed[begin:]:
            assert before_the_last <= rate * (end_s - begin_s) + rate * (1 + 1e-6)
            before_the_last += rows


@settings(deadline=None)
@given(rate=RATES, requests=REQUESTS)
def test_a_client_that_waits_the_retry_delay_is_accepted(rate, requests):
    clock = Clock()
    limit = RateLimit(rate, clock=clock)
    for wait_s, rows, often in requests:
        clock.now_s += 0.0 if often else wait_s
        try:
            limit.consume("a", rows)
        except OverloadedError as error:
            assert error.retry_after_s is not None
            assert error.retry_after_s > 0
            clock.now_s += error.retry_after_s
            assert passes(limit, "a", rows)


def test_one_second_of_rows_is_accepted_at_once_and_again_after_a_second():
    clock = Clock()
    limit = RateLimit(100, clock=clock)

    assert [passes(limit, "a", 10) for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now_s += 1
    assert [passes(limit, "a", 10) for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now_s += 3600  # what was not asked for is not saved up
    assert [passes(limit, "a", 10) for _ in range(12)] == [True] * 10 + [False] * 2


def test_a_request_larger_than_a_second_of_rows_delays_the_next():
    clock = Clock()
    limit = RateLimit(100, clock=clock)

    assert passes(limit, "a", 1000)
    assert refusal(limit, "a", 1).retry_after_s == pytest.approx(9.01)
    clock.now_s += 8.9
    assert not passes(limit, "a", 1)
    clock.now_s += 0.2
    assert passes(limit, "a", 1)


def test_rejected_requests_do_not_extend_the_retry_delay():
    clock = Clock()
    limit = RateLimit(100, clock=clock)
    limit.consume("a", 100)
    for _ in range(1000):
        assert not passes(limit, "a", 4096)

    clock.now_s += 0.02
    assert passes(limit, "a", 1)


def test_each_client_has_its_own_limit():
    limit = RateLimit(10, clock=Clock())
    limit.consume("a", 100)

    assert not passes(limit, "a", 1)
    assert passes(limit, "b", 10)


def test_the_least_recently_active_client_is_evicted_from_the_bounded_table():
    limit = RateLimit(10, clock=Clock())
    for name in ("old", "new"):
        limit.consume(name, 100)
    for number in range(9_998):
        limit.consume(str(number), 10)
    assert not passes(limit, "old", 1)  # heard of again

    limit.consume("one more", 1)
    assert not passes(limit, "old", 1)
    assert passes(limit, "new", 1)


def test_the_error_names_the_limit_and_how_to_raise_it():
    limit = RateLimit(2.5, clock=Clock())
    limit.consume("a", 4)

    assert str(refusal(limit, "a", 1)) == (
        "this client sends more than 2.5 rows per second; send fewer, or have the server's "
        "--rows-per-s raised"
    )


# Rows that wait --------------------------------------------------------------------------------


def test_rows_are_accepted_until_the_queue_is_full_and_again_after_completion():
    queue = BatchQueue(100)
    with queue.reserve(60):
        with queue.reserve(40):
            assert queue.rows == 100
            with pytest.raises(OverloadedError, match="100 rows are waiting and the limit is 100"):
                queue.reserve(1).__enter__()
        assert queue.rows == 60
        with pytest.raises(OverloadedError), queue.reserve(41):
            pass
        with queue.reserve(40):
            pass
    assert queue.rows == 0


def test_a_request_larger_than_the_queue_is_accepted_when_nothing_waits():
    queue = BatchQueue(100)
    with queue.reserve(101), pytest.raises(OverloadedError), queue.reserve(1):
        pass
    with queue.reserve(1), pytest.raises(OverloadedError), queue.reserve(101):
        pass
    assert queue.rows == 0


@settings(deadline=None)
@given(st.data())
def test_queued_rows_exceed_the_limit_by_at_most_one_request(data):
    queue = BatchQueue(50)
    waiting: list[tuple[int, ExitStack]] = []
    for rows in data.draw(st.lists(st.integers(0, 80), max_size=40)):
        if waiting and data.draw(st.booleans()):
            waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))[1].close()
        stack = ExitStack()
        try:
            stack.enter_context(queue.reserve(rows))
        except OverloadedError as error:
            assert sum(taken for taken, _ in waiting) + rows > 50
            assert error.retry_after_s is not None
            assert error.retry_after_s > 0
        else:
            waiting.append((rows, stack))
        assert queue.rows == sum(taken for taken, _ in waiting)
        assert queue.rows <= 50 or sum(taken > 0 for taken, _ in waiting) == 1
    for _, stack in waiting:
        stack.close()
    assert queue.rows == 0


def retry_delay_s(queue: BatchQueue) -> float:
    with queue.reserve(100), pytest.raises(OverloadedError) as caught, queue.reserve(100):
        pass
    assert caught.value.retry_after_s is not None
    return caught.value.retry_after_s


def test_the_retry_delay_is_estimated_from_completed_work():
    queue = BatchQueue(100)
    for _ in range(20):
        with queue.reserve(100):
            time.sleep(0.01)  # 10 000 rows a second, at most

    assert 0.005 < retry_delay_s(queue) < 0.1


def test_abandoned_work_does_not_change_the_retry_delay():
    queue = BatchQueue(100)
    for _ in range(20):
        # As of a call that is cancelled, or refused by a model: over at once, with nothing done.
        with pytest.raises(KeyboardInterrupt), queue.reserve(100):
            raise KeyboardInterrupt

    assert queue.rows == 0
    assert retry_delay_s(queue) == retry_delay_s(BatchQueue(100))
