"""Translation between the protocol's messages and the domain's values, both ways.

``read_*`` turns what came over the wire into checked values and names the place of what is
wrong, as in ``jobs[3].batch_size=0, must be >= 1``; ``write_*`` goes the other way. Servicer and
client use the same functions. Whole requests are in :mod:`presage.serving.wire_requests`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict

from presage.features.device import Device, Share
from presage.features.errors import (
    GraphError,
    InvalidJobError,
    PresageError,
    UnknownDeviceError,
)
from presage.features.forecast import Forecast
from presage.features.job import MEMORY_FORMATS, Job, JobFeatures, memory_of_peak
from presage.features.memory import MemoryEstimate
from presage.features.op_stats import OpStats
from presage.serving.forecasts import ColocationForecast, JobForecast, ReleaseInfo
from presage.serving.v1 import prediction_pb2 as pb

MAX_OP_ROWS = 10_000  # of one job; kinds x phases x octaves x shapes is about 2,000
MAX_TEXT = 256
MAX_PRECISIONS = 16
JOB_TEXTS = (
    "job_id", "name", "family", "framework", "precision", "graph_digest", "memory_format",
    "framework_version",
)  # fmt: skip

DeviceOf = Callable[[str], Device]


def write_job(features: JobFeatures) -> pb.Job:
    """A job as it travels."""
    job = features.job
    try:
        return pb.Job(
            job_id=job.job_id,
            name=job.name,
            family=job.family,
            framework=job.framework,
            precision=job.precision,
            batch_size=job.batch_size,
            iterations=job.iterations,
            input_elements=job.input_elements,
            graph_digest=job.graph_digest,
            memory_format=job.memory_format,
            loads_data=job.loads_data,
            framework_version=job.framework_version,
            parameters=features.parameters,
            memory=pb.Memory(**asdict(features.memory)),
            peak_live_bytes=features.peak_live_bytes,
            op_stats=[
                pb.OpStats(
                    kind=op.kind,
                    phase=op.phase,
                    intensity_octave=op.intensity_octave,
                    count=op.count,
                    input_elements_max=op.input_elements_max,
                    input_elements=op.input_elements,
                    output_elements=op.output_elements,
                    flops=op.flops,
                    bytes_moved=op.bytes_moved,
                    parameters=op.parameters,
                    shape=op.shape,
                )
                for op in features.op_stats
            ],
        )
    except (TypeError, ValueError) as error:
        raise InvalidJobError(
            f"job {job.job_id!r} cannot be sent: {error}; counts and sizes must be whole numbers "
            "below 2**63, and names valid text"
        ) from error


def read_job(row: pb.Job, where: str) -> JobFeatures:
    """A job and its operator statistics; errors call it ``where``."""
    for name in JOB_TEXTS:
        check_text(getattr(row, name), f"{where}.{name}")
    if len(row.op_stats) > MAX_OP_ROWS:
        raise InvalidJobError(
            f"{where}.op_stats has {len(row.op_stats)} rows, at most {MAX_OP_ROWS} are taken; "
            "sum operators of one kind, phase, octave and shape into one row"
        )
    op_stats, memory = _read_op_stats(row, where), _read_memory(row, where)
    try:
        job = Job(
            job_id=row.job_id,
            name=row.name,
            family=row.family,
            framework=row.framework,
            precision=row.precision,
            batch_size=row.batch_size,
            iterations=row.iterations,
            input_elements=row.input_elements,
            graph_digest=row.graph_digest,
            memory_format=row.memory_format or MEMORY_FORMATS[0],
            loads_data=row.loads_data,
            framework_version=row.framework_version,
        )
        return JobFeatures(job, op_stats, row.parameters, memory)
    except InvalidJobError as error:
        raise _located(error, where, f"job {row.job_id!r}: ") from error


def _read_op_stats(row: pb.Job, where: str) -> tuple[OpStats, ...]:
    rows = []
    for position, op in enumerate(row.op_stats):
        try:
            rows.append(
                OpStats(
                    kind=op.kind,
                    phase=op.phase,
                    intensity_octave=op.intensity_octave,
                    count=op.count,
                    input_elements_max=op.input_elements_max,
                    input_elements=op.input_elements,
                    output_elements=op.output_elements,
                    flops=op.flops,
                    bytes_moved=op.bytes_moved,
                    parameters=op.parameters,
                    shape=op.shape,
                )
            )
        except InvalidJobError as error:
            # Only now, since names that are in the tables are short: the message repeats them.
            check_text(op.kind, f"{where}.op_stats[{position}].kind")
            check_text(op.phase, f"{where}.op_stats[{position}].phase")
            check_text(op.shape, f"{where}.op_stats[{position}].shape")
            owner = f"operator statistics of {op.kind}: "
            raise _located(error, f"{where}.op_stats[{position}]", owner) from error
    return tuple(rows)


def _read_memory(row: pb.Job, where: str) -> MemoryEstimate:
    """A job's ``memory``; of a caller from before there was one, by the peak alone."""
    memory = row.memory
    try:
        if not row.HasField("memory"):
            return memory_of_peak(row.parameters, row.peak_live_bytes)
        return MemoryEstimate(
            parameter_bytes=memory.parameter_bytes,
            gradient_bytes=memory.gradient_bytes,
            optimizer_state_bytes=memory.optimizer_state_bytes,
            activation_bytes=memory.activation_bytes,
            workspace_bytes=memory.workspace_bytes,
            batch_bytes=memory.batch_bytes,
        )
    except InvalidJobError as error:
        raise _located(error, where, "") from error
    except GraphError as error:
        raise _located(error, f"{where}.memory", "memory estimate: ") from error


def write_device(device: Device) -> pb.Device:
    """A device as it travels, with its data sheet."""
    try:
        return pb.Device(
            kind=device.kind,
            data_sheet=pb.DataSheet(
                compute_capability=device.compute_capability,
                memory_bytes=device.memory_bytes,
                cores=device.cores,
                peak_flops_per_s=device.peak_flops_per_s,
                memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
                op_overhead_s=device.op_overhead_s,
                context_bytes=device.context_bytes,
            ),
        )
    except (TypeError, ValueError) as error:
        raise InvalidJobError(
            f"device {device.kind!r} cannot be sent: {error}; memory_bytes, cores and "
            "context_bytes must be whole numbers below 2**63"
        ) from error


def read_device(row: pb.Device, device_of: DeviceOf, where: str) -> Device:
    """A device by its data sheet; where there is none, ``device_of`` its kind."""
    check_text(row.kind, f"{where}.kind")
    if not row.HasField("data_sheet"):
        try:
            return device_of(row.kind)
        except UnknownDeviceError as error:
            raise UnknownDeviceError(f"{where}: {error}, or send its data_sheet") from error
    sheet = row.data_sheet
    where = f"{where}.data_sheet"
    # Device checks some of these itself, by its own names for them and not by the message's.
    for name in ("memory_bytes", "cores", "memory_bandwidth_bytes_per_s"):
        _check_number(getattr(sheet, name), f"{where}.{name}", positive=True)
    for name in ("compute_capability", "op_overhead_s", "context_bytes"):
        _check_number(getattr(sheet, name), f"{where}.{name}", positive=False)
    return Device(
        kind=row.kind,
        compute_capability=sheet.compute_capability,
        memory_bytes=sheet.memory_bytes,
        cores=sheet.cores,
        peak_flops_per_s=_read_peaks(sheet, f"{where}.peak_flops_per_s"),
        memory_bandwidth_bytes_per_s=sheet.memory_bandwidth_bytes_per_s,
        op_overhead_s=sheet.op_overhead_s,
        context_bytes=sheet.context_bytes,
    )


def _read_peaks(sheet: pb.DataSheet, where: str) -> dict[str, float]:
    peaks = dict(sheet.peak_flops_per_s)
    if len(peaks) > MAX_PRECISIONS:
        raise InvalidJobError(
            f"{where} has {len(peaks)} precisions, at most {MAX_PRECISIONS} are taken; "
            "leave out those no job asks for"
        )
    if "fp32" not in peaks:
        raise InvalidJobError(
            f"{where} has no 'fp32', which stands in for any precision it lacks; "
            "take it from the data sheet"
        )
    for precision, value in peaks.items():
        check_text(precision, f"a key of {where}")
        _check_number(value, f"{where}[{precision!r}]", positive=True)
    return peaks


def write_share(share: Share) -> pb.Share:
    """A share as it travels."""
    return pb.Share(fraction=share.fraction, mode=share.mode)


def read_share(row: pb.Placement | pb.Colocation.Member, where: str) -> Share:
    """The share of a placement or member; the whole device where it has none."""
    if not row.HasField("share"):
        return Share()
    check_text(row.share.mode, f"{where}.share.mode")
    try:
        return Share(row.share.fraction, row.share.mode or "exclusive")
    except InvalidJobError as error:
        raise _located(error, f"{where}.share", "") from error


def write_job_forecasts(
    forecasts: Sequence[JobForecast], *, release_id: str, coverage: float
) -> pb.PredictResponse:
    """The response that carries these forecasts."""
    return pb.PredictResponse(
        forecasts=[
            pb.JobForecast(
                compute_utilization=_write_forecast(forecast.compute_utilization),
                memory_bytes=_write_forecast(forecast.memory_bytes),
                step_time_s=_write_forecast(forecast.step_time_s),
                runtime_s=_write_forecast(forecast.runtime_s),
            )
            for forecast in forecasts
        ],
        release_id=release_id,
        coverage=coverage,
    )


def read_job_forecasts(response: pb.PredictResponse) -> list[JobForecast]:
    """Forecasts of a response, in its order."""
    release_id, coverage = response.release_id, response.coverage
    return [
        JobForecast(
            compute_utilization=_read_forecast(row.compute_utilization, release_id, coverage),
            memory_bytes=_read_forecast(row.memory_bytes, release_id, coverage),
            step_time_s=_read_forecast(row.step_time_s, release_id, coverage),
            runtime_s=_read_forecast(row.runtime_s, release_id, coverage),
        )
        for row in response.forecasts
    ]


def write_colocation_forecasts(
    forecasts: Sequence[ColocationForecast], *, release_id: str, coverage: float
) -> pb.PredictInterferenceResponse:
    """The response that carries these forecasts."""
    return pb.PredictInterferenceResponse(
        forecasts=[
            pb.ColocationForecast(
                slowdowns=[_write_forecast(slowdown) for slowdown in forecast.slowdowns],
                fits=forecast.fits,
                fit_probability=forecast.fit_probability,
            )
            for forecast in forecasts
        ],
        release_id=release_id,
        coverage=coverage,
    )


def read_colocation_forecasts(
    response: pb.PredictInterferenceResponse,
) -> list[ColocationForecast]:
    """Forecasts of a response, in its order."""
    return [
        ColocationForecast(
            slowdowns=tuple(
                _read_forecast(slowdown, response.release_id, response.coverage)
                for slowdown in row.slowdowns
            ),
            fits=row.fits,
            fit_probability=row.fit_probability,
        )
        for row in response.forecasts
    ]


def _write_forecast(forecast: Forecast) -> pb.Forecast:
    return pb.Forecast(
        median=forecast.median,
        low=forecast.low,
        high=forecast.high,
        unit=forecast.unit,
        in_domain=forecast.in_domain,
    )


def _read_forecast(row: pb.Forecast, release_id: str, coverage: float) -> Forecast:
    return Forecast(row.median, row.low, row.high, row.unit, row.in_domain, release_id, coverage)


def write_release(info: ReleaseInfo, devices: Sequence[Device]) -> pb.GetReleaseResponse:
    """What is served, with the data sheets of ``devices``."""
    return pb.GetReleaseResponse(
        release_id=info.release_id,
        schema_hash=info.schema_hash,
        columns=info.columns,
        op_kinds=info.op_kinds,
        levels=info.levels,
        devices=[write_device(device) for device in devices],
        trained_devices=sorted(info.trained_devices),
        metrics_json=json.dumps(info.metrics),
        loaded_at_unix_s=info.loaded_at_unix_s,
    )


def read_release(response: pb.GetReleaseResponse) -> ReleaseInfo:
    """What a server serves; each of its devices comes with a data sheet."""

    def without_sheet(kind: str) -> Device:
        raise UnknownDeviceError(f"device kind {kind!r} came without its data sheet")

    return ReleaseInfo(
        release_id=response.release_id,
        schema_hash=response.schema_hash,
        columns=tuple(response.columns),
        op_kinds=tuple(response.op_kinds),
        levels=tuple(response.levels),
        devices={
            row.kind: read_device(row, without_sheet, f"devices[{i}]")
            for i, row in enumerate(response.devices)
        },
        trained_devices=frozenset(response.trained_devices),
        metrics=json.loads(response.metrics_json),
        loaded_at_unix_s=response.loaded_at_unix_s,
    )


def check_text(value: str, where: str) -> None:
    """Refuse a text too long to be a name."""
    if len(value) > MAX_TEXT:
        raise InvalidJobError(
            f"{where} has {len(value)} characters, at most {MAX_TEXT} are taken; shorten it"
        )


def _check_number(value: float, where: str, *, positive: bool) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise InvalidJobError(
            f"{where}={value}, must be a finite number {'> 0' if positive else '>= 0'}; "
            "take it from the data sheet"
        )


def _located(error: PresageError, where: str, owner: str) -> InvalidJobError:
    """The error with its place in the request instead of the name its value gave itself."""
    text = str(error).removeprefix(owner)
    names_a_field = re.match(r"\w+(\[[^]]*])?=", text)
    return InvalidJobError(f"{where}{'.' if names_a_field else ': '}{text}")
