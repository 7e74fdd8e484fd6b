"""Compilation of the aggregator on first use, and the fallback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from presage.collectives.c_build import BuildError
from presage.collectives.switch.build import aggregator_program
from presage.collectives.switch.options import SwitchOptions, parse_arguments
from presage.collectives.switch.process import SwitchProcess, aggregator_command
from presage.errors import ConfigError, ServiceError
from tests.collectives.switch.ranks import connect, reduce, values_of
from tests.support.waiting import wait_until

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "presage/switch"


@needs_compiler
def test_program_is_compiled_once_also_by_several_threads(cache):
    with ThreadPoolExecutor(3) as pool:
        (program,) = set(pool.map(lambda _: aggregator_program(), range(3)))
    before = program.stat().st_mtime_ns

    assert aggregator_program() == program and program.stat().st_mtime_ns == before
    assert os.access(program, os.X_OK)
    assert [path.name for path in program.parent.iterdir()] == ["aggregator"]


@needs_compiler
def test_other_compiler_is_another_program(cache, tmp_path, monkeypatch):
    wrapper = tmp_path / "other-cc"
    wrapper.write_text('#!/bin/sh\nexec cc "$@"\n')
    wrapper.chmod(0o755)
    first = aggregator_program()
    monkeypatch.setenv("CC", str(wrapper))

    assert aggregator_program() != first


def compiler_that_fails(path):
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no space left" >&2; exit 4\n')
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_the_python_aggregator_runs_and_reports_why(cache, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")

    with SwitchProcess() as switch:
        assert "no C compiler no-such-compiler is on the PATH" in switch.fallback_reason
        assert reduce(connect(switch), values_of(2, 100)) == [None, None]
    with pytest.raises(ServiceError, match="cannot be built"):
        aggregator_command("c")


def test_compiler_that_fails_leaves_nothing_and_is_reported(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", compiler_that_fails(tmp_path / "cc"))

    with pytest.raises(BuildError, match="status 4: no space left"):
        aggregator_program()
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_cache_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "presage").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(BuildError):
        aggregator_program()


def test_options_survive_the_command_line():
    options = SwitchOptions(host="::1", port=9, slots=2, chunk_bytes=8, lease_ms=77, fence=5)

    assert parse_arguments(options.arguments()) == options


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"chunk_bytes": 6}, {"port": 70000}])
def test_options_out_of_range_are_rejected(wrong):
    with pytest.raises(ConfigError):
        SwitchOptions(**wrong)


def test_port_in_use_is_reported(start):
    first = start()

    with pytest.raises(ServiceError, match="did not start"):
        start(port=first.port)


def test_aggregator_listens_at_an_ipv6_address(start):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"::1 cannot be used here: {error}")
    switch = start(host="::1")
    assert reduce(connect(switch), values_of(2, 100)) == [None, None]


def test_aggregator_ends_with_the_process_that_started_it(implementation):
    program = (
        "import sys, time\n"
        "from presage.collectives.switch.options import SwitchOptions\n"
        "from presage.collectives.switch.process import SwitchProcess\n"
        "switch = SwitchProcess(SwitchOptions(lease_ms=400), implementation=sys.argv[1])\n"
        "print(switch.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, implementation]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        switch = Path("/proc", parent.stdout.readline().strip())
        assert switch.exists()
        parent.kill()

    wait_until(lambda: not switch.exists() or " Z " in (switch / "stat").read_text(), 20)
