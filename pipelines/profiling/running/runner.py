"""Where a campaign's runs are made: here, or on the machines of a cluster."""

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
    """Makes runs on devices of one kind, one at a time on each.

    Attributes
    ----------
    device : Device
        As detected; all devices are of its kind.
    whole_share : Share
        All of a device that one job can be given: of a GPU in MIG mode one slice.
    machines : collection of str
        Digests of the machines that the devices are in.
    slots : int
        How many runs can be under way; it may shrink when a machine is lost.
    """

    device: Device
    whole_share: Share

    @property
    def machines(self) -> Collection[str]: ...  # noqa: D102 - above

    @property
    def slots(self) -> int: ...  # noqa: D102

    def require(self, shares: Collection[Share]) -> None:
        """Refuse a campaign that asks for a share which its devices cannot give."""

    def calibrate(self, wanted: Collection[str], *, patience_s: float) -> list[Row]:
        """Rows of ``devices`` of those machines."""

    def start(self, work: Work, *, seconds_left: float) -> None:
        """Begin a run; at most ``slots`` may be under way."""

    def wait(self) -> Outcome:
        """The next run to end, of those under way."""


# By a campaign's name, how its runs are made, and the folder that they go to.
OpenRunner = Callable[[str, RunOptions, Path], AbstractContextManager[Runner]]


class LocalRunner:
    """Makes runs in this machine, each when it is waited for."""

    slots = 1

    def __init__(self, campaign: str, options: RunOptions) -> None:
        self._profiler = Profiler(campaign, options)
        self.device = self._profiler.device
        self.whole_share = self._profiler.whole_share
        self.machines: Collection[str] = (self._profiler.machine,)
        self._started: deque[tuple[Work, float]] = deque()

    def require(self, shares: Collection[Share]) -> None:  # noqa: D102 - as in Runner
        self._profiler.require(shares)

    def calibrate(self, wanted: Collection[str], *, patience_s: float) -> list[Row]:  # noqa: D102
        return [self._profiler.calibrate(patience_s=patience_s)] if wanted else []

    def start(self, work: Work, *, seconds_left: float) -> None:  # noqa: D102
        self._started.append((work, seconds_left))

    def wait(self) -> Outcome:  # noqa: D102
        work, seconds_left = self._started.popleft()
        return self._profiler.measure(work, seconds_left=seconds_left)

    @contextmanager
    def alone_on_device(self, folder: Path) -> Iterator[None]:
        """Keep other profilers off the device."""
        with self._profiler.alone_on_device(folder):
            yield


@contextmanager
def local_runner(campaign: str, options: RunOptions, folder: Path) -> Iterator[Runner]:
    """The device of this machine, kept from other profilers while it is used."""
    runner = LocalRunner(campaign, options)
    with runner.alone_on_device(folder):
        yield runner
