"""Conversion between the protocol's messages and the domain's values.

``read_*`` converts messages to checked values; errors name the place of the wrong value, as in
``jobs[3].batch_size=0, must be >= 1``. ``write_*`` converts values to messages. Servicer and client
use the same functions. Whole requests are in :mod:`presage.serving.codec.wire_requests`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from presage.errors import (
    GraphError,
    InvalidJobError,
    PresageError,
    UnknownDeviceError,
)
from presage.features.device.device import SHARING_MODES, Device, Share
from presage.features.forecast import (
    COLOCATED_JOBS,
    DEVICE,
    JOB,
    JOB_ON_DEVICE,
    PRECISION,
    Correction,
    Forecast,
)
from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import OP_KINDS
from presage.features.graph.op_stats import OpStats
from presage.features.graph.shape_class import SHAPES
from presage.features.graph.step_memory import MEMORY_COMPONENTS, MemoryEstimate, check_components
from presage.features.job.job_description import (
    MEMORY_FORMATS,
    PRECISIONS,
    Job,
    JobFeatures,
    check_footprint,
    check_sizes,
    memory_from_peak,
    public_version,
)
from presage.features.job.job_table import memory_values
from presage.features.quantities.quantity_registry import job_quantities
from presage.serving.predictor.prediction_backend import (
    ColocationForecast,
    JobForecast,
    RefusedRelease,
    ReleaseInfo,
    job_forecasts,
)
from presage.serving.v1 import prediction_pb2 as pb

MAX_OP_ROWS = 10_000  # per job; kinds x phases x octaves x shapes is about 2,000
MAX_TEXT = 256
MAX_PRECISIONS = 16
_NOT_FOUND = 5  # gRPC's number
_TEXTS = (
    "job_id", "name", "family", "framework", "precision", "graph_digest", "memory_format",
    "framework_version",
)  # fmt: skip
_FORMATS = ("", *MEMORY_FORMATS)
_texts = attrgetter(*_TEXTS)

# Sources of corrections; "" without one.
SOURCES = {
    "": pb.Correction.NONE,
    JOB_ON_DEVICE: pb.Correction.JOB_ON_DEVICE,
    DEVICE: pb.Correction.DEVICE,
    PRECISION: pb.Correction.PRECISION,
    JOB: pb.Correction.JOB,
    COLOCATED_JOBS: pb.Correction.COLOCATED_JOBS,
}
_SOURCE_NAMES = {number: name for name, number in SOURCES.items()}

KnownDevice = Callable[[str], Device | None]
OfShare = pb.Placement | pb.Colocation.Member | pb.Device | pb.Outcome | pb.Outcome.ColocatedJob


def write_job(features: JobFeatures) -> pb.Job:
    """Return the message of a job.

    Raises
    ------
    InvalidJobError
        A number or a text of the job cannot be encoded.
    """
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
            memory=pb.Memory(
                **{name: getattr(features.memory, name) for name in MEMORY_COMPONENTS}
            ),
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
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidJobError(
            f"job {job.job_id!r} cannot be sent: {error}; counts and sizes must be whole numbers "
            "below 2**63, and names valid text"
        ) from error


def read_job(row: pb.Job, where: str) -> JobFeatures:
    """Read a job and its operator statistics; errors call it ``where`` and repeat no text of it.

    Raises
    ------
    InvalidJobError
        As :func:`check_job` or :func:`read_op_stats`.
    """
    try:
        held = check_job(row)
        op_stats = read_op_stats(row)
    except InvalidJobError as error:
        raise InvalidJobError(f"{where}{error}") from error
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
    return JobFeatures(job, op_stats, row.parameters, MemoryEstimate(*held))


def check_job(row: pb.Job) -> tuple[int, ...]:
    """Check all of a job but its operator statistics; return its bytes by ``MEMORY_COMPONENTS``.

    Raises
    ------
    InvalidJobError
        What is wrong, beginning with its place in the job: ".batch_size=0, must be >= 1".
    """
    _check_texts(row)
    op_rows, parameters = len(row.op_stats), row.parameters
    if op_rows > MAX_OP_ROWS:
        raise InvalidJobError(
            f".op_stats has {op_rows} rows, at most {MAX_OP_ROWS} are taken; "
            "sum operators of one kind, phase, octave and shape into one row"
        )
    try:
        if row.HasField("memory"):
            held = memory_values(row.memory)
            check_components(held)
        else:  # of an old client: only a peak
            held = memory_values(memory_from_peak(parameters, row.peak_live_bytes))
        check_sizes(row)
        check_footprint(row.job_id, op_rows, parameters, held)
    except GraphError as error:
        raise _located(error, ".memory", "memory estimate: ") from error
    except InvalidJobError as error:
        raise _located(error, "", f"job {row.job_id!r}: ") from error
    return held


def _check_texts(row: pb.Job) -> None:
    if max(map(len, _texts(row))) > MAX_TEXT:
        for name in _TEXTS:
            check_text(getattr(row, name), f".{name}")
    if row.precision not in PRECISIONS:
        check_known(row.precision, PRECISIONS, ".precision")
    if row.memory_format not in _FORMATS:
        check_known(row.memory_format, _FORMATS, ".memory_format")
    version = row.framework_version
    if version and not public_version(version):
        raise InvalidJobError(
            ".framework_version must begin with two numbers, as 2.13.0 does; leave it out "
            "when it is not known"
        )


def read_op_stats(row: pb.Job) -> tuple[OpStats, ...]:
    """Read the operator statistics of a job.

    Raises
    ------
    InvalidJobError
        What is wrong, beginning with its place in the job: ".op_stats[3].count=0, must be >= 1".
    """
    return tuple(_read_op_row(op, f".op_stats[{i}]") for i, op in enumerate(row.op_stats))


def _read_op_row(op: pb.OpStats, where: str) -> OpStats:
    check_known(op.kind, OP_KINDS, f"{where}.kind")
    check_known(op.phase, PHASES, f"{where}.phase")
    check_known(op.shape, ("", *SHAPES.get(op.kind, ())), f"{where}.shape")
    try:
        return OpStats(
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
    except InvalidJobError as error:
        raise _located(error, where, f"operator statistics of {op.kind}: ") from error


def write_device(device: Device) -> pb.Device:
    """Return the message of a device, with its data sheet.

    Raises
    ------
    InvalidJobError
        A number of the device cannot be encoded.
    """
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


def read_device(
    row: pb.Device, known: KnownDevice, where: str, *, similar: Callable[[str], str] | None = None
) -> Device:
    """Read a device from its data sheet; without one, look up its kind with ``known``.

    ``similar`` returns the hint that follows an unknown kind in the error.
    """
    check_text(row.kind, f"{where}.kind")
    if not row.HasField("data_sheet"):
        found = known(row.kind)
        if found is None:
            hint = f"{similar(row.kind)} " if similar else ""
            raise UnknownDeviceError(
                f"{where}.kind is not known; {hint}Measure it with `presage profile`, or send its "
                "data_sheet"
            )
        return found
    sheet = row.data_sheet
    where = f"{where}.data_sheet"
    # Device checks some of these too, but its errors do not use the names of the message.
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
            "leave out precisions that no job uses"
        )
    if "fp32" not in peaks:
        raise InvalidJobError(
            f"{where} has no 'fp32', which stands in for any precision it lacks; "
            "take it from the data sheet"
        )
    for precision, value in peaks.items():
        check_text(precision, f"a key of {where}")
        shown = f"[{precision!r}]" if precision in PRECISIONS else " of another precision"
        _check_number(value, f"{where}{shown}", positive=True)
    return peaks


def write_share(share: Share) -> pb.Share:
    """Return the message of a share."""
    return pb.Share(fraction=share.fraction, mode=share.mode)


def read_share(row: OfShare, where: str) -> Share:
    """Read the share of a part of a request; without one, return the exclusive device."""
    if not row.HasField("share"):
        return Share()
    check_known(row.share.mode, ("", *SHARING_MODES), f"{where}.share.mode")
    try:
        return Share(row.share.fraction, row.share.mode or "exclusive")
    except InvalidJobError as error:
        raise _located(error, f"{where}.share", "") from error


def read_job_forecasts(response: pb.PredictResponse) -> list[JobForecast | PresageError]:
    """Return the forecasts of a response in order; an error for each rejected part."""

    def read(row: pb.JobForecast) -> JobForecast | PresageError:
        if row.HasField("error"):
            return read_error(row.error)
        found = {name: getattr(row, name) for name, one in job_quantities().items() if one.in_proto}
        found |= row.additional
        return job_forecasts({q: [_read_forecast(one, response)] for q, one in found.items()})[0]

    return [read(row) for row in response.forecasts]


def read_colocation_forecasts(
    response: pb.PredictInterferenceResponse,
) -> list[ColocationForecast | PresageError]:
    """Return the forecasts of a response in order; an error for each rejected part."""

    def read(row: pb.ColocationForecast) -> ColocationForecast | PresageError:
        if row.HasField("error"):
            return read_error(row.error)
        slowdowns = tuple(_read_forecast(slowdown, response) for slowdown in row.slowdowns)
        return ColocationForecast(slowdowns, row.fits, row.fit_probability)

    return [read(row) for row in response.forecasts]


def read_error(row: pb.Error) -> PresageError:
    """Return the exception for a rejected part of a request."""
    not_found = row.grpc_status_code == _NOT_FOUND
    return UnknownDeviceError(row.message) if not_found else InvalidJobError(row.message)


def _read_forecast(
    row: pb.Forecast, response: pb.PredictResponse | pb.PredictInterferenceResponse
) -> Forecast:
    return Forecast(
        row.median, row.low, row.high, row.unit, row.in_domain, response.release_id,
        response.coverage, tuple(zip(response.levels, row.quantiles, strict=True)),
        row.domain_error_ratio,
        _read_correction(row),
    )  # fmt: skip


def _read_correction(row: pb.Forecast) -> Correction | None:
    """Return the correction of a forecast; None if no outcome supports it."""
    if not row.correction.runs:
        return None
    found = row.correction
    return Correction(found.factor, found.runs, _SOURCE_NAMES.get(found.source, "other"))


def write_release(info: ReleaseInfo, devices: Sequence[Device]) -> pb.GetReleaseResponse:
    """Return the message of the served release, with the data sheets of ``devices``."""
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
    """Read the served release; the server sends a data sheet with each device."""
    return ReleaseInfo(
        release_id=response.release_id,
        schema_hash=response.schema_hash,
        columns=tuple(response.columns),
        op_kinds=tuple(response.op_kinds),
        levels=tuple(response.levels),
        devices={
            row.kind: read_device(row, _no_device, f"devices[{i}]")
            for i, row in enumerate(response.devices)
        },
        trained_devices=frozenset(response.trained_devices),
        metrics=json.loads(response.metrics_json),
        loaded_at_unix_s=response.loaded_at_unix_s,
        refused=(
            RefusedRelease(
                response.rejected_release.reason, response.rejected_release.rejected_at_unix_s
            )
            if response.HasField("rejected_release")
            else None
        ),
    )


def check_known(value: str, known: Collection[str], where: str) -> None:
    """Raise InvalidJobError if a text is unknown; the error does not repeat the text."""
    if value not in known:
        words = ", ".join(repr(word) for word in known)
        raise InvalidJobError(f"{where} is not known; use one of {words}")


def check_text(value: str, where: str) -> None:
    """Raise InvalidJobError if a text is longer than ``MAX_TEXT``."""
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


def _no_device(_kind: str) -> Device | None:
    """Return None: a server sends a data sheet with each device."""
    return None


def _located(error: PresageError, where: str, owner: str) -> InvalidJobError:
    """Return the error with its place in the request in place of its own prefix ``owner``."""
    text = str(error).removeprefix(owner)
    names_a_field = re.match(r"\w+(\[[^]]*])?=", text)
    return InvalidJobError(f"{where}{'.' if names_a_field else ': '}{text}")
