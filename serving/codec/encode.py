"""Fast serialization of responses: many forecasts at once, as records of one width.

Serialized forecasts of one request differ only in their numbers, which protobuf writes in eight
bytes each. So protobuf serializes one record, and the others are copies with other numbers at the
same positions (decision 18).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import pack
from typing import Any

import numpy as np

from presage.features.quantities.quantity_registry import INTERFERENCE, job_quantities
from presage.serving.codec.wire_values import SOURCES
from presage.serving.predictor.corrections import Corrections
from presage.serving.predictor.quantiles import (
    ColocationQuantiles,
    JobQuantiles,
    Quantiles,
    SelectedQuantiles,
)
from presage.serving.v1 import prediction_pb2 as pb

Octets = np.ndarray[Any, np.dtype[np.uint8]]

_END = 3  # numbers of a forecast before its quantiles: median, low, high
_FLAG = b"\x28\x01"  # in_domain = true
_TAG = b"\x0a"  # field 1, length-delimited
_RUNS, _SOURCE = 9, 14  # bytes from a correction's factor to its runs and its source


@dataclass(frozen=True, slots=True)
class _Layout:
    """Serialized record with the positions of its numbers and flags by quantity.

    ``corrections`` has -1 for a quantity without one.
    """

    template: bytes
    numbers: tuple[tuple[int, ...], ...]
    flags: tuple[int, ...]
    corrections: tuple[int, ...]

    def written(self, quantities: Sequence[Quantiles], selected: SelectedQuantiles) -> Octets:
        """Return records of shape (rows, octets)."""
        rows = len(quantities[0].in_domain)
        out = np.tile(np.frombuffer(self.template, dtype=np.uint8), (rows, 1))
        for quantity, places, flag, correction in zip(
            quantities, self.numbers, self.flags, self.corrections, strict=True
        ):
            if quantity.corrections is not None:
                _write_corrections(out, correction, quantity.corrections)
            numbers = np.empty((rows, len(places)))
            numbers[:, :-1] = quantity.values.take(selected.positions, axis=1)
            numbers[:, -1] = quantity.domain_error_ratio
            octets = np.ascontiguousarray(numbers, dtype="<f8").view(np.uint8)
            for number, place in enumerate(places):
                out[:, place : place + 8] = octets[:, 8 * number : 8 * number + 8]
            out[:, flag] = quantity.in_domain
        return out


def predict_response(
    quantiles: JobQuantiles,
    selected: SelectedQuantiles,
    release_id: str,
    *,
    errors: Mapping[int, pb.Error],
) -> bytes:
    """Return a serialized PredictResponse.

    Parameters
    ----------
    quantiles : JobQuantiles
        Quantiles of the rows without an error, in order.
    errors : mapping of int to Error
        Errors by position among all rows.
    """
    rest = pb.PredictResponse(
        release_id=release_id, coverage=selected.coverage, levels=selected.levels
    )
    names = tuple((name, one.corrections is not None) for name, one in quantiles.items())
    layout = _job_layout(len(selected.levels), names)
    good = layout.written(list(quantiles.values()), selected)
    if not errors:
        return good.tobytes() + rest.SerializeToString()
    pieces, begin = [], 0
    for before, row in enumerate(sorted(errors)):
        pieces.append(good[begin : row - before].tobytes())
        begin = row - before
        bad = pb.PredictResponse(forecasts=[pb.JobForecast(error=errors[row])])
        pieces.append(bad.SerializeToString())
    return b"".join([*pieces, good[begin:].tobytes(), rest.SerializeToString()])


def interference_response(
    quantiles: ColocationQuantiles,
    selected: SelectedQuantiles,
    release_id: str,
    *,
    colocations: int,
    errors: Mapping[int, pb.Error],
) -> bytes:
    """Return a serialized PredictInterferenceResponse; errors are by co-location."""
    is_corrected = quantiles.slowdowns.corrections is not None
    layout = _slowdown_layout(len(selected.levels), is_corrected)
    octets = layout.written([quantiles.slowdowns], selected).tobytes()
    width = len(layout.template)
    good = zip(quantiles.sizes, quantiles.fits, quantiles.fit_probability, strict=True)
    pieces, begin = [], 0
    for row in range(colocations):
        if row in errors:
            content = pb.ColocationForecast(error=errors[row]).SerializeToString()
        else:
            size, fits, probability = next(good)
            rest = pb.ColocationForecast(fits=fits, fit_probability=probability)
            content = octets[begin : begin + size * width] + rest.SerializeToString()
            begin += size * width
        pieces += [_TAG, _varint(len(content)), content]
    end = pb.PredictInterferenceResponse(
        release_id=release_id, coverage=selected.coverage, levels=selected.levels
    )
    return b"".join([*pieces, end.SerializeToString()])


def matrix_response(quantiles: JobQuantiles, levels: Sequence[float], release_id: str) -> bytes:
    """Return a serialized PredictMatrixResponse."""
    known = job_quantities()
    in_proto = {name: one for name, one in quantiles.items() if known[name].in_proto}
    flags = sum(one.in_domain.astype(np.uint8) << bit for bit, one in enumerate(in_proto.values()))
    numbers = {name: one.values.astype("<f8").tobytes() for name, one in in_proto.items()}
    additional = {
        name: pb.MatrixQuantiles(
            values=one.values.astype("<f8").tobytes(),
            in_domain=one.in_domain.astype(np.uint8).tobytes(),
        )
        for name, one in quantiles.items()
        if name not in in_proto
    }
    return pb.PredictMatrixResponse(
        release_id=release_id,
        levels=levels,
        in_domain=np.asarray(flags).tobytes(),
        additional=additional,
        **numbers,
    ).SerializeToString()


def stream_response(request_id: int, field: int, content: bytes) -> bytes:
    """Return a serialized PredictStreamResponse from the serialized body of that field number."""
    begin = pb.PredictStreamResponse(request_id=request_id).SerializeToString()
    return b"".join([begin, _varint(field << 3 | 2), _varint(len(content)), content])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _write_corrections(out: Octets, place: int, corrections: Corrections) -> None:
    """Write the corrections of all records; ``place`` is that of the factor."""
    factors = np.exp(corrections.errors).astype("<f8")[:, np.newaxis].view(np.uint8)
    runs = corrections.runs.astype("<u4")[:, np.newaxis].view(np.uint8)
    out[:, place : place + 8] = factors
    out[:, place + _RUNS : place + _RUNS + 4] = runs
    out[:, place + _SOURCE] = [SOURCES[source] for source in corrections.sources]


@lru_cache
def _job_layout(levels: int, names: tuple[tuple[str, bool], ...]) -> _Layout:
    """Return the layout of a job's forecasts.

    ``names`` are the forecast fields of its quantities, and whether they have corrections.
    """
    known, job = job_quantities(), pb.JobForecast()
    marks = [_marks(i, levels) for i in range(len(names))]
    for (name, is_corrected), mark in zip(names, marks, strict=True):
        of_name = getattr(job, name) if known[name].in_proto else job.additional[name]
        of_name.CopyFrom(_forecast(known[name].unit, mark, is_corrected=is_corrected))
    row = pb.PredictResponse(forecasts=[job])
    return _layout(row.SerializeToString(), marks, [is_corrected for _, is_corrected in names])


@lru_cache
def _slowdown_layout(levels: int, is_corrected: bool) -> _Layout:
    mark = _marks(0, levels)
    slowdown = _forecast(INTERFERENCE.unit, mark, is_corrected=is_corrected)
    row = pb.ColocationForecast(slowdowns=[slowdown])
    return _layout(row.SerializeToString(), [mark], [is_corrected])


def _marks(quantity: int, levels: int) -> list[float]:
    """Return distinct numbers that occur nowhere else in a record.

    The last two are the ratio of errors and the factor of a correction.
    """
    count = _END + levels + 2
    assert count <= 32, "more numbers would collide with those of the next quantity"
    return [7e300 * (1 + (quantity + i / 32) / 16) for i in range(count)]


def _forecast(unit: str, marks: Sequence[float], *, is_corrected: bool) -> pb.Forecast:
    median, low, high, *quantiles, ratio, factor = marks
    correction = pb.Correction(factor=factor, runs=1, source=pb.Correction.DEVICE)
    return pb.Forecast(
        median=median, low=low, high=high, unit=unit, in_domain=True, quantiles=quantiles,
        domain_error_ratio=ratio, correction=correction if is_corrected else None,
    )  # fmt: skip


def _layout(
    template: bytes, marks: Sequence[Sequence[float]], is_corrected: Sequence[bool]
) -> _Layout:
    """Return a layout; the flag of a quantity follows its third number."""
    places = tuple(tuple(template.index(pack("<d", m)) for m in row[:-1]) for row in marks)
    flags = tuple(template.index(_FLAG, row[_END - 1]) + 1 for row in places)
    corrections = tuple(
        template.index(pack("<d", row[-1])) if has_one else -1
        for row, has_one in zip(marks, is_corrected, strict=True)
    )
    return _Layout(template, places, flags, corrections)
