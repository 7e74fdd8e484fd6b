"""Health signals of an agent: kernel logs, the driver, the queue, and the tasks of its node."""

from __future__ import annotations

import logging
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.health.device_reading import DeviceReading
from presage.schedulers.health.health_signal import HealthSignal, Severity
from presage.schedulers.health.memory_health import MemoryHealth
from presage.schedulers.health.xid import xid_signal
from presage.schedulers.live.agent.agent_options import AgentOptions
from presage.schedulers.live.agent.connection.lease import boot_id
from presage.schedulers.live.agent.health.health_core import MAX_PENDING, REPEAT_S, HealthCore
from presage.schedulers.live.agent.health.health_monitor import POSITION, HealthMonitor
from presage.schedulers.live.agent.health.kernel_log import Kmsg, LogFile
from presage.schedulers.live.agent.node_task import Observation, Step
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import FIELDS, LOGGER
from tests.schedulers.health.test_health import FakeNvml
from tests.schedulers.live.agent.test_node_core import Node

GIB = 2**30
BUSES = ("0000:3b:00", "0000:5e:00")
CPUS = tuple(Slot("cpu-1", GIB, (0,), pci_address=bus) for bus in BUSES)
GPUS = tuple(
    Slot("h100", GIB, cuda=n, device_id=f"GPU-{name}", pci_address=bus)
    for n, (name, bus) in enumerate(zip("ab", BUSES, strict=True))
)
XID = "[61.1] NVRM: Xid (PCI:{}): {}, pid=12, name=python, GPU has fallen off the bus.\n"


def options(tmp_path, slots=CPUS, kernel_log=None):
    return AgentOptions("a", slots, tmp_path, tmp_path / "c", kernel_log=kernel_log)


def rows(core):
    """Return the device, the severity and the reason's first words of pending signals."""
    pending = core.pending if isinstance(core, HealthCore) else core.signals()
    return [(one.device, one.severity, one.reason.partition(":")[0]) for one in pending]


@pytest.fixture(autouse=True)
def _log_info(caplog):
    caplog.set_level(logging.INFO, LOGGER)


def logged(caplog):
    """Return the text and the error of each logged event."""
    return [(one.getMessage(), getattr(one, FIELDS).get("error")) for one in caplog.records]


# The queue ---------------------------------------------------------------------------------------


def test_signals_are_queued_until_they_are_acknowledged():
    core = HealthCore(CPUS, "s")
    core.note([xid_signal(BUSES[1], 79), xid_signal(BUSES[0], 13)], 0.0)
    assert rows(core) == [(1, "failed", "Xid 79"), (0, "notice", "Xid 13")]
    assert [one.number for one in core.pending] == [1, 2]

    core.acknowledge("another agent's", 2)
    assert len(core.pending) == 2
    core.acknowledge("s", 1)
    assert rows(core) == [(0, "notice", "Xid 13")]
    core.acknowledge("s", 0)
    core.acknowledge("s", 99)
    assert core.pending == []
    assert core.last_number == 2


def test_a_repeated_signal_is_queued_once_within_a_time():
    core = HealthCore(CPUS, "s")
    for at_s in (0.0, 1.0, REPEAT_S - 0.1, REPEAT_S + 0.1):
        core.note([xid_signal(BUSES[0], 79)], at_s)

    assert len(core.pending) == 2


def test_devices_of_other_nodes_are_named_once():
    core = HealthCore(CPUS, "s")
    other = xid_signal("0000:ff:00", 79)

    assert core.note([other, other, xid_signal(BUSES[0], 79)], 0.0) == ["0000:ff:00"]
    assert core.note([other], 99.0) == []
    assert rows(core) == [(0, "failed", "Xid 79")]


@given(st.lists(st.tuples(st.sampled_from((*BUSES, "x")), st.integers(1, 99_999)), max_size=300))
def test_a_flood_is_bounded_and_leaves_out_no_failure(flood):
    core = HealthCore(CPUS, "s")
    for bus, code in [*flood, *((BUSES[0], code) for code in range(200, 400)), (BUSES[1], 79)]:
        core.note([xid_signal(bus, code)], 0.0)

    assert len(core.pending) <= MAX_PENDING
    assert sum(one.ByteSize() for one in core.pending) < 16_384
    assert (1, "failed", "Xid 79") in rows(core)
    numbers = [one.number for one in core.pending]
    assert numbers == sorted(set(numbers))


def test_memory_of_an_endless_flood_is_bounded():
    core, sizes_bytes = HealthCore(CPUS, "s"), []
    for begin in (0, 10_000):
        for code in range(begin, begin + 10_000):
            core.note([xid_signal(BUSES[0], code), xid_signal(f"0000:{code}", 13)], float(code))
        sizes_bytes.append(len(pickle.dumps(core)))

    assert sizes_bytes[1] < 1.05 * sizes_bytes[0]


# The driver --------------------------------------------------------------------------------------


def readings(core, *several):
    """Let the driver report; return the signals after each reading."""
    found = []
    for at_s, reading in enumerate(several):
        core.note_reading(reading, 100.0 * at_s)
        found.append([(one.device, one.severity) for one in core.pending])
        core.acknowledge("s", core.last_number)
    return found


def test_a_gpu_that_two_readings_lack_has_failed_until_it_is_listed_again():
    core = HealthCore(GPUS, "s")
    both, one = [MemoryHealth("GPU-a", 5), MemoryHealth("GPU-b")], [MemoryHealth("GPU-a", 5)]

    assert readings(core, both, one, both, one, one, one, both, both) == [
        [(0, "healthy"), (1, "healthy")],  # an earlier agent may have reported them
        [], [], [],
        [(1, "failed")],
        [],
        [(1, "healthy")],
        [],
    ]  # fmt: skip


def test_a_gpu_that_is_missing_from_the_start_is_not_healthy():
    core = HealthCore(GPUS, "s")
    one = [MemoryHealth("GPU-a")]

    assert readings(core, one, one, one) == [[(0, "healthy")], [(1, "failed")], []]


def test_memory_errors_are_reported_when_they_begin():
    core = HealthCore(GPUS, "s")
    healthy = MemoryHealth("GPU-b")
    pending = MemoryHealth("GPU-a", 1, is_pending=True)
    broken = MemoryHealth("GPU-a", 1, has_failed=True)
    found = readings(
        core, [MemoryHealth("GPU-a"), healthy], [pending, healthy], [pending, healthy],
        [broken, healthy], [broken, healthy], [MemoryHealth("GPU-a"), healthy],
    )  # fmt: skip

    assert found[1:] == [
        [(0, "degraded"), (0, "degraded")], [], [(0, "failed")], [], [(0, "healthy")],
    ]  # fmt: skip


def test_gpus_of_other_nodes_and_a_driver_without_gpus():
    core = HealthCore(GPUS, "s")
    other = [MemoryHealth("GPU-z", 9, has_failed=True)]
    assert readings(core, other, other)[-1] == [(0, "failed"), (1, "failed")]

    cpus = HealthCore(CPUS, "s")
    assert readings(cpus, other, [], other) == [[], [], []]


def test_the_driver_is_read_and_its_failure_is_logged_once(tmp_path, caplog):
    nvml: Any = FakeNvml()
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    monitor = HealthMonitor(options(tmp_path, GPUS), nvml)
    monitor.read_driver()
    assert [row[:2] for row in rows(monitor)] == [(0, "healthy"), (1, "healthy"), (0, "degraded")]
    assert monitor.reading("GPU-a") == DeviceReading(61.0, 412.5)
    assert monitor.reading("GPU-z") == monitor.reading("") == DeviceReading()

    def broken():
        raise FakeNvml.NVMLError("driver not loaded")

    nvml.nvmlInit = broken
    before = monitor.last_number
    for _ in range(3):
        monitor.read_driver()
    assert monitor.last_number == before  # a driver that cannot be read says nothing of GPUs
    assert logged(caplog) == [("health of devices: not read", "driver not loaded")]
    assert monitor.reading("GPU-a") == DeviceReading()  # the last one may be long ago


# Kernel logs -------------------------------------------------------------------------------------


def test_a_log_file_is_read_from_its_end_and_continued(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    log = LogFile(path, {})
    assert log.read() == []
    with path.open("a") as file:
        file.write("one\ntw")
    assert log.read() == ["one", ""]
    with path.open("a") as file:
        file.write("o\n")

    assert LogFile(path, log.position).read() == ["two", ""]
    assert log.read() == ["two", ""]
    assert log.read() == [""]


def test_a_log_file_that_is_rotated_truncated_or_created_later(tmp_path):
    path = tmp_path / "kern.log"
    log = LogFile(path, {})
    with pytest.raises(FileNotFoundError):
        log.read()
    path.write_text("first\n")
    assert log.read() == ["first", ""]
    path.rename(tmp_path / "kern.log.1")
    with pytest.raises(FileNotFoundError):
        log.read()
    path.write_text("rotated\n")
    assert log.read() == ["rotated", ""]
    path.write_text("cut\n")
    assert log.read() == ["cut", ""]


def test_odd_files_and_positions_are_no_danger(tmp_path):
    path = tmp_path / "kern.log"
    path.write_bytes(b"\xff\0" * 1024 * 1024 + b"\nlast\n")
    log = LogFile(path, {"inode": path.stat().st_ino, "offset": 0})
    assert "last" in [line for _ in range(4) for line in log.read()]
    for position in ({"inode": "x", "offset": 3}, {"offset": -1}, {"inode": None}, {"number": 1}):
        assert LogFile(path, position).read() == []
    with pytest.raises(OSError, match="neither a regular file"):
        LogFile(tmp_path, {}).read()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="neither a regular file"):
        LogFile(tmp_path / "fifo", {}).read()


def test_records_of_the_kernel_are_read_and_those_of_processes_are_not(tmp_path):
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    saved = {"boot_id": boot_id(), "number": 7}
    log = Kmsg(path, saved)
    assert log.position == {}
    assert log.read() == []
    writer = os.open(path, os.O_WRONLY)

    def reads(record):
        os.write(writer, record)
        return log.read()

    assert reads(b"6,7,99,-;before the restart\n") == []
    assert reads(b"3,8,100,-;NVRM: Xid (PCI:0000:3b:00): 79, ...\n KEY=1\n") == [
        "NVRM: Xid (PCI:0000:3b:00): 79, ..."
    ]
    assert reads(b"14,9,100,-;NVRM: Xid (PCI:0000:3b:00): 79, forged by a process\n") == []
    for odd in (b"\n", b";\n", b"a,b;c\n", b"3,8,100,-;again\n", b"\xff\xfe\n"):
        assert reads(odd) == []
    assert log.position == {"boot_id": boot_id(), "number": 9}

    other_boot = Kmsg(path, {"boot_id": "another", "number": 10_000})
    other_boot.read()
    os.write(writer, b"3,1,5,-;after a restart of the machine\n")
    assert other_boot.read() == ["after a restart of the machine"]
    first = Kmsg(path, {})
    os.write(writer, b"3,2,5,-;before the first start of the agent\n")
    assert first.read() == []
    os.write(writer, b"3,3,5,-;after it\n")
    assert first.read() == ["after it"]


# The monitor -------------------------------------------------------------------------------------


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_lines_are_read_again_by_the_next_agent_until_their_signals_are_recorded(tmp_path):
    path = tmp_path / "kern.log"
    path.touch()
    monitor = HealthMonitor(options(tmp_path, kernel_log=path))
    monitor.read_log()
    append(path, "noise\n" + XID.format(BUSES[1], 79) + XID.format("0000:77:00", 79))
    monitor.read_log()
    assert rows(monitor) == [(1, "failed", "Xid 79")]

    second = HealthMonitor(options(tmp_path, kernel_log=path))  # the agent was killed
    second.read_log()
    assert rows(second) == [(1, "failed", "Xid 79")]
    assert second.signals_id != monitor.signals_id
    second.acknowledge(second.signals_id, 1)
    second.read_log()
    third = HealthMonitor(options(tmp_path, kernel_log=path))
    third.read_log()
    assert rows(third) == []


def test_a_log_that_cannot_be_read_is_logged_once_and_read_when_it_can_be(tmp_path, caplog):
    path = tmp_path / "kern.log"
    monitor = HealthMonitor(options(tmp_path, kernel_log=path))
    for _ in range(3):
        monitor.read_log()
    assert [text for text, _ in logged(caplog)] == ["health of devices: not read"]
    append(path, XID.format(BUSES[0], 79))
    monitor.read_log()

    assert rows(monitor) == [(0, "failed", "Xid 79")]
    assert logged(caplog)[-1][0] == "health of devices: read again"


def test_a_damaged_position_and_a_state_folder_that_cannot_be_written(
    tmp_path, caplog, monkeypatch
):
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    (tmp_path / POSITION).write_text("{]")

    def full(*_args, **_more):
        raise OSError("No space left on device")

    monkeypatch.setattr("presage.schedulers.live.agent.health.health_monitor.write_json", full)
    monitor = HealthMonitor(options(tmp_path, kernel_log=path))
    for _ in range(3):
        monitor.read_log()
    append(path, XID.format(BUSES[0], 48))
    monitor.read_log()
    assert rows(monitor) == [(0, "degraded", "Xid 48")]
    assert [error for _, error in logged(caplog)] == ["No space left on device"]


def test_nodes_without_addresses_read_no_log(tmp_path):
    monitor = HealthMonitor(options(tmp_path, (Slot("cpu-1", GIB, (0,)),)))
    monitor.read_log()
    monitor.watch_driver(lambda: None)

    assert monitor.signals() == []
    assert not (tmp_path / POSITION).exists()


def test_severities_of_signals_are_those_of_the_protocol():
    core = HealthCore(CPUS, "s")
    core.note([HealthSignal(BUSES[0], "xid", one, one.value) for one in Severity], 0.0)

    assert {one.severity for one in core.pending} == {one.value for one in Severity}


# Tasks on withdrawn devices ----------------------------------------------------------------------


def test_tasks_on_a_withdrawn_device_end_and_none_is_placed_there():
    node = Node()
    node.order("one", 1000)
    node.order("two", 1000, device=1)
    node.apply(1.0)
    hit = node.allocation("one").device
    node.apply(2.0, withdrawn=[hit, 7, -1])

    assert node.task("one").end == f"device {hit} is withdrawn"
    assert not node.task("two").end
    node.order("three", 100, device=hit)
    node.apply(3.0, withdrawn=[hit])
    assert node.task("three").step is Step.WAITING
    node.core.observe(("one", 1), Observation(2.0, 0.0, 0.0, None, 1, 1, pb.Exit()), 4.0)
    node.apply(4.0, withdrawn=[hit])
    assert node.task("three").step is Step.WAITING
    node.apply(5.0)  # the device is in service again
    assert node.allocation("three").device == hit
