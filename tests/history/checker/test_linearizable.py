"""The search for an order, against one that tries them all."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from tests.history.checker.linearizable import Call, check_linearizable


def register(state, content):
    """A register: writes succeed, a read returns the value."""
    what, value = content
    return (value,) if what == "write" else (state,) if state == value else ()


def some_order_explains(calls: list[Call]) -> bool:
    """By brute force: every order of every subset that has all calls that completed."""
    maybe = [i for i, call in enumerate(calls) if call.end is None]
    for bits in range(2 ** len(maybe)):
        left_out = {index for place, index in enumerate(maybe) if bits >> place & 1}
        chosen = [i for i in range(len(calls)) if i not in left_out]
        for order in permutations(chosen):
            if _keeps_time(order, calls) and _is_sequential(order, calls):
                return True
    return False


def _keeps_time(order, calls):
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            end = calls[other].end
            if end is not None and end < calls[one].begin:
                return False
    return True


def _is_sequential(order, calls):
    state = 0
    for index in order:
        follows = register(state, calls[index].content)
        if not follows:
            return False
        (state,) = follows
    return True


@st.composite
def histories(draw):
    calls = []
    for _ in range(draw(st.integers(0, 5))):
        begin = draw(st.integers(0, 8))
        end = draw(st.one_of(st.none(), st.integers(begin, 9)))
        what = draw(st.sampled_from(["write", "read"]))
        if what == "read" and end is None:
            end = 9
        calls.append(Call(begin, end, (what, draw(st.integers(0, 2)))))
    return calls


@given(histories())
def test_the_search_finds_an_order_exactly_where_there_is_one(calls):
    assert (check_linearizable(calls, register, 0) is None) == some_order_explains(calls)


def test_many_writes_of_unknown_outcome_do_not_slow_the_search_down():
    calls = [Call(i, None, ("write", i % 2)) for i in range(200)]
    calls += [Call(300 + 2 * i, 301 + 2 * i, ("read", i % 2)) for i in range(100)]

    assert check_linearizable(calls, register, 0) is None


def test_the_contradiction_is_named():
    calls = [Call(0, 1, ("write", 1)), Call(2, 3, ("read", 0))]

    broken = check_linearizable(calls, register, 0)

    assert broken is not None
    assert (broken.call, broken.states) == (calls[1], (1,))
