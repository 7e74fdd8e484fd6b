"""Cache of values that all page viewers share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from presage.errors import ServiceError
from presage.schedulers.live.ui import cached_value as kept
from presage.schedulers.live.ui.cached_value import CachedValue


class Clock:
    """Clock that advances only when a test or a simulated request advances it."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(kept, "time", SimpleNamespace(monotonic=found, time=found))
    return found


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("takes_s", "rests_s"), [(0.1, 0.8), (2.0, 6.0)])
def test_a_slow_value_is_fetched_less_often(clock, takes_s, rests_s, fails):
    asked = []

    def ask():
        asked.append(clock.now_s)
        clock.now_s += takes_s
        if fails:
            raise ServiceError("it is slow")
        return len(asked)

    one = CachedValue(ask, 0.8)
    for _ in range(3):
        one.read()
    clock.now_s += rests_s - 0.01
    assert one.read().failure == ("it is slow" if fails else "")
    assert len(asked) == 1
    clock.now_s += 0.02
    one.read()
    assert len(asked) == 2
