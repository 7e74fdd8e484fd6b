"""Profiler of this machine's device: makes runs and converts them to rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from presage.errors import ProfilingError
from presage.features.device.device import Device, Share, usable_cores
from presage.features.device.local_device import detect
from presage.pipelines.profiling.calibrate import calibrate
from presage.pipelines.profiling.machine import machine_digest, require_linux, versions
from presage.pipelines.profiling.running import profile_rows
from presage.pipelines.profiling.running.device_lock import lock_device
from presage.pipelines.profiling.running.gpu_sharing import environment_of, full_share
from presage.pipelines.profiling.running.measure import (
    measure_colocated,
    measure_solo,
    wait_until_quiet,
)
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.run_results import RunResult
from presage.pipelines.profiling.running.work import Outcome, Row, Work
from presage.pipelines.profiling.running.worker_pool import Workers
from presage.pipelines.profiling.sampling.samplers import is_gpu, make_sampler
from presage.pipelines.profiling.zoo import parse
from presage.system.processes.child_process import ChildFailure


class Profiler:
    """Profiler of this machine's device, with the options of runs and provenance of rows."""

    def __init__(self, campaign: str, options: RunOptions) -> None:
        require_linux()
        self.device = detect()
        self.full_share = full_share(self.device)
        self._options = options
        self._workers = Workers(self.device, options)
        self._context = profile_rows.Context(
            device=self.device,
            campaign=campaign,
            machine=machine_digest(self.device),
            versions=versions(self.device),
        )

    @property
    def machine(self) -> str:
        """Digest of this machine."""
        return self._context.machine

    @contextmanager
    def lock_device(self, folder: Path) -> Iterator[None]:
        """Lock the device against other profilers; ``folder`` is recorded in the lock."""
        with lock_device(self.device, folder), self._workers:
            yield

    def require(self, shares: Iterable[Share]) -> None:
        """Check that these shares are available, before any time is spent.

        Raises
        ------
        ProfilingError
            The device does not support a share; the message contains the remedy.
        """
        for share in shares:
            environment_of(share, self.device)

    def calibrate(self, *, patience_s: float) -> Row:
        """Return the device's row with measured speeds.

        Raises
        ------
        ProfilingError
            The device cannot be calibrated.
        """
        patience_s = min(self._options.quiet_wait_s, patience_s)
        wait_until_quiet(make_sampler(self.device), self._options, patience_s=patience_s)
        try:
            # Calibrate the full device: shares of jobs scale its figures down.
            device = calibrate(
                self.device,
                threads=usable_cores(),
                environment=environment_of(self.full_share, self.device),
            )
        except ChildFailure as failure:
            raise ProfilingError(
                f"device {self.device.kind!r} cannot be calibrated: {failure}; "
                "check torch with `presage doctor`"
            ) from failure
        return profile_rows.device_row(device, self._context, time.time())

    def measure(self, work: Work, *, seconds_left: float) -> Outcome:
        """Make a run; after ``seconds_left``, neither repeat a window nor wait for quiet."""
        began_s = time.monotonic()
        until_s = began_s + seconds_left
        if work.solo:
            result = measure_solo(
                parse(work.jobs[0]), self.device, self._options,
                window_s=work.window_s, share=work.shares[0], until_s=until_s,
                workers=self._workers,
            )  # fmt: skip
            made = [profile_rows.execution_row(result, work.shares[0], self._context, time.time())]
        else:
            result = measure_colocated(
                [parse(job) for job in work.jobs], self.device, self._options,
                window_s=work.window_s, shares=work.shares, until_s=until_s,
                workers=self._workers,
            )  # fmt: skip
            made = profile_rows.colocation_rows(result, work, self._context, time.time())
        return Outcome(
            work=work,
            rows=tuple(made),
            failed=result.failed,
            foreign_load=result.foreign_load,
            messages=tuple(_messages(result)),
            duration_s=time.monotonic() - began_s,
        )


def undivided_share(device: Device, threads: int, full: Share, *, mode: str) -> Share:
    """Return the share of a job on an undivided device: fewer threads than cores are less.

    ``full`` is the largest share for one job, from :func:`full_share` on the device's machine;
    ``mode`` is the sharing mode unless that is a MIG slice.
    """
    if is_gpu(device):
        return full if full.mode == "mig" else Share(mode=mode)
    fraction = threads / device.cores
    return Share(fraction, mode if fraction == 1.0 else "cpu-quota")


def _messages(result: RunResult) -> Iterator[str]:
    for member in result.members:
        if member.failure:
            yield f"{member.job}: {member.failure} ({member.message})"
        elif member.step_time_median_s is not None:
            yield f"{member.job} {1e3 * member.step_time_median_s:.2f} ms"
