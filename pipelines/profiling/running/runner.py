"""Runners of a campaign: on this machine, or on the machines of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from presage.features.device.device import Device, Share
from presage.pipelines.profiling.running.profiler import Profiler
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.work import Outcome, Row, Work


class Runner(Protocol):
    """Makes runs on devices of one kind, sequentially on each device.

    Attributes
    ----------
    device : Device
        As detected; all devices are of its kind.
    full_share : Share
        Largest share of a device for one job: on a GPU in MIG mode one slice.
    machines : collection of str
        Digests of the devices' machines.
    slots : int
        Maximum number of concurrent runs; it decreases if a machine is lost.
    """

    device: Device
    full_share: Share

    @property
    def machines(self) -> Collection[str]: ...  # noqa: D102 - above

    @property
    def slots(self) -> int: ...  # noqa: D102

    def require(self, shares: Collection[Share]) -> None:
        """Raise if the devices do not support one of the shares."""

    def calibrate(self, machines: Collection[str], *, patience_s: float) -> list[Row]:
        """Return rows of ``devices`` of these machines."""

    def start(self, work: Work, *, seconds_left: float) -> None:
        """Start a run; at most ``slots`` may be in progress."""

    def wait(self) -> Outcome:
        """Return the next finished run."""


# Opens a runner, given a campaign's name, the options of runs, and the target folder.
OpenRunner = Callable[[str, RunOptions, Path], AbstractContextManager[Runner]]


class LocalRunner:
    """Makes runs on this machine, each when its result is awaited."""

    slots = 1

    def __init__(self, campaign: str, options: RunOptions) -> None:
        self._profiler = Profiler(campaign, options)
        self.device = self._profiler.device
        self.full_share = self._profiler.full_share
        self.machines: Collection[str] = (self._profiler.machine,)
        self._started: deque[tuple[Work, float]] = deque()

    def require(self, shares: Collection[Share]) -> None:  # noqa: D102 - as in Runner
        self._profiler.require(shares)

    def calibrate(self, machines: Collection[str], *, patience_s: float) -> list[Row]:  # noqa: D102
        return [self._profiler.calibrate(patience_s=patience_s)] if machines else []

    def start(self, work: Work, *, seconds_left: float) -> None:  # noqa: D102
        self._started.append((work, seconds_left))

    def wait(self) -> Outcome:  # noqa: D102
        work, seconds_left = self._started.popleft()
        return self._profiler.measure(work, seconds_left=seconds_left)

    @contextmanager
    def lock_device(self, folder: Path) -> Iterator[None]:
        """Lock the device against other profilers."""
        with self._profiler.lock_device(folder):
            yield


@contextmanager
def local_runner(campaign: str, options: RunOptions, folder: Path) -> Iterator[Runner]:
    """Yield a runner of this machine's device, locked against other profilers."""
    runner = LocalRunner(campaign, options)
    with runner.lock_device(folder):
        yield runner
