"""No file that a user names can block a reader, or fill its memory."""

from __future__ import annotations

import os
import socket

import pytest

from presage.cli.options.job_source import read_job
from presage.errors import GraphError, InvalidJobError
from presage.serving.client.job_features import make_job_features
from presage.system.files.user_file import read_regular

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="of POSIX systems"),
    pytest.mark.timeout(60),
]
SUFFIXES = ("onnx", "pb", "pbtxt", "meta", "json")


@pytest.fixture(params=["FIFO", "character device", "socket", "folder"])
def special_file(request, tmp_path):
    """Function that makes a special file without a process at its other end."""

    def make(name):
        path = tmp_path / name
        if request.param == "FIFO":
            os.mkfifo(path)
        elif request.param == "character device":
            path.symlink_to("/dev/zero")
        elif request.param == "folder":
            path.mkdir()
        else:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        return path

    return make, request.param


def job_of_file(path):
    sizes = {} if path.suffix == ".json" else {"batch_size": 1, "iterations": 1}
    return make_job_features(path, **sizes)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("read", [lambda path: read_job(str(path)), job_of_file])
def test_a_special_file_is_rejected_at_once(special_file, suffix, read):
    make, kind = special_file
    if kind == "folder" and suffix != "json":
        pytest.skip("a SavedModel is a folder")
    with pytest.raises((GraphError, InvalidJobError), match=f"not a regular file but a {kind}"):
        read(make(f"job.{suffix}"))


def test_dev_zero_itself_is_refused():
    with pytest.raises(GraphError, match=r"/dev/zero: cannot be read .not a regular file"):
        read_job("/dev/zero")


def test_a_file_beyond_the_size_limit_is_rejected_unread(tmp_path):
    sparse = tmp_path / "job.json"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidJobError, match="larger than 64 MiB"):
        read_job(str(sparse))
    model = sparse.rename(tmp_path / "model.onnx")
    with pytest.raises(GraphError, match="larger than 2 GiB"):
        read_job(str(model))


def test_a_regular_file_is_read_whole_up_to_the_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3_000_000))

    assert read_regular(path, 3_000_000) == path.read_bytes()
    with pytest.raises(OSError, match="larger than 2 MiB"):
        read_regular(path, 2_999_999)
