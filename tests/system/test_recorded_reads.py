"""Record of what user code reads: whatever changes its result makes the record outdated."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from presage.system.processes import recorded_reads
from presage.system.processes.recorded_reads import from_json, to_json


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers/a.json").write_text("1")
    return tmp_path


def recorded(read):
    """Return the record of a function, as it is stored."""
    with recorded_reads.recorded_reads() as reads:
        read()
    assert reads.is_complete
    assert from_json(to_json(reads)) == reads
    assert reads.is_current()
    return reads


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.listdir("layers"),  # noqa: PTH208
        lambda: list(os.scandir("layers")),
        lambda: list(os.walk(".")),
        lambda: list(Path("layers").iterdir()),
        lambda: list(Path().glob("*/*.json")),
    ],
)
def test_a_new_file_in_a_folder_that_was_listed(folder, read):
    reads = recorded(read)

    (folder / "layers/b.json").write_text("2")

    assert not reads.is_current()


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.path.exists("config.json"),  # noqa: PTH110
        lambda: os.path.isfile(path="config.json"),  # noqa: PTH113
        lambda: Path("config.json").exists(),
        lambda: Path("config.json").is_file(),
    ],
)
def test_a_new_file_whose_existence_was_checked(folder, read):
    reads = recorded(read)

    (folder / "config.json").write_text("{}")

    assert not reads.is_current()


@pytest.mark.parametrize("file", ["optional_part.py", "optional_part/__init__.py"])
def test_a_new_module_whose_import_failed(folder, file):
    def read():
        with suppress(ImportError):
            __import__("optional_part")

    reads = recorded(read)
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text("")

    assert not reads.is_current()


@pytest.mark.parametrize("mode", ["r", "rb", "r+"])
def test_a_file_that_was_opened(folder, mode):
    file = folder / "layers/a.json"
    reads = recorded(lambda: file.open(mode).close())

    file.write_text("2")

    assert not reads.is_current()


def test_a_link_to_another_file(folder):
    (folder / "b.json").write_text("2")
    link = folder / "link"
    link.symlink_to("layers/a.json")
    reads = recorded(link.read_text)

    link.unlink()
    link.symlink_to("b.json")

    assert not reads.is_current()


def test_a_large_file_is_compared_by_size_and_time(folder, monkeypatch):
    monkeypatch.setattr(recorded_reads, "_MOST_DIGEST_BYTES", 10)
    file = folder / "weights"
    file.write_bytes(b"x" * 11)
    reads = recorded(file.read_bytes)

    assert reads.files[str(file)].startswith("11 bytes of ")
    os.utime(file, ns=(0, 0))
    assert not reads.is_current()


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.environ.get("PRESAGE_TEST_A"),
        lambda: os.getenv("PRESAGE_TEST_A"),
        lambda: os.getenvb(b"PRESAGE_TEST_A"),
        lambda: "PRESAGE_TEST_A" in os.environ,
        lambda: [name for name in os.environ if name.startswith("PRESAGE_TEST_")],
        lambda: dict(os.environ),
    ],
)
def test_a_variable_that_is_set_later(folder, monkeypatch, read):
    monkeypatch.delenv("PRESAGE_TEST_A", raising=False)
    reads = recorded(read)

    monkeypatch.setenv("PRESAGE_TEST_A", "")

    assert not reads.is_current()


def test_a_variable_that_was_not_read_does_not_count(folder, monkeypatch):
    reads = recorded(lambda: os.environ.get("PRESAGE_TEST_A"))

    monkeypatch.setenv("PRESAGE_TEST_B", "1")

    assert reads.is_current()


def _change(file):
    file.read_text()
    file.write_text("2")


@pytest.mark.parametrize(
    "read",
    [
        lambda file: subprocess.run(["cat", str(file)], check=True, capture_output=True),
        lambda file: os.system("true"),
        _change,
    ],
)
def test_a_record_of_a_program_or_of_a_file_that_changed_meanwhile_is_incomplete(folder, read):
    with recorded_reads.recorded_reads() as reads:
        read(folder / "layers/a.json")

    assert not reads.is_complete


def test_functions_are_restored_and_reads_after_the_block_do_not_count(folder):
    before = os.path.exists, Path.stat, os.environ.__class__.__getitem__
    reads = recorded(lambda: None)
    stored = to_json(reads)

    assert (os.path.exists, Path.stat, os.environ.__class__.__getitem__) == before
    (folder / "layers/a.json").read_text()
    assert str(folder) not in str(stored["files"])
    assert sys.executable not in stored["files"]


def test_wrong_arguments_raise_the_errors_of_the_functions():
    with recorded_reads.recorded_reads():
        with pytest.raises(TypeError, match=r"exists\(\) missing 1 required"):
            os.path.exists()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="str expected, not int"):
            os.environ[5]  # type: ignore[index]
        with pytest.raises(FileNotFoundError):
            Path("missing").stat()
