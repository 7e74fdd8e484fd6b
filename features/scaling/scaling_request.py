"""Request for the step times of one job at several sizes, and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from presage.errors import InvalidJobError
from presage.features.device.device import Device
from presage.features.forecast import Forecast
from presage.features.job.job_description import FP32_BYTES, JobFeatures

MAX_GPUS = 65_536
MAX_SIZES = 256  # of a request; measured ones count separately
MAX_BATCH = 2**40
LEAST_BATCH = 1e-3  # a mean over GPUs; far smaller ones make forecasts infinite
_LEAST_S, _MOST_S = 1e-9, 1e9  # of a measured step


@dataclass(frozen=True, slots=True)
class GpuPlacement:
    """Numbers of GPUs and of nodes, as even as possible on all nodes.

    Attributes
    ----------
    batch_size : float
        Samples of each GPU in a step; 0 if all GPUs together process as many as the request.
    """

    gpus: int
    nodes: int = 1
    batch_size: float = 0.0

    def check(self, where: str) -> None:
        """Raise InvalidJobError if the placement is impossible; errors call it ``where``."""
        if not 1 <= self.gpus <= MAX_GPUS:
            raise InvalidJobError(f"{where}.gpus={self.gpus}, must be within 1 and {MAX_GPUS}")
        if not 1 <= self.nodes <= self.gpus:
            raise InvalidJobError(
                f"{where}.nodes={self.nodes}, must be within 1 and gpus={self.gpus}; "
                "count only nodes with at least one GPU of the job"
            )
        if self.batch_size != 0 and not LEAST_BATCH <= self.batch_size <= MAX_BATCH:
            raise InvalidJobError(
                f"{where}.batch_size={self.batch_size}, must be within {LEAST_BATCH} and "
                f"{MAX_BATCH:.3g}, or 0 for the requested global batch over the GPUs"
            )


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Measured step time of the job at a placement, in seconds."""

    placement: GpuPlacement
    step_time_s: float


@dataclass(frozen=True, slots=True)
class ScalingRequest:
    """A job, the device of all its GPUs, and the placements to predict.

    Attributes
    ----------
    job : JobFeatures
        ``batch_size`` is that of each GPU of the requested placement.
    requested : GpuPlacement
        Placement to which speed-ups refer.
    measured : tuple of MeasuredStep
        Steps of this job so far; the curve need not be monotone.

    Raises
    ------
    InvalidJobError
        A placement is impossible, a measured step is not a finite number > 0, or there are too few
        or too many placements.
    """

    job: JobFeatures
    device: Device
    placements: tuple[GpuPlacement, ...]
    requested: GpuPlacement = GpuPlacement(1)
    measured: tuple[MeasuredStep, ...] = ()

    def __post_init__(self) -> None:
        check_scaling(self.placements, self.requested, self.measured)
        largest = max(map(self.batch_of, self.every_placement()))
        if largest > MAX_BATCH:
            raise InvalidJobError(
                f"a placement has {largest:.3g} samples on each GPU, must be at most "
                f"{MAX_BATCH:.3g}; correct batch_size"
            )

    @property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients in single precision; 0 for inference."""
        return float(self.job.parameters * FP32_BYTES) if self.job.trains else 0.0

    @property
    def largest_measured(self) -> int:
        """Largest number of GPUs that was measured, or else requested."""
        return max((one.placement.gpus for one in self.measured), default=self.requested.gpus)

    def every_placement(self) -> Iterator[GpuPlacement]:
        """Yield the requested placement, those to predict, and the measured ones."""
        yield self.requested
        yield from self.placements
        for one in self.measured:
            yield one.placement

    def batch_of(self, placement: GpuPlacement) -> float:
        """Return the samples of each GPU at a placement."""
        if placement.batch_size:
            return placement.batch_size
        return (
            (self.requested.batch_size or self.job.job.batch_size)
            * self.requested.gpus
            / placement.gpus
        )


def check_scaling(
    placements: tuple[GpuPlacement, ...],
    requested: GpuPlacement,
    measured: tuple[MeasuredStep, ...],
) -> None:
    """Raise InvalidJobError as :class:`ScalingRequest`; errors name the field of the request."""
    if not 1 <= len(placements) <= MAX_SIZES:
        raise InvalidJobError(
            f"placements has {len(placements)} entries, must have 1 to {MAX_SIZES}"
        )
    if len(measured) > MAX_SIZES:
        raise InvalidJobError(
            f"measured has {len(measured)} entries, must have at most {MAX_SIZES}; "
            "send the median of each placement"
        )
    requested.check("requested")
    for i, placement in enumerate(placements):
        placement.check(f"placements[{i}]")
    for i, one in enumerate(measured):
        one.placement.check(f"measured[{i}].placement")
        if not _LEAST_S <= one.step_time_s <= _MOST_S:  # false for NaN
            raise InvalidJobError(
                f"measured[{i}].step_time_s={one.step_time_s}, must be a finite number of seconds "
                f"within {_LEAST_S:g} and {_MOST_S:g}"
            )


@dataclass(frozen=True, slots=True)
class ScalingForecast:
    """Forecast of a job at one placement.

    Attributes
    ----------
    step_time_s : Forecast
        Seconds of a step, as one measurement of it would be.
    speedup : Forecast
        Samples per second over those of the requested placement.
    sync_share : float
        Share of the step that synchronization accounts for, within [0, 1].
    extrapolated : bool
        Whether the placement has more than twice the GPUs of the largest measured one; without
        measurements, of the requested one.
    """

    step_time_s: Forecast
    speedup: Forecast
    sync_share: float
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class ScalingForecasts:
    """Forecasts of all placements of a request, in order.

    Attributes
    ----------
    fitted : bool
        Whether the law comes with the release; else it is the built-in one.
    """

    forecasts: tuple[ScalingForecast, ...]
    release_id: str
    coverage: float
    fitted: bool
