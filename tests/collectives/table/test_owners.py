"""Tables of decisions: owners that die, files of earlier runs, and permissions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from presage.collectives.core.view import JobView
from presage.collectives.table.errors import TableError, TableInUseError, TableUnavailableError
from presage.collectives.table.layout import table_path
from presage.collectives.table.reader import TableReader
from presage.collectives.table.writer import DecisionTable
from tests.collectives.table.programs import compile_c, needs_compiler, run_c, start_owner

OPEN = """
int main(int count, char **words) {
    presage_inc_table table;
    printf("%d", presage_inc_open(&table, words[count - 1]) ? 0 : errno);
}
"""


def create(folder, rank=0, **more):
    return DecisionTable.create("job", rank, folder=folder, **more)


def test_owner_that_dies_leaves_its_view_to_readers_and_its_place_to_the_next(tmp_path):
    owner = start_owner(tmp_path)
    with pytest.raises(TableInUseError):
        create(tmp_path)
    reader = TableReader.find("job", 0, folder=tmp_path)
    assert reader.is_owner_alive()

    owner.kill()
    owner.wait()

    assert not reader.is_owner_alive()
    assert reader.view.epoch == 1
    with pytest.raises(TableUnavailableError, match="has died"):
        TableReader.find("job", 0, folder=tmp_path)
    with create(tmp_path) as table, TableReader(table.path) as fresh:
        table.publish(JobView(9, 0, b"\x01"))
        assert fresh.view.epoch == 9 and reader.view.epoch == 1
    reader.close()


def test_reader_does_not_wait_for_an_owner_that_died_while_it_wrote(tmp_path):
    owner = start_owner(tmp_path, "dies while it writes")
    start_s = time.monotonic()
    with pytest.raises(TableUnavailableError, match="for too long"):
        TableReader.find("job", 0, folder=tmp_path)
    assert time.monotonic() - start_s < 5
    owner.kill()
    owner.wait()
    create(tmp_path).close()


def test_child_of_the_owner_does_not_keep_the_table(tmp_path):
    owner = start_owner(tmp_path, "has a child")
    (child,) = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
    owner.kill()
    owner.wait()
    try:
        create(tmp_path).close()
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_child_does_not_write_to_the_table_of_its_parent(tmp_path):
    table = create(tmp_path)
    table.publish(JobView(2, 0, b"\x01"))
    child = os.fork()
    if not child:
        status = 1
        with suppress(BaseException):
            try:
                table.publish(JobView(3))
            except TableError:
                table.close()
                status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with TableReader(table.path) as reader:
        assert reader.view.epoch == 2
    table.close()


def test_one_of_several_processes_that_create_a_table_owns_it(tmp_path):
    table_path("job", 0, tmp_path).write_bytes(b"of an earlier run")
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from presage.collectives.table.errors import TableInUseError\n"
        "from presage.collectives.table.writer import DecisionTable\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    table = DecisionTable.create('job', 0, folder=Path(sys.argv[1]))\n"
        "    print('owner', flush=True)\n"
        "    sys.stdin.readline()\n"
        "except TableInUseError:\n"
        "    print('in use', flush=True)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) for _ in range(5)]
    found = []
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout
        found.append(process.stdout.readline().strip())
    for process in processes:
        process.communicate("\n")

    assert sorted(found) == ["in use"] * 4 + ["owner"]


@pytest.mark.parametrize("content", [b"", b"short", bytes(64), b"x" * 5000])
def test_file_of_an_earlier_run_is_replaced(tmp_path, content):
    path = table_path("job", 0, tmp_path)
    path.write_bytes(content)
    with pytest.raises(TableError):
        TableReader(path)

    with create(tmp_path) as table, TableReader(path) as reader:
        table.publish(JobView(4, 0, b"\x01"))
        assert reader.is_allowed(0)
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_reader_in_c_opens_no_file_that_is_no_table(tmp_path):
    program = compile_c(tmp_path, OPEN)
    path = tmp_path / "table"
    assert int(*run_c(program, path)) > 0
    for content in (b"", bytes(64), b"x" * 5000):
        path.write_bytes(content)
        path.chmod(0o600)
        assert int(*run_c(program, path)) > 0
    with create(tmp_path) as table:
        assert run_c(program, table.path) == ["0"]
        table.path.chmod(0o666)
        assert int(*run_c(program, table.path)) > 0
        (tmp_path / "link").symlink_to(table.path)
        assert int(*run_c(program, tmp_path / "link")) > 0


def test_table_is_private_to_its_user_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with create(tmp_path) as table:
            assert table.path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_table_that_others_can_write_to_is_not_read(tmp_path):
    with create(tmp_path) as table:
        table.path.chmod(0o622)
        with pytest.raises(TableError, match="written to by other users"):
            TableReader(table.path)


def test_symbolic_link_is_neither_read_nor_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("content")
    table_path("job", 0, tmp_path).symlink_to(victim)

    with pytest.raises(TableError):
        create(tmp_path)
    with pytest.raises(TableError):
        TableReader.find("job", 0, folder=tmp_path)
    assert victim.read_text() == "content"
    assert len(list(tmp_path.iterdir())) == 2  # no partial file is left


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")
def test_file_of_another_user_is_neither_replaced_nor_read(tmp_path):
    path = table_path("job", 0, tmp_path)
    path.write_bytes(bytes(72))
    os.chown(path, 12345, 12345)

    with pytest.raises(TableError, match="no file of this user"):
        create(tmp_path)
    with pytest.raises(TableError, match="no file of this user"):
        TableReader(path)


def test_job_names_with_slashes_stay_in_the_folder(tmp_path):
    names = ["a/b", "../../etc/x", "a%2Fb", "a:b"]
    tables = [DecisionTable.create(name, 1, folder=tmp_path) for name in names]

    assert len(list(tmp_path.iterdir())) == len(names)
    for name, table in zip(names, tables, strict=True):
        TableReader.find(name, 1, folder=tmp_path).close()
        table.close()


def test_folder_that_is_missing_is_reported(tmp_path):
    with pytest.raises(TableError, match="cannot be created: No such file"):
        create(tmp_path / "missing")


@pytest.mark.parametrize("wrong", [{"rank": -1}, {"capacity": 0}, {"capacity": 1 << 30}])
def test_arguments_out_of_range_are_rejected(tmp_path, wrong):
    with pytest.raises(ValueError, match="out of range"):
        create(tmp_path, **wrong)


def test_threads_that_publish_leave_a_whole_view(tmp_path):
    with create(tmp_path) as table, ThreadPoolExecutor(4) as pool:
        views = [JobView(epoch, epoch, bytes([epoch % 200]) * 3000) for epoch in range(1, 400)]
        list(pool.map(table.publish, views))
        with TableReader(table.path) as reader:
            assert reader.view in views
