"""Reads the kernel log and the driver of a node: health signals, temperature and power."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from presage.schedulers.health.device_reading import DeviceReading, read_devices
from presage.schedulers.health.health_signal import HealthSignal
from presage.schedulers.health.memory_health import read_nvml
from presage.schedulers.health.xid import parse_xid, xid_signal
from presage.schedulers.live.agent.agent_options import AgentOptions
from presage.schedulers.live.agent.connection.lease import boottime_s
from presage.schedulers.live.agent.health.health_core import HealthCore
from presage.schedulers.live.agent.health.kernel_log import KMSG, KernelLog, open_kernel_log
from presage.schedulers.live.agent.isolation.task_usage import load_pynvml
from presage.schedulers.live.agent.tasks.json_file import read_json, write_json
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import log

POSITION = "kernel-log"  # name of a file in the state folder
DRIVER_S = 5.0  # between readings of the driver


class HealthMonitor:
    """Sources of health signals, and the signals to report.

    The position in the kernel log is saved once all signals before it are recorded, so that an
    agent that is killed reads the others again. Calls may come from several threads.

    Parameters
    ----------
    nvml : module
        Replacement for pynvml; None for pynvml itself, if the node has GPUs.
    """

    def __init__(self, options: AgentOptions, nvml: Any = None) -> None:
        self._core = HealthCore(options.slots, secrets.token_hex(8))
        self._lock = threading.Lock()  # of the core
        has_gpus = any(slot.cuda is not None for slot in options.slots)
        self._nvml = load_pynvml() if nvml is None and has_gpus else nvml
        self._position = options.state / POSITION
        self._saved: Mapping[str, object] = read_json(self._position) or {}
        has_address = any(slot.pci_address for slot in options.slots)
        path = options.kernel_log or (KMSG if has_address else None)
        self._path, self._log = path, _reader(path, self._saved)
        self._failures: dict[str, str] = {}  # last error of each source, which was logged
        self._readings: Mapping[str, DeviceReading] = {}  # by UUID

    @property
    def last_number(self) -> int:
        """Number of the last signal so far."""
        return self._core.last_number

    @property
    def signals_id(self) -> str:
        """Id of the sequence of numbers."""
        return self._core.signals_id

    def signals(self) -> list[pb.HealthSignal]:
        """Return the signals to report."""
        with self._lock:
            return list(self._core.pending)

    def reading(self, device_id: str) -> DeviceReading:
        """Return the last temperature and power of a GPU, as far as they are known."""
        return self._readings.get(device_id, DeviceReading())

    def acknowledge(self, signals_id: str, number: int) -> None:
        """Remove signals that the controller has recorded."""
        with self._lock:
            self._core.acknowledge(signals_id, number)

    def read_log(self) -> None:
        """Read the new lines of the kernel log; an error is logged once."""
        if self._log is None:
            return
        try:
            lines = self._log.read()
        except OSError as error:
            self._note_failure(f"kernel log {self._path}", str(error))
            return
        self._note_failure(f"kernel log {self._path}", "")
        with self._lock:
            unknown = self._core.note(_xid_signals(lines), boottime_s())
            is_recorded = not self._core.pending
        for device in unknown:
            log(logging.WARNING, "error of a device that is not of this node", device=device)
        position = self._log.position
        if is_recorded and position and position != self._saved:
            self._save(position)

    def watch_driver(self, changed: Callable[[], object]) -> None:
        """Read the driver periodically, in a thread of its own: it may hang for a failed GPU.

        Parameters
        ----------
        changed : callable
            Called after new signals, in that thread.
        """
        if self._nvml is not None:
            threading.Thread(target=self._watch, args=(changed,), name="nvml", daemon=True).start()

    def read_driver(self) -> None:
        """Read the driver; an error is logged once."""
        try:
            self._nvml.nvmlInit()
            try:
                reading = read_nvml(self._nvml)
                self._readings = read_devices(self._nvml)
            finally:
                self._nvml.nvmlShutdown()
        except Exception as error:  # of the driver, or of its library
            self._readings = {}
            self._note_failure("driver", str(error) or type(error).__name__)
            return
        self._note_failure("driver", "")
        with self._lock:
            self._core.note_reading(reading, boottime_s())

    def _watch(self, changed: Callable[[], object]) -> None:
        while True:
            before = self.last_number
            self.read_driver()
            if self.last_number != before:
                try:
                    changed()
                except RuntimeError:  # the agent has ended
                    return
            time.sleep(DRIVER_S)

    def _save(self, position: Mapping[str, object]) -> None:
        try:
            write_json(self._position, position)
        except OSError as error:
            self._note_failure("position in the kernel log", str(error))
        else:
            self._saved = dict(position)
            self._note_failure("position in the kernel log", "")

    def _note_failure(self, source: str, error: str) -> None:
        """Log a failure of a source when it begins, and its end."""
        if error and source not in self._failures:
            log(logging.WARNING, "health of devices: not read", source=source, error=error)
            self._failures[source] = error
        elif not error and self._failures.pop(source, ""):
            log(logging.INFO, "health of devices: read again", source=source)


def _reader(path: Path | None, position: Mapping[str, object]) -> KernelLog | None:
    return None if path is None else open_kernel_log(path, position)


def _xid_signals(lines: Iterable[str]) -> Iterator[HealthSignal]:
    """Yield the signals of the Xid errors in lines, with PCI addresses as devices."""
    for line in lines:
        if (event := parse_xid(line)) is not None:
            yield xid_signal(event.bus, event.code)
