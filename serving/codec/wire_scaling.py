"""Conversion of requests for the scaling of a job, and of their responses, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from presage.errors import InvalidJobError
from presage.features.forecast import Forecast
from presage.features.scaling.scaling_request import (
    MAX_SIZES,
    GpuPlacement,
    MeasuredStep,
    ScalingForecast,
    ScalingForecasts,
    ScalingRequest,
)
from presage.serving.codec.request_limits import OPS_A_ROW
from presage.serving.codec.wire_requests import Devices
from presage.serving.codec.wire_values import read_device, read_job, write_device, write_job
from presage.serving.predictor.prediction_backend import DEFAULT_COVERAGE
from presage.serving.v1 import prediction_pb2 as pb

_PREDICTED_BATCHES = 10  # for which the step on one GPU is predicted, at most


def write_scaling(request: ScalingRequest, coverage: float) -> pb.PredictScalingRequest:
    """Return the message of a request."""
    return pb.PredictScalingRequest(
        job=write_job(request.job),
        device=write_device(request.device),
        requested=_write_placement(request.requested),
        placements=map(_write_placement, request.placements),
        measured=[
            pb.MeasuredStep(placement=_write_placement(one.placement), step_time_s=one.step_time_s)
            for one in request.measured
        ],
        coverage=coverage,
    )


def _write_placement(placement: GpuPlacement) -> pb.GpuPlacement:
    return pb.GpuPlacement(
        gpus=placement.gpus, nodes=placement.nodes, batch_size=placement.batch_size
    )


def count_scaling(request: pb.PredictScalingRequest) -> int:
    """Return the number of rows that a request asks for.

    Raises
    ------
    InvalidJobError
        There are no rows or too many.
    """
    for name, least in (("placements", 1), ("measured", 0)):
        count = len(getattr(request, name))
        if not least <= count <= MAX_SIZES:
            raise InvalidJobError(f"{name} has {count} entries, must have {least} to {MAX_SIZES}")
    return len(request.placements)


def scaling_work(request: pb.PredictScalingRequest) -> int:
    """Return the cost of a request, in rows of a job with ``OPS_A_ROW`` operator rows.

    That of the fit grows with the square of the placements.
    """
    sizes = len(request.placements) + len(request.measured)
    visits = _PREDICTED_BATCHES * len(request.job.op_stats)
    # Features are scaled to each batch size one operator row at a time.
    return max(_PREDICTED_BATCHES, 4 * visits // OPS_A_ROW) + sizes**2 // 256


def read_scaling(request: pb.PredictScalingRequest, devices: Devices) -> ScalingRequest:
    """Parse a request.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        A value is invalid. The error names its field and repeats no text of the request.
    """
    if not request.HasField("job"):
        raise InvalidJobError("job is missing; send the job whose scaling is to be predicted")
    if not request.HasField("device"):
        raise InvalidJobError("device is missing; send the kind of the job's GPUs")
    if request.device.HasField("share"):
        raise InvalidJobError(
            "device.share is set, but jobs on several GPUs are predicted on exclusive ones; "
            "leave it out"
        )
    measured = []
    for i, row in enumerate(request.measured):
        if not row.HasField("placement"):
            raise InvalidJobError(f"measured[{i}].placement is missing; send its GPUs and nodes")
        measured.append(MeasuredStep(_read_placement(row.placement), row.step_time_s))
    return ScalingRequest(
        read_job(request.job, "job"),
        read_device(request.device, devices.known_device, "device", similar=devices.similar_kinds),
        tuple(map(_read_placement, request.placements)),
        _read_placement(request.requested) if request.HasField("requested") else GpuPlacement(1),
        tuple(measured),
    )


def _read_placement(row: pb.GpuPlacement) -> GpuPlacement:
    return GpuPlacement(row.gpus, row.nodes or 1, row.batch_size)


def read_coverage(request: pb.PredictScalingRequest) -> float:
    """Return the requested coverage of the intervals."""
    return request.coverage if request.HasField("coverage") else DEFAULT_COVERAGE


def write_scaling_forecasts(answer: ScalingForecasts) -> pb.PredictScalingResponse:
    """Return the message of a response."""
    return pb.PredictScalingResponse(
        forecasts=[
            pb.ScalingForecast(
                step_time_s=_write_forecast(one.step_time_s),
                speedup=_write_forecast(one.speedup),
                sync_share=one.sync_share,
                extrapolated=one.extrapolated,
            )
            for one in answer.forecasts
        ],
        release_id=answer.release_id,
        coverage=answer.coverage,
        law_fitted=answer.fitted,
    )


def _write_forecast(one: Forecast) -> pb.Forecast:
    return pb.Forecast(
        median=one.median, low=one.low, high=one.high, unit=one.unit, in_domain=one.in_domain,
        domain_error_ratio=one.domain_error_ratio,
    )  # fmt: skip


def read_scaling_forecasts(
    placements: int,
) -> Callable[[pb.PredictScalingResponse], ScalingForecasts]:
    """Return the parser of a response with that many forecasts."""

    def read(response: pb.PredictScalingResponse) -> ScalingForecasts:
        if len(response.forecasts) != placements:
            raise ValueError(f"{len(response.forecasts)} forecasts for {placements} placements")
        return ScalingForecasts(
            tuple(_read_rows(response)), response.release_id, response.coverage,
            response.law_fitted,
        )  # fmt: skip

    return read


def _read_rows(response: pb.PredictScalingResponse) -> Sequence[ScalingForecast]:
    def read(row: pb.Forecast) -> Forecast:
        return Forecast(
            row.median, row.low, row.high, row.unit, row.in_domain, response.release_id,
            response.coverage, domain_error_ratio=row.domain_error_ratio,
        )  # fmt: skip

    return [
        ScalingForecast(read(row.step_time_s), read(row.speedup), row.sync_share, row.extrapolated)
        for row in response.forecasts
    ]
