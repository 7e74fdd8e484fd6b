"""Measures runs on the device of this machine, and makes rows of them."""

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
from presage.pipelines.profiling.running import rows
from presage.pipelines.profiling.running.device_lock import device_locked
from presage.pipelines.profiling.running.gpu_sharing import environment_of, whole_share
from presage.pipelines.profiling.running.measure import (
    measure_alone,
    measure_together,
    wait_until_quiet,
)
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.run_results import RunResult
from presage.pipelines.profiling.running.work import Outcome, Row, Work
from presage.pipelines.profiling.running.worker_pool import Workers
from presage.pipelines.profiling.sampling.samplers import is_gpu, make_sampler
from presage.pipelines.profiling.zoo import parse
from presage.system.child_process import ChildFailure


class Profiler:
    """The device at hand, how runs are made on it, and what its rows say of their origin."""

    def __init__(self, campaign: str, options: RunOptions) -> None:
        require_linux()
        self.device = detect()
        self.whole_share = whole_share(self.device)
        self._options = options
        self._workers = Workers(self.device, options)
        self._context = rows.Context(
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
    def alone_on_device(self, folder: Path) -> Iterator[None]:
        """Keep other profilers off the device; ``folder`` tells them who has it."""
        with device_locked(self.device, folder), self._workers:
            yield

    def require(self, shares: Iterable[Share]) -> None:
        """Make sure that jobs can be given those shares, before any time is spent.

        Raises
        ------
        ProfilingError
            The device cannot be shared so; says what to start or set.
        """
        for share in shares:
            environment_of(share, self.device)

    def calibrate(self, *, patience_s: float) -> Row:
        """The device's row, with speeds as measured.

        Raises
        ------
        ProfilingError
            It cannot be measured.
        """
        patience_s = min(self._options.quiet_wait_s, patience_s)
        wait_until_quiet(make_sampler(self.device), self._options, patience_s=patience_s)
        try:
            # The whole device, whatever part of it jobs are given: a share scales it down.
            device = calibrate(
                self.device,
                threads=usable_cores(),
                environment=environment_of(self.whole_share, self.device),
            )
        except ChildFailure as failure:
            raise ProfilingError(
                f"device {self.device.kind!r} cannot be calibrated: {failure}; "
                "see what torch says with `presage doctor`"
            ) from failure
        return rows.device_row(device, self._context, time.time())

    def measure(self, work: Work, *, seconds_left: float) -> Outcome:
        """Make a run; after ``seconds_left`` nothing is measured again, nor quiet waited for."""
        began_s = time.monotonic()
        until_s = began_s + seconds_left
        if work.alone:
            result = measure_alone(
                parse(work.jobs[0]), self.device, self._options,
                window_s=work.window_s, share=work.shares[0], until_s=until_s,
                workers=self._workers,
            )  # fmt: skip
            made = [rows.execution_row(result, work.shares[0], self._context, time.time())]
        else:
            result = measure_together(
                [parse(job) for job in work.jobs], self.device, self._options,
                window_s=work.window_s, shares=work.shares, until_s=until_s,
                workers=self._workers,
            )  # fmt: skip
            made = rows.colocation_rows(result, work, self._context, time.time())
        return Outcome(
            work=work,
            rows=tuple(made),
            failed=result.failed,
            foreign_load=result.foreign_load,
            messages=tuple(_messages(result)),
            taken_s=time.monotonic() - began_s,
        )


def undivided_share(device: Device, threads: int, whole: Share, *, mode: str) -> Share:
    """What a job gets that is given no part of its own: with fewer threads than cores, fewer.

    ``whole`` is all of the device that one job can be given, as :func:`whole_share` finds it where
    the device is, and ``mode`` the sharing mode if that is not a MIG slice.
    """
    if is_gpu(device):
        return whole if whole.mode == "mig" else Share(mode=mode)
    fraction = threads / device.cores
    return Share(fraction, mode if fraction == 1.0 else "cpu-quota")


def _messages(result: RunResult) -> Iterator[str]:
    for member in result.members:
        if member.failure:
            yield f"{member.job}: {member.failure} ({member.message})"
        elif member.step_time_median_s is not None:
            yield f"{member.job} {1e3 * member.step_time_median_s:.2f} ms"
