"""DCGM sampler with a stand-in of the command."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from presage.pipelines.profiling.sampling import dcgm
from presage.pipelines.profiling.sampling.nvml_sampler import NvmlSampler
from tests.pipelines.profiling.gpu_window import MEMORY, WHERE, sample
from tests.pipelines.profiling.recorded_nvml import RECORDINGS, RecordedNvml
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("gpu_machine")

DMON = """\
#Entity   SMACT        SMOCC
ID
GPU 0     N/A          N/A
GPU 0     0.800        0.400
GPU 0     0.900        0.500
"""


def install_dcgmi(folder: Path, script: str) -> None:
    command = folder / "dcgmi"
    command.write_text(f"#!{sys.executable}\n{script}")
    command.chmod(0o755)


PRINTS_UNTIL_INTERRUPTED = f"""
import sys, time
assert sys.argv[1:6] == ["dmon", "-e", "1002,1003", "-d", "100"], sys.argv
try:
    time.sleep(60)
except KeyboardInterrupt:
    print({DMON!r})
"""


def test_dcgm_reports_the_activity_of_multiprocessors_and_leaves_no_process(tmp_path):
    install_dcgmi(tmp_path, PRINTS_UNTIL_INTERRUPTED)
    before = set(psutil.Process().children())
    seen = sample([*WHERE, *MEMORY], window_s=0.5)

    assert (seen.sm_activity, seen.sm_occupancy) == pytest.approx((0.85, 0.45))
    assert set(psutil.Process().children()) == before


def test_without_dcgm_counters_gpm_is_used_and_the_reason_is_logged_once(tmp_path, caplog):
    install_dcgmi(tmp_path, "raise SystemExit('unable to establish a connection')")
    for _ in range(2):
        sampler = NvmlSampler(RecordedNvml.read(RECORDINGS / "session.json"))
        sampler.start([1])
        time.sleep(0.65)
        assert sampler.stop().sm_activity == 0.8825

    (line,) = caplog.messages
    assert "unable to establish a connection" in line
    assert "nv-hostengine" in line


def test_a_hanging_dcgm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(dcgm, "PATIENCE_S", 0.2)
    deaf = (
        "import pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'deaf')!r}).touch(); time.sleep(60)"
    )
    install_dcgmi(tmp_path, deaf)
    counter = dcgm.Dcgm(0)
    counter.start()
    assert counter.process is not None
    pid = counter.process.pid
    wait_until((tmp_path / "deaf").exists)

    assert counter.stop().activity is None
    assert not Path(f"/proc/{pid}").exists()


def test_blank_or_impossible_lines_of_dcgm_are_ignored():
    reading = dcgm.parse([*DMON.splitlines(), "GPU 0  9223372036854775794  0.450", "Error: x", ""])

    assert reading.activity == pytest.approx(0.85)
    assert reading.occupancy == pytest.approx(0.45)
