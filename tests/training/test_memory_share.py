"""The memory share of a worker limits torch."""

from __future__ import annotations

from presage.training.memory_share import limit_memory


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
