"""The journal: records survive, an interrupted one is dropped, and a full disk changes nothing."""

from __future__ import annotations

import errno
import os

import pytest

from presage.errors import ElasticError
from presage.training.leader.journal import Journal


def test_records_are_read_again_without_an_interrupted_last_one(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append({"type": "a"})
    journal.append({"type": "b"})
    journal.close()
    with (tmp_path / "journal").open("a") as file:
        file.write('{"type": "c')

    again = Journal(tmp_path / "journal")
    again.append({"type": "d"})

    assert again.records == [{"type": "a"}, {"type": "b"}]
    assert [r["type"] for r in Journal(tmp_path / "journal").records] == ["a", "b", "d"]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch, call):
    journal = Journal(tmp_path / "journal")
    journal.append({"type": "a"})

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            journal.append({"type": "b"})
    journal.append({"type": "c"})

    assert [r["type"] for r in Journal(tmp_path / "journal").records] == ["a", "c"]


def test_a_record_written_in_part_is_removed(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal")
    write = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, line, at: write(file, line[:5], at))
        with pytest.raises(OSError, match="No space left"):
            journal.append({"type": "a"})

    assert (tmp_path / "journal").read_bytes() == b""


def test_a_corrupt_journal_is_rejected_by_its_line(tmp_path):
    (tmp_path / "journal").write_text('{"type": "a"}\nnonsense\n{"type": "b"}\n')

    with pytest.raises(ElasticError, match="journal:2: not a record"):
        Journal(tmp_path / "journal")
