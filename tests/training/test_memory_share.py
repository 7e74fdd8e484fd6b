"""Memory shares: large on an empty GPU, never under the predicted bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from presage.training.memory_share import limit_memory, memory_share_bytes


def test_s4_shares_go_down_as_the_gpu_fills_and_a_full_gpu_has_none():
    assert memory_share_bytes(10, capacity_bytes=100, running=0, free_bytes=100) == 100
    assert memory_share_bytes(10, capacity_bytes=100, running=1, free_bytes=60) == 50
    assert memory_share_bytes(40, capacity_bytes=100, running=3, free_bytes=60) == 40
    assert memory_share_bytes(10, capacity_bytes=100, running=4, free_bytes=9) is None


@given(st.integers(1, 999), st.integers(1, 999), st.integers(0, 9), st.integers(0, 999))
def test_s4_a_share_is_never_under_the_bound_and_never_more_than_is_free(
    bound, capacity, running, free
):
    share = memory_share_bytes(bound, capacity, running, free)

    assert (share is None) == (bound > free)
    assert share is None or bound <= share <= free


def test_s3_the_share_of_a_worker_limits_torch_on_its_gpu(monkeypatch):
    import torch

    limited: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("P", (), {"total_memory": 800})
    )
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limited.append)

    limit_memory(200)
    limit_memory(0)  # no limit
    limit_memory(900)  # more than there is

    assert limited == [0.25]
