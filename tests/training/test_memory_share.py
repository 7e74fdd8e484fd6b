"""The memory share of a worker limits torch, and follows changes."""

from __future__ import annotations

import pytest

from presage.training.job_folder import JobFolder
from presage.training.memory_share import MemoryShare, limit_memory


@pytest.fixture
def limited(monkeypatch):
    """Return what torch is limited to, and when it releases its cache, on a GPU of 800 bytes."""
    import torch

    limited: list[float | str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("P", (), {"total_memory": 800})
    )
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limited.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: limited.append("released"))
    return limited


def test_s3_the_share_of_a_worker_limits_torch_on_its_gpu(limited):
    limit_memory(200)
    limit_memory(0)  # no limit
    limit_memory(900)  # more than there is

    assert limited == [0.25, "released", 1.0, 1.0]


def test_s4_a_worker_follows_its_share_as_other_jobs_come_and_leave(limited):
    share = MemoryShare()
    for share_bytes in (0, 0, 400, 400, 200, 0):
        share.follow(share_bytes)

    assert limited == [0.5, "released", 0.25, "released", 1.0]


@pytest.mark.parametrize(("text", "share"), [("700", 700), ("0\n", 0), ("", None), ("x", None)])
def test_s4_the_share_is_read_from_the_folder_of_the_worker(tmp_path, text, share):
    folder = JobFolder(tmp_path, "job")
    assert folder.memory_bytes() is None
    folder.create()
    (folder.path / "memory_bytes").write_text(text)

    assert folder.memory_bytes() == share
