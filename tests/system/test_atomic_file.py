"""Atomic writes: what is in the place of the file keeps its name, unless it is a job's."""

from __future__ import annotations

import pytest

from presage.system.files.atomic_file import replace_bytes, replace_text, write_atomically


def _replace_bytes(path):
    replace_bytes(path, b"new")


def _replace_text(path):
    replace_text(path, "new", durable=True)


def _write(path):
    write_atomically(path, lambda partial: partial.write_text("new"))


@pytest.mark.parametrize("write", [_replace_bytes, _replace_text, _write])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_folder_in_the_place_of_the_file_stays_with_its_content(tmp_path, write, is_empty):
    folder = tmp_path / "results.html"
    folder.mkdir()
    if not is_empty:
        (folder / "thesis.txt").write_text("years of work")

    with pytest.raises(IsADirectoryError, match=r"results\.html"):
        write(folder)

    assert [path.name for path in tmp_path.iterdir()] == ["results.html"]
    assert is_empty or (folder / "thesis.txt").read_text() == "years of work"


def test_a_folder_that_a_job_has_put_in_the_place_of_a_file_is_moved(tmp_path):
    (tmp_path / "state.json" / "full").mkdir(parents=True)

    replace_text(tmp_path / "state.json", "new", displace_folder=True)

    assert (tmp_path / "state.json").read_text() == "new"
