"""Runner of a campaign on the nodes of a Ray cluster (the extra ``ray``).

Every node offers as many ``presage_device`` as it has devices to measure
(``ray start --resources='{"presage_device": 1}'``); one actor holds each device, so runs on it are
sequential. Results are returned as they are made. If a node is lost, its run is repeated on
another node.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from presage.errors import ProfilingError
from presage.features.device.device import Device, Share
from presage.pipelines.profiling.running.profiler import Profiler
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.runner import OpenRunner, Runner
from presage.pipelines.profiling.running.work import Outcome, Row, Work
from presage.system.processes.ray_connection import RayConnectionError, ray_connection

log = logging.getLogger(__name__)

RESOURCE = "presage_device"
START_S = 120.0  # maximum time for an actor to import torch and detect its device


class DeviceActor:
    """Profiler of one device, in a process of its node."""

    def __init__(self, campaign: str, options: RunOptions) -> None:
        self._profiler = Profiler(campaign, options)

    def facts(self) -> tuple[Device, Share, str]:
        """Return the device, its largest share for one job, and its machine's digest."""
        return self._profiler.device, self._profiler.full_share, self._profiler.machine

    def require(self, shares: Collection[Share]) -> None:
        """Do the same as :meth:`Profiler.require`."""
        self._profiler.require(shares)

    def calibrate(self, patience_s: float) -> Row:
        """Do the same as :meth:`Profiler.calibrate`."""
        return self._profiler.calibrate(patience_s=patience_s)

    def measure(self, work: Work, seconds_left: float) -> Outcome:
        """Do the same as :meth:`Profiler.measure`."""
        return self._profiler.measure(work, seconds_left=seconds_left)


def ray_runner(address: str) -> OpenRunner:
    """Return an opener of a runner on the cluster at ``address`` ("auto" for this machine's)."""

    def open_runner(
        campaign: str, options: RunOptions, folder: Path
    ) -> AbstractContextManager[Runner]:
        return _connected(address, campaign, options)

    return open_runner


@contextmanager
def _connected(address: str, campaign: str, options: RunOptions) -> Iterator[Runner]:
    try:
        with ray_connection(address):
            yield RayRunner(campaign, options)
    except RayConnectionError as error:
        raise ProfilingError(
            f"no Ray cluster at {address!r} ({error}); start one with `ray start --head "
            f"--resources='{{\"{RESOURCE}\": 1}}'`"
        ) from error


class RayRunner:
    """Runner on all devices of the cluster."""

    def __init__(self, campaign: str, options: RunOptions) -> None:
        import ray

        self._ray: Any = ray
        self._campaign, self._options = campaign, options
        resources = self._ray.cluster_resources()
        devices = int(resources.get(RESOURCE, 0))
        if not devices:
            raise ProfilingError(
                f"the Ray cluster offers no {RESOURCE!r}; start its nodes with "
                f"`ray start ... --resources='{{\"{RESOURCE}\": 1}}'`, one per device"
            )
        self._gpus = 1 if resources.get("GPU") else 0
        actors = [self._start_actor() for _ in range(devices)]
        facts = self._get_all([actor.facts.remote() for actor in actors], timeout_s=START_S)
        self._machines = dict(zip(actors, (machine for *_, machine in facts), strict=True))
        self.device, self.full_share, _ = facts[0]
        self._check_same_kind({device.kind for device, *_ in facts})
        self._free: deque[Any] = deque(actors)
        self._waiting: deque[tuple[Work, float]] = deque()
        self._running: dict[Any, tuple[Any, Work, float]] = {}
        self._reviving: dict[Any, Any] = {}

    @property
    def machines(self) -> Collection[str]:
        """Digests of the machines."""
        return sorted(set(self._machines.values()))

    @property
    def slots(self) -> int:
        """Number of available devices."""
        return max(1, len(self._machines))

    def require(self, shares: Collection[Share]) -> None:
        """Raise if a device does not support one of the shares."""
        self._get_all([actor.require.remote(shares) for actor in self._free])

    def calibrate(self, machines: Collection[str], *, patience_s: float) -> list[Row]:
        """Return rows of ``devices``: one device of every named machine, calibrated in parallel."""
        actors = {self._machines[actor]: actor for actor in self._free}
        return self._get_all([actors[m].calibrate.remote(patience_s) for m in sorted(machines)])

    def start(self, work: Work, *, seconds_left: float) -> None:
        """Send a run to a free device, or queue it until one is free."""
        self._waiting.append((work, seconds_left))
        self._send()

    def wait(self) -> Outcome:
        """Return the next finished run; runs of lost devices are repeated.

        Raises
        ------
        ProfilingError
            No device is left, or a device cannot measure.
        """
        while True:
            self._send()
            # A run may take long; a device that comes back does so soon, or never.
            patience_s = None if self._running else START_S
            pending = [*self._running, *self._reviving]
            ready, _ = self._ray.wait(pending, timeout=patience_s) if pending else ([], [])
            if not ready:
                raise ProfilingError(
                    "no device of the Ray cluster is left; all results so far are in the tables: "
                    "start the nodes again and run the same command"
                )
            if ready[0] in self._reviving:
                self._add_returned(ready[0])
            elif (outcome := self._result(ready[0])) is not None:
                return outcome

    def _get_all(self, pending: list[Any], *, timeout_s: float | None = None) -> list[Any]:
        """Return the responses of all actors, which are required before the first run."""
        try:
            return list(self._ray.get(pending, timeout=timeout_s))
        except self._ray.exceptions.RayTaskError as error:
            raise ProfilingError(str(error.cause)) from error
        except self._ray.exceptions.GetTimeoutError as error:
            raise ProfilingError(
                f"not all {RESOURCE!r} of the Ray cluster respond within {timeout_s:g} s; check "
                "with `ray status` whether another campaign holds them"
            ) from error
        except self._ray.exceptions.RayError as error:
            raise ProfilingError(
                f"a device of the Ray cluster was lost before the first run ({_line(error)}); "
                "check that Presage is installed on every node, and run the command again"
            ) from error

    def _send(self) -> None:
        while self._waiting and self._free:
            actor, (work, seconds_left) = self._free.popleft(), self._waiting.popleft()
            self._running[actor.measure.remote(work, seconds_left)] = (actor, work, seconds_left)

    def _result(self, ready: Any) -> Outcome | None:
        actor, work, seconds_left = self._running.pop(ready)
        try:
            outcome: Outcome = self._ray.get(ready)
        except self._ray.exceptions.RayTaskError as error:
            raise ProfilingError(str(error.cause)) from error
        except self._ray.exceptions.RayError as error:
            log.warning(
                "a device was lost while it ran %s: %s", " + ".join(work.jobs), _line(error)
            )
            self._machines.pop(actor)
            self._waiting.appendleft((work, seconds_left))
            replacement = self._start_actor()
            self._reviving[replacement.facts.remote()] = replacement
            return None
        self._free.append(actor)
        return outcome

    def _add_returned(self, ready: Any) -> None:
        actor = self._reviving.pop(ready)
        try:
            device, _, machine = self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            log.warning("a device did not come back: %s", _line(error))
            return
        self._check_same_kind({device.kind, self.device.kind})
        self._machines[actor] = machine
        self._free.append(actor)

    def _start_actor(self) -> Any:
        remote = self._ray.remote(DeviceActor)
        options = remote.options(resources={RESOURCE: 1}, num_cpus=0, num_gpus=self._gpus)
        return options.remote(self._campaign, self._options)

    def _check_same_kind(self, kinds: set[str]) -> None:
        if len(kinds) > 1:
            raise ProfilingError(
                f"the cluster's devices are of several kinds ({', '.join(sorted(kinds))}); offer "
                f"{RESOURCE!r} on those of one kind, and run a campaign for each"
            )


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
