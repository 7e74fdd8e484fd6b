"""Requests for the scaling of a job over the wire."""

from __future__ import annotations

import math
from typing import Any

import pytest

from presage.errors import InvalidJobError, UnknownDeviceError
from presage.features.device.device import known_device, similar_kinds
from presage.features.scaling.scaling_request import (
    GpuPlacement,
    MeasuredStep,
    ScalingRequest,
)
from presage.serving.codec import wire_scaling, wire_values
from presage.serving.v1 import prediction_pb2 as pb


class Catalogue:
    def known_device(self, kind):
        return known_device(kind, {})

    def similar_kinds(self, kind):
        return similar_kinds(kind, {})


def message(make_job, /, **changes):
    fields: dict[str, Any] = {
        "job": wire_values.write_job(make_job()),
        "device": pb.Device(kind="v100"),
        "placements": [pb.GpuPlacement(gpus=2)],
    }
    return pb.PredictScalingRequest(**fields | changes)


def test_a_request_survives_the_wire(job, cpu):
    request = ScalingRequest(
        job(), cpu, (GpuPlacement(2), GpuPlacement(8, 3, 2.5)), GpuPlacement(4, 2),
        (MeasuredStep(GpuPlacement(1), 0.25),),
    )  # fmt: skip
    sent = pb.PredictScalingRequest.FromString(
        wire_scaling.write_scaling(request, 0.9).SerializeToString()
    )

    assert wire_scaling.read_scaling(sent, Catalogue()) == request
    assert wire_scaling.read_coverage(sent) == 0.9
    assert wire_scaling.count_scaling(sent) == 2


def test_defaults_are_one_requested_gpu_one_node_and_80_percent(job):
    read = wire_scaling.read_scaling(message(job), Catalogue())

    assert read.requested == GpuPlacement(1, 1)
    assert read.placements == (GpuPlacement(2, 1),)
    assert wire_scaling.read_coverage(message(job)) == 0.8


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"job": None}, "job is missing"),
        ({"device": None}, "device is missing"),
        ({"device": pb.Device(kind="v100", share=pb.Share(fraction=1))}, "device.share is set"),
        ({"placements": [pb.GpuPlacement()]}, r"placements\[0\].gpus=0"),
        ({"placements": [pb.GpuPlacement(gpus=2, nodes=3)]}, r"placements\[0\].nodes=3"),
        ({"requested": pb.GpuPlacement()}, "requested.gpus=0"),
        ({"measured": [pb.MeasuredStep(step_time_s=1.0)]}, r"measured\[0\].placement is missing"),
        *(
            (
                {"measured": [pb.MeasuredStep(placement=pb.GpuPlacement(gpus=1), step_time_s=s)]},
                r"measured\[0\].step_time_s",
            )
            for s in (0.0, -1.0, math.inf, math.nan)
        ),
    ],
)
def test_an_invalid_request_is_rejected_by_field(job, changes, error):
    with pytest.raises(InvalidJobError, match=error):
        wire_scaling.read_scaling(message(job, **changes), Catalogue())


def test_an_unknown_device_has_its_own_error(job):
    with pytest.raises(UnknownDeviceError, match=r"device\.kind is not known"):
        wire_scaling.read_scaling(message(job, device=pb.Device(kind="v1oo")), Catalogue())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"placements": []}, "placements has 0"),
        ({"placements": [pb.GpuPlacement(gpus=1)] * 257}, "placements has 257"),
        ({"measured": [pb.MeasuredStep()] * 257}, "measured has 257"),
    ],
)
def test_too_few_and_too_many_rows_are_rejected(job, changes, error):
    with pytest.raises(InvalidJobError, match=error):
        wire_scaling.count_scaling(message(job, **changes))


def test_the_cost_of_a_request_grows_with_its_sizes_and_operators(job):
    small = wire_scaling.scaling_work(message(job))
    many = message(job, placements=[pb.GpuPlacement(gpus=1)] * 256)
    wide = message(job)
    wide.job.op_stats.extend(list(wide.job.op_stats) * 500)

    assert small <= 64 < wire_scaling.scaling_work(many)
    assert wire_scaling.scaling_work(wide) > 64
